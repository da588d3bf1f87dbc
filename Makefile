# All set-up on a fresh machine with python3 (3.11 or newer) and make:
#   make train   environment, corpus, training through the server, neighbours, plot
#   make test    all checks that a change must pass
# The environment is .venv. It is updated when pyproject.toml or the requested extras change.
# pip's own PIP_* variables (an index, a folder of wheels) pass through.

# Python of a new environment: `make PYTHON=python3.12`. An optimised build is 1.1 to 1.8 times as fast.
PYTHON ?=
EXTRAS ?=
# Four processes, because many tests wait: with three, two cores were idle a tenth of the time. The tests of a file run in one
# process, which shares their fixtures. The simulation is first, then come folders in their order: the last files are short ones,
# so that all processes end together.
PYTEST_ARGS ?= -n 4 --dist loadfile --no-loadscope-reorder
PREPROCESS_ARGS ?=
TRAIN_ARGS ?= --workers 2
# For both `bench wire` and `bench train`, which have --dim, --repeats, --seed and --config in common.
BENCH_ARGS ?=
FUZZ_S ?= 60
SEEDS ?= 1000
FIRST ?= 0
SEED ?=
# What seeds meant in an earlier draw, see tests/simulation/scenario.py.
DRAW ?=
QUERY ?= matrix probability exception server

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help train test lint fuzz simulate mutants bench demo clean
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
DATASET := data/pydoc
RUN := runs/pydoc
OUT := out

comma := ,
# One stamp per set of extras, so that `make train` after `make test` installs nothing. Every set has the dashboard.
CORE := $(VENV)/installed-web$(addprefix $(comma),$(EXTRAS))
CHECKED := $(VENV)/installed-dev,web,metrics,export$(addprefix $(comma),$(EXTRAS))

# Puts the environment's programs first on the PATH, for recipes and for processes that tests start.
WITH := PATH="$(CURDIR)/$(BIN):$$PATH"
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_ROOT_USER_ACTION := ignore
# Each process that the tests start would compile the program again, for 0.1 to 0.3 s.
unexport PYTHONDONTWRITEBYTECODE

say = @printf '== %s\n'

help:
	@echo 'make train   train word vectors on the documentation that Python carries, through the server ($(RUN))'
	@echo 'make test    lint, type check and test; EXTRAS=all with every optional dependency; PYTEST_ARGS="-k wire"'
	@echo 'make lint    ruff and mypy alone'
	@echo 'make fuzz    hostile bytes, found by coverage, into the decoder and the core; FUZZ_S=60 seconds of them'
	@echo 'make mutants    remove one protection at a time; the simulation or a test must notice each (hours)'
	@echo 'make simulate   clusters with faults in virtual time; SEEDS=10000 of them, or SEED=17 with its story'
	@echo 'make demo    a short tour of what one can do with the vectors'
	@echo 'make bench   the wire and training, measured; JSON in $(OUT)/'
	@echo 'make clean   remove caches and build outputs; keeps $(VENV), data/, runs/ and $(OUT)/'

train: $(CORE)
	@if [ -e $(DATASET) ]; then echo '== corpus: $(DATASET) is there already (remove it to make it again)'; \
	else echo '== corpus: preprocessing the documentation of this Python into $(DATASET)'; \
	  $(WITH) glovewire preprocess pydoc --out $(DATASET) $(PREPROCESS_ARGS); fi
	@if [ -e $(RUN) ]; then echo '== training: removing $(RUN) of an earlier make train'; rm -rf $(RUN); fi
	$(say) 'training: one server, its workers and a monitor into $(RUN)'
	@$(WITH) glovewire train $(DATASET) --out $(RUN) $(TRAIN_ARGS)
	$(say) 'neighbours: glovewire neighbours $(RUN) $(QUERY)'
	@$(WITH) glovewire neighbours $(RUN) $(QUERY)
	$(say) 'done: vectors in $(RUN)/vectors.npy, the loss over time in $(RUN)/loss.png'

# While mypy keeps one core busy, loops and tests are compiled that several processes of pytest would compile at the same time.
test: beside_mypy = { PYTHONPATH=tests/support $(BIN)/python -c 'import forked_warm'; $(BIN)/python -m pytest --collect-only -q; } \
  >/dev/null 2>&1 &
test: lint
	$(say) 'pytest'
	@$(WITH) python -m pytest $(PYTEST_ARGS)

lint: $(CHECKED)
	$(say) 'ruff check'
	@$(BIN)/ruff check .
	$(say) 'ruff format --check'
	@$(BIN)/ruff format --check .
	$(say) 'mypy --strict'
	@$(beside_mypy) $(BIN)/mypy

