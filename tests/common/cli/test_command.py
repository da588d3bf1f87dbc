"""Options: flags > environment > file > defaults, wrong ones in one line with exit 2, JSON as the last line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from glovewire.common.cli.command import Command, suggest
from glovewire.common.cli.config_file import read_toml, to_toml
from glovewire.common.cli.options import Given, takes
from glovewire.common.errors import GlovewireError, OutputError, UsageError, require
from glovewire.common.model.options import PRESETS, TrainingOptions
from glovewire.common.option import Config, entries

SEEN: list[dict[str, Any]] = []


@click.command(cls=Command, name="demo")
@click.option("--dim", default=3, help="Numbers.")
@click.option("--learning-rate", "--lr", "learning_rate", default=0.5, help="Rate.")
@click.option("--tied/--untied", default=True, help="Or not.")
@click.option("--server", "servers", multiple=True, default=["a"], help="Where.")
@click.option("--mode", type=click.Choice(["x", "y"]), default="x", help="How.")
@click.option("--fail", default="", help="End with an error.")
@click.option("--out", type=click.Path(path_type=Path), help="One place.")
@click.option("--pair", nargs=2, type=click.Path(path_type=Path), help="Two places.")
@click.option("--watch", multiple=True, type=click.Path(path_type=Path), help="Several places.")
def demo(fail: str, **options: Any) -> dict[str, Any]:
    """Show what arrived."""
    SEEN.append({key: options.pop(key) for key in ("out", "pair", "watch")})
    if fail:
        raise {"usage": UsageError, "output": OutputError}[fail]("it did\nnot \x1b[2Jwork")
    click.echo("some text first")
    return options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training(Config):
    options: TrainingOptions


@click.command(cls=Command, name="train")
@takes(Training)
def train(given: Given[Training]) -> dict[str, Any]:
    """Resolve training options."""
    return given.config().options.as_message()


@click.group()
def program() -> None:
    """Several commands."""


program.add_command(demo)
program.add_command(train)


def run(command: click.Command, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(command, [*arguments], env=environment, prog_name="glovewire")


def last(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


def test_flags_beat_the_environment_beats_the_file_beats_the_default(config: Path) -> None:
    config.write_text("[demo]\ndim = 10\nlearning-rate = 0.1\ntied = false\n")
    environment = {"GLOVEWIRE_DEMO_DIM": "20", "GLOVEWIRE_DEMO_LEARNING_RATE": "0.2"}
    arguments = ["demo", "--config", str(config), "--json"]
    assert last(run(program, "demo", "--json")) == {
        "dim": 3, "learning_rate": 0.5, "tied": True, "servers": ["a"], "mode": "x",
    }  # fmt: skip
    assert last(run(program, *arguments))["dim"] == 10
    found = last(run(program, *arguments, "--lr", "0.3", **environment))
    assert (found["dim"], found["learning_rate"], found["tied"]) == (20, 0.3, False)
    assert last(run(program, *arguments, "--dim", "7", **environment))["dim"] == 7
    assert last(run(program, *arguments, "--tied"))["tied"] is True


def test_the_configuration_itself_may_come_from_the_environment(config: Path) -> None:
    config.write_text("[demo]\ndim = 10\n")
    assert last(run(program, "demo", "--json", GLOVEWIRE_DEMO_CONFIG=str(config)))["dim"] == 10


def test_keys_are_the_long_options_with_dashes_or_underscores(config: Path) -> None:
    config.write_text('[demo]\nlearning_rate = 1\nserver = ["a", "b"]\n')
    found = last(run(program, "demo", "--config", str(config), "--json"))
    assert found["learning_rate"] == 1.0
    assert found["servers"] == ["a", "b"]
    config.write_text('[demo]\nserver = "alone"\n')
    assert last(run(program, "demo", "--config", str(config), "--json"))["servers"] == ["alone"]


def test_paths_of_a_file_are_text_or_lists_of_it(config: Path) -> None:
    config.write_text('[demo]\nout = "o"\npair = ["p", "q"]\nwatch = ["a b", "c"]\n')
    last(run(program, "demo", "--config", str(config), "--json"))
    assert SEEN[-1] == {"out": Path("o"), "pair": (Path("p"), Path("q")), "watch": (Path("a b"), Path("c"))}


def test_several_values_of_a_variable_are_parted_by_blanks_and_paths_as_in_path() -> None:
    found = last(run(program, "demo", "--json", GLOVEWIRE_DEMO_SERVER="a b", GLOVEWIRE_DEMO_WATCH="w 1.txt:w2.txt"))
    assert found["servers"] == ["a", "b"]
    assert SEEN[-1]["watch"] == (Path("w 1.txt"), Path("w2.txt"))


def test_tables_of_other_commands_are_theirs(config: Path) -> None:
    config.write_text("[train]\ndim = 10\n[demo]\n")
    assert last(run(program, "demo", "--config", str(config), "--json"))["dim"] == 3


WRONG = {
    "[demo]\ndimm = 3\n": "did you mean 'dim'",
    "[demo]\nlearningrate = 3\n": "did you mean 'learning-rate'",
    "[demo]\nzzz = 3\n": "unknown option 'zzz'",
    "[demmo]\ndim = 3\n": "demo",
    "dim = 3\n": "dim",
    "demo = 3\n": "demo",
    "[demo]\nconfig = 'x'\n": "config",
    "[demo]\ndim = 2.5\n": "dim",
    "[demo]\ndim = true\n": "dim",
    "[demo]\ndim = [1, 2]\n": "dim",
    "[demo]\ndim = 'x'\n": "dim",
    "[demo]\nlearning-rate = true\n": "learning-rate",
    "[demo]\ntied = 3\n": "tied",
    "[demo]\nmode = 'z'\n": "mode",
    "[demo]\nserver = [['a']]\n": "'server' in [demo] must be a value or a list of values, not [['a']]",
    "[demo]\nout = 3\n": "'out' in [demo] must be a path, not 3",
    "[demo]\nout = ['a']\n": "'out' in [demo] must be a path, not ['a']",
    '[demo]\nout = "a\\u0000b"\n': "'out' in [demo] must be a path, not 'a\\x00b'",
    "[demo]\nwatch = 3\n": "'watch' in [demo] must be a path or a list of paths, not 3",
    "[demo]\nwatch = ['a', 4]\n": "'watch' in [demo] must be a path or a list of paths, not ['a', 4]",
    "[demo]\nwatch = [['a']]\n": "'watch' in [demo] must be a path or a list of paths, not [['a']]",
    "[demo]\npair = [1, 2]\n": "'pair' in [demo] must be a path or a list of paths, not [1, 2]",
    "[demo\n": "not valid TOML",
    "[demo]\ndim = 1\ndim = 2\n": "not valid TOML",
}


@pytest.mark.parametrize(("text", "said"), WRONG.items())
def test_a_file_that_cannot_be_meant_ends_with_2_and_one_line(config: Path, text: str, said: str) -> None:
    config.write_text(text)
    result = run(program, "demo", "--config", str(config))
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize(("text", "found"), [("[train]\ndim = 3\n", "[train]"), ("", "nothing")])
def test_a_file_that_says_nothing_of_this_command_is_refused(config: Path, text: str, found: str) -> None:
    config.write_text(text)
    result = run(program, "demo", "--config", str(config))
    assert result.exit_code == 2
    assert result.stderr == f"error: {config} has no table [demo], but {found} (see glovewire demo --help)\n"


def test_a_file_that_is_not_there_or_no_text_is_named(config: Path, tmp_path: Path) -> None:
    for path, why in ((config, "cannot be read"), (tmp_path, "cannot be read")):
        result = run(program, "demo", "--config", str(path))
        assert result.exit_code == 2
        assert why in result.stderr
    config.write_bytes(b"\xff\xfe")
    assert "not valid TOML" in run(program, "demo", "--config", str(config)).stderr


@pytest.mark.parametrize(("kind", "status"), [("usage", 2), ("output", 1)])
def test_an_expected_error_is_one_line_on_stderr(kind: str, status: int) -> None:
    result = run(program, "demo", "--fail", kind, "--json")
    assert result.exit_code == status
    assert result.stderr == "error: it did not \\x1b[2Jwork\n"
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["--dim", "x"], ["--nope"], ["--mode", "z"], ["extra"]])
def test_wrong_usage_is_one_line_and_exit_2(arguments: list[str]) -> None:
    result = run(program, "demo", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1


def test_json_is_the_last_line_and_only_when_asked_for() -> None:
    lines = run(program, "demo", "--json").stdout.splitlines()
    assert lines[0] == "some text first"
    assert json.loads(lines[-1])["dim"] == 3
    assert run(program, "demo").stdout == "some text first\n"


def test_help_shows_defaults_and_environment_variables() -> None:
    text = " ".join(run(program, "demo", "--help").stdout.split())
    for words in ("GLOVEWIRE_DEMO_DIM", "default: 3", "--learning-rate", "--config", "--json"):
        assert words in text


@pytest.mark.parametrize(
    "options",
    [
        TrainingOptions(),
        TrainingOptions(dim=7, tied=False, optimizer="sgd", mean_gradient=True, learning_rate=1e-7, seed=(1 << 63) - 1),
        TrainingOptions(schedule="minibatch", consistency="async", x_max=123.456, final_rate=0.0),
    ],
)
def test_the_options_of_a_run_can_be_read_back_to_the_last_bit(config: Path, options: TrainingOptions) -> None:
    config.write_text(to_toml("train", entries(Training(options=options))))
    assert TrainingOptions.from_message(last(run(program, "train", "--config", str(config), "--json"))) == options


def test_text_lists_and_what_is_absent_survive_toml(config: Path) -> None:
    text, path, numbers = 'a "quoted" \\ back\nslash, é', Path("/tmp/x y"), (1, 2)
    values = {"text": text, "path": path, "numbers": numbers}
    config.write_text(to_toml("odd", values), encoding="utf-8")
    assert read_toml(config)["odd"] == {"text": text, "path": "/tmp/x y", "numbers": [1, 2]}


def test_all_problems_are_raised_as_one() -> None:
    require([])
    with pytest.raises(UsageError, match="one; two"):
        require(["one", "two"])
    assert issubclass(UsageError, GlovewireError)


def test_suggestions_are_near_or_none() -> None:
    assert suggest("learning_rte", ["dim", "learning-rate"]) == "; did you mean 'learning-rate'?"
    assert suggest("qqqq", ["dim", "learning-rate"]) == ""


def test_presets_are_options() -> None:
    for preset in PRESETS.values():
        assert TrainingOptions.from_flags(**preset)


def test_a_preset_is_called_what_it_is_and_explained() -> None:
    words = " ".join(run(program, "train", "--help").stdout.split())
    assert "--preset [baseline]" in words
    assert "baseline: GloVe as a simple program trains it" in words


def test_a_variable_that_is_no_option_is_ignored_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOVEWIRE_DEMO_DIMM", "7")
    monkeypatch.setenv("GLOVEWIRE_DEMO_LEARNING_RATE", "0.25")
    monkeypatch.setenv("GLOVEWIRE_OTHER_DIMM", "7")
    result = run(program, "demo", "--json")
    assert (last(result)["dim"], last(result)["learning_rate"]) == (3, 0.25)
    assert result.stderr == (
        "warning: the environment variable GLOVEWIRE_DEMO_DIMM is ignored: demo has no such option; "
        "did you mean 'GLOVEWIRE_DEMO_DIM'?\n"
    )
