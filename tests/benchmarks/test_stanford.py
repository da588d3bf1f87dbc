"""The comparison with Stanford's GloVe in benchmarks/peers, for which scripts stand here; no speed is judged."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result
from corpus_tokens import write_tokens
from forked import programs_fork
from handmade import random_dataset
from source import ROOT

from glovewire.bench.config import TrainBenchConfig
from glovewire.common.errors import UsageError
from glovewire.common.model.options import TrainingOptions
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.tokens.tokenizers import make_tokenizer

SPREAD = {"median", "min", "max"}
TOOL = "#!/bin/sh\ncat > /dev/null\nprintf 'a 1\\n'\n"
TEXT = 'The cat said "no."\n\nIt cannot be, the dog said; so they read on.\n' * 20


@pytest.fixture(scope="module")
def stanford() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stanford", ROOT / "benchmarks" / "peers" / "stanford.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(stanford: ModuleType, *words: object) -> Result:
    with programs_fork():
        return CliRunner().invoke(stanford.main, [str(word) for word in words])


def result_of(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def programs(folder: Path, script: str, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return folder


def corpus(folder: Path) -> Path:
    (folder / "text.txt").write_text(TEXT)
    return folder / "text.txt"


def test_its_glove_is_run_in_turn_on_the_same_matrix(stanford: ModuleType, tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)
    script = (
        "#!/bin/sh\ntest -s cooccurrence.bin && test -s vocab.txt || exit 1\n"
        f'echo "$@" >> {tmp_path}/arguments; echo "Initializing parameters...done." >&2; sleep 0.1\n'
        'for n in 1 2 3; do echo "x, iter: 00$n" >&2; done\n'
    )
    programs(tmp_path / "peer" / "build", script, "glove")
    how = ("--repeats", 2, "--dim", 8, "--epochs", 1, "--peer-epochs", 3, "--beside", "local", "--json")
    done = run(stanford, "train", tmp_path / "data", tmp_path / "peer", *how)
    result = result_of(done)
    assert result["success"] == 1
    assert result["beside"]["local"]["server_is_times_as_fast"].keys() == SPREAD
    assert result["beside"]["local"]["bytes_pulled_per_entry"]["max"] == 0 < result["bytes_pulled_per_entry"]["min"]
    assert result["times_as_fast_as_peer"].keys() == SPREAD
    assert result["peer"]["threads"] == result["workers"] == 2
    assert result["peer"]["epochs"] == 3
    assert any(line.startswith("peer ") and "times as fast" in line for line in done.stdout.splitlines())
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert len(arguments) == 2
    assert all("-vector-size 8 -threads 2 -iter 3 " in line for line in arguments)


def test_one_process_of_ours_may_meet_several_threads(stanford: ModuleType, tmp_path: Path) -> None:
    how: dict[str, Any] = {"dataset": tmp_path, "store": "local", "workers": 2, "options": TrainingOptions()}
    with pytest.raises(UsageError, match="--store local is one process"):
        TrainBenchConfig(**how)
    assert stanford.StanfordTrainConfig(**how, peer=tmp_path).workers == 2


def test_another_objective_than_the_peers_is_refused(stanford: ModuleType, tmp_path: Path) -> None:
    refused = run(stanford, "train", tmp_path, tmp_path, "--objective", "sgns")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.output
    assert "the peer trains GloVe, not --objective sgns" in refused.stderr


def test_a_glove_that_fails_or_is_not_there(stanford: ModuleType, tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)
    missing = run(stanford, "train", tmp_path / "data", "nowhere")
    assert missing.exit_code == 2
    assert "build Stanford's GloVe there first" in missing.stderr
    peer = programs(tmp_path, "#!/bin/sh\necho no such option >&2; exit 3\n", "glove")
    failed = run(stanford, "train", tmp_path / "data", peer, "--repeats", 1, "--dim", 8, "--epochs", 1)
    assert failed.exit_code == 1
    assert "status 3 after 0 of 1 epochs: no such option" in failed.stderr


@pytest.mark.parametrize(("epochs", "end"), [(1, "exit 0"), (2, "exit 3"), (2, "kill -9 $$")])
def test_a_glove_that_ends_in_mid_training(stanford: ModuleType, tmp_path: Path, epochs: int, end: str) -> None:
    random_dataset(tmp_path / "data", size=40)
    script = '#!/bin/sh\necho "done." >&2\nfor n in $(seq %d); do sleep 0.1; echo "iter: 00$n" >&2; done\n%s\n'
    peer = programs(tmp_path, script % (epochs, end), "glove")
    how = ("--repeats", 1, "--dim", 8, "--epochs", 1, "--peer-epochs", 2)
    failed = run(stanford, "train", tmp_path / "data", peer, *how)
    assert (failed.exit_code, f"after {epochs} of 2 epochs" in failed.stderr) == (1, True), failed.output


def test_its_tools_are_run_in_turn_on_the_same_text(stanford: ModuleType, tmp_path: Path) -> None:
    peer = programs(tmp_path, TOOL, *stanford.TOOLS)
    done = run(stanford, "preprocess", corpus(tmp_path), peer, "--processes", 1, "--runs", 2, "--json")
    facts = result_of(done)
    assert [set(each) for each in facts["peer"]] == 2 * [{"vocab_count", "cooccur", "shuffle", "total"}]
    assert facts["ratio"] == pytest.approx(facts["best"] / facts["peer_best"], rel=0.1)
    assert facts["tokeniser"]["cold_ratio"] > 0
    assert [each["tokens"] for each in facts["runs"]] == [21 * 20, 21 * 20]
    assert f"Glovewire takes {facts['ratio']} of that" in done.stdout


def test_tools_that_fail_or_are_not_there(stanford: ModuleType, tmp_path: Path) -> None:
    text = corpus(tmp_path)
    (tmp_path / "empty").mkdir()
    missing = run(stanford, "preprocess", text, tmp_path / "empty")
    assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)
    assert "build Stanford's GloVe there" in missing.stderr
    peer = programs(tmp_path, "#!/bin/sh\nexit 3\n", *stanford.TOOLS)
    failed = run(stanford, "preprocess", text, peer, "--processes", 1)
    assert failed.exit_code == 1
    assert "vocab_count ended with status 3" in failed.stderr


def test_its_text_is_our_tokens(tmp_path: Path) -> None:
    write_tokens(PreprocessConfig(corpus=(str(corpus(tmp_path)),), out=tmp_path / "tokens"))
    written = (tmp_path / "tokens").read_text(encoding="utf-8").split("\n")[:-1]
    tokenizer = make_tokenizer("nltk")
    assert [line.rstrip() for line in written] == [" ".join(tokenizer.line(line.lower())) for line in TEXT.splitlines()]