# Not part of `make test`, because its input differs each time. Findings are in $(OUT)/fuzz/; turn each into a test.
fuzz: $(VENV)/installed-dev,web,fuzz
	@mkdir -p $(OUT)/fuzz
	$(say) 'fuzzing for $(FUZZ_S) s; corpus in $(OUT)/fuzz'
	@$(WITH) PYTHONPATH=tests/support python tests/support/fuzz_wire.py -max_total_time=$(FUZZ_S) -max_len=2048 -len_control=0 \
	  -print_final_stats=1 -artifact_prefix=$(OUT)/fuzz/ $(OUT)/fuzz

# A few hundred seeds are part of `make test`.
simulate: $(VENV)/installed-dev,web
	@$(WITH) PYTHONPATH=tests/simulation:tests/support python tests/simulation/simulate.py --first $(FIRST) --seeds $(SEEDS) $(if $(SEED),--seed $(SEED)) \
	  $(if $(DRAW),--draw $(DRAW))

mutants: $(VENV)/installed-dev,web
	@$(WITH) PYTHONPATH=tests/simulation:tests/support python tests/simulation/mutants.py

bench: $(CORE)
	@mkdir -p $(OUT)
	$(say) 'glovewire bench wire'
	@$(WITH) glovewire bench wire --json $(BENCH_ARGS) > $(OUT)/bench-wire.txt
	@tail -n 1 $(OUT)/bench-wire.txt > $(OUT)/bench-wire.json; sed '$$d' $(OUT)/bench-wire.txt
	@[ -e $(DATASET) ] || $(WITH) glovewire preprocess pydoc --out $(DATASET) $(PREPROCESS_ARGS)
	$(say) 'glovewire bench train $(DATASET)'
	@$(WITH) glovewire bench train $(DATASET) --json $(BENCH_ARGS) > $(OUT)/bench-train.txt
	@tail -n 1 $(OUT)/bench-train.txt > $(OUT)/bench-train.json; sed '$$d' $(OUT)/bench-train.txt

demo: $(CORE)
	@[ -e $(RUN)/vectors.npy ] || $(MAKE) train
	$(say) 'glovewire info $(RUN)'
	@$(WITH) glovewire info $(RUN)
	@[ -e $(RUN)-sgns/vectors.npy ] || { rm -rf $(RUN)-sgns; \
	  echo '== skip-gram on the same matrix: glovewire train $(DATASET) --out $(RUN)-sgns --objective sgns'; \
	  $(WITH) glovewire train $(DATASET) --out $(RUN)-sgns --objective sgns $(TRAIN_ARGS); }
	@for run in $(RUN) $(RUN)-sgns; do echo "== glovewire neighbours $$run $(QUERY) --top 6"; \
	  $(WITH) glovewire neighbours $$run $(QUERY) --top 6 || exit 1; done
	$(say) 'GloVe brings words of the same kind, skip-gram rarer words of the same topic: docs/objectives.md'
	$(say) 'glovewire export $(RUN) --format word2vec --out $(OUT)/pydoc.word2vec.txt'
	@mkdir -p $(OUT); rm -f $(OUT)/pydoc.word2vec.txt
	@$(WITH) glovewire export $(RUN) --format word2vec --out $(OUT)/pydoc.word2vec.txt
	$(say) 'next: glovewire --help, and the walk by hand in README.md'

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +
	$(say) 'kept: $(VENV), data/, runs/ and $(OUT)/ (remove them by hand)'

# Completes an interrupted or hand-made environment with its own Python; never wipes one.
MAKER := $(or $(PYTHON),$(wildcard $(BIN)/python),python3)

$(VENV)/made:
	@'$(MAKER)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo 'error: $(MAKER) is not Python 3.11 or newer; make PYTHON=python3.12 takes another' >&2; exit 1; }
	@'$(MAKER)' -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo 'error: $(MAKER) lacks the venv module (Debian and Ubuntu: apt-get install python3-venv)' >&2; exit 1; }
	@echo "== environment: $$('$(MAKER)' -V) in $(VENV)"; '$(MAKER)' -m venv $(VENV)
	@touch $@

$(VENV)/installed-%: pyproject.toml $(VENV)/made
	$(say) 'installing glovewire [$*]: one to three minutes the first time (pip is quiet unless something fails)'
	@start=$$(date +%s); \
	$(BIN)/python -m pip install -qq -e '.[$*]' \
	  || { echo 'error: the installation failed; pip says why above' >&2; exit 1; }; \
	echo "== installed in $$(($$(date +%s) - start)) s"
	@touch $(VENV)/installed-web $@
