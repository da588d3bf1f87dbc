"""`glovewire --help` and every command's help: quick, complete, and equal to what the program does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from glovewire.cli.main import COMMANDS, program
from glovewire.common.cli.command import name
from glovewire.common.cli.groups import FIRST, GROUPS

HEAVY = {"numpy", "scipy", "numba", "zmq", "msgpack", "rich", "matplotlib", "nltk", "datasets", "bokeh"}
PROBE = """
import json, sys
from glovewire.cli.main import main
try:
    main(*sys.argv[1:])
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def help_of(*words: str) -> tuple[str, set[str]]:
    """The help page, and the modules that were imported to print it."""
    run = subprocess.run(
        [sys.executable, "-c", PROBE, *words, "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    return run.stdout, set(json.loads(run.stderr.splitlines()[-1]))


def test_help_imports_nothing_heavy_and_lists_every_command() -> None:
    shown, modules = help_of()
    assert not HEAVY & modules
    assert not {f"{package}.cli" for package in ("preprocess", "server", "worker", "monitor", "vectors")} & modules
    for command, (_, line) in COMMANDS.items():
        assert re.search(rf"^  {command} +{re.escape(line[:30])}", shown, re.MULTILINE), shown


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_defaults_and_variables(command: str) -> None:
    shown, modules = help_of(command)
    assert not HEAVY - {"numpy"} & modules
    shown = " ".join(shown.replace("-\n", "-").split())
    loaded = program.get_command(click.Context(program), command)
    assert loaded is not None
    assert loaded.help
    for option in loaded.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        assert option.help, f"{command} --{name(option)} says nothing"
        assert option.envvar == f"GLOVEWIRE_{command}_{name(option)}".upper().replace("-", "_")
        assert any(flag in shown for flag in option.opts), f"--{name(option)} is not shown"
        if isinstance(option.default, (int, float)) and not option.is_flag:
            assert f"default: {option.default}" in shown

    if not isinstance(loaded, click.Group):
        assert f"an environment variable such as GLOVEWIRE_{command.upper()}_" in shown


def test_the_help_of_train_fits_three_screens_and_begins_with_what_matters_most() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "glovewire", "train", "--help"], capture_output=True, text=True, check=True,
        env={**os.environ, "COLUMNS": "120"},
    ).stdout  # fmt: skip
    assert shown.count("\n") <= 3 * 40
    headings = re.findall(r"^(\S.*):$", shown, re.MULTILINE)
    assert headings[0] == FIRST
    assert {"Minibatches (--schedule minibatch)", "Skip-gram (--objective sgns)"} < set(headings)
    first = shown.partition(f"{FIRST}:")[2].partition("\n\n")[0]
    assert len(re.findall(r"^  --", first, re.MULTILINE)) == 10
    assert "[env var" not in shown
    loaded = program.get_command(click.Context(program), "train")
    assert loaded is not None
    known = {each.name for each in loaded.params if isinstance(each, click.Option)}
    listed = {each for _, names in GROUPS["train"] for each in names}
    assert known - listed <= {"config", "as_json"}, "every option of its own has a group"


def test_groups_name_options_that_there_are() -> None:
    for command in ("train", "server"):
        loaded = program.get_command(click.Context(program), command)
        assert loaded is not None
        assert {each for _, names in GROUPS[command] for each in names} <= {each.name for each in loaded.params}


def test_the_shell_completes_commands_and_options() -> None:
    def completed(words: str, at: int) -> list[str]:
        environment = {"_GLOVEWIRE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        run = subprocess.run(
            [sys.executable, "-m", "glovewire"], capture_output=True, text=True, env={**os.environ, **environment}
        )
        return [line.partition(",")[2] for line in run.stdout.splitlines()]

    assert completed("glovewire tra", 1) == ["train"]
    assert sorted(completed("glovewire train --keep", 2)) == ["--keep-best", "--keep-checkpoints"]


def test_the_options_that_a_command_would_use_are_shown_with_their_origin(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[train]\ndim = 50\nepochs = 3\n")
    run = subprocess.run(
        [sys.executable, "-m", "glovewire", "config", "show", "train", "--config", file, "--epochs", "4"],
        capture_output=True, text=True, check=True, env={**os.environ, "GLOVEWIRE_TRAIN_SEED": "7"},
    )  # fmt: skip
    lines = [re.sub(" +", " ", line) for line in run.stdout.splitlines()]
    assert lines[0] == "[train]"
    assert {
        "dim = 50 # file or preset", "epochs = 4 # flag", "seed = 7 # GLOVEWIRE_TRAIN_SEED", "x-max = 8.0 # default",
        "local-epochs = 2 # default", "consistency = \"exclusive\" # default",
    } < set(lines)  # fmt: skip
    assert tomllib.loads(run.stdout)["train"]["epochs"] == 4
    wrong = subprocess.run(
        [sys.executable, "-m", "glovewire", "config", "show", "bench"], capture_output=True, text=True
    )
    assert wrong.returncode == 2
    assert "'bench' is not a command with options of its own" in wrong.stderr


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version(flag: str) -> None:
    run = subprocess.run([sys.executable, "-m", "glovewire", flag], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"glovewire \d+\.\d+\.\d+\n", run.stdout)
