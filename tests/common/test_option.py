"""Options defined as fields: what derives from one, and that a config checks itself whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
import pytest

from glovewire.bench.config import DenseBenchConfig, PreprocessBenchConfig, TrainBenchConfig, WireConfig
from glovewire.cli.main import COMMANDS, program
from glovewire.common.cli.command import Command, name
from glovewire.common.cli.config_file import configured, read_toml
from glovewire.common.cli.options import Given, takes
from glovewire.common.errors import UsageError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.option import (
    SECONDS,
    Config,
    arguments,
    at_least,
    between,
    entries,
    flags,
    key,
    like,
    option,
    options_of,
)
from glovewire.launch.config import LocalConfig
from glovewire.monitor.config import MonitorConfig
from glovewire.plan.config import PlanConfig
from glovewire.preprocess.config import PreprocessConfig
from glovewire.server.config import ServerConfig
from glovewire.study.config import SpeedupConfig
from glovewire.study.trainings import StalenessConfig
from glovewire.worker.config import WorkerConfig

CONFIGS = [
    DenseBenchConfig, LocalConfig, MonitorConfig, PlanConfig, PreprocessBenchConfig, PreprocessConfig, ServerConfig,
    SpeedupConfig, StalenessConfig, TrainBenchConfig, TrainingOptions, WireConfig, WorkerConfig,
]  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demo(Config):
    """Options of `demo`."""

    place: Path = option(argument=True)
    count: int = option(range=between(1, 9), shown="as many as fit", help="How many.")
    wait_s: float = option(2.0, flags=("--wait", "--w"), range=SECONDS, help="How long.")
    kinds: tuple[str, ...] = option(("x",), flags=("--kind",), choices=("x", "y"), help="Which.")
    verify: bool = option(True, help="Whether.")
    lowest: int = option(0, range=at_least(0, "at least 1, or 0 for all"), help="From where.")
    options: TrainingOptions

    def conflicts(self) -> list[str]:
        return ["nothing to verify"] if self.verify and not self.kinds else []


FIELDS = {known.name: known for known, _ in options_of(Demo)}


def demo(**given: Any) -> Demo:
    return Demo(**{"place": Path("p"), "count": 1, "options": TrainingOptions(), **given})


def test_every_problem_is_named_in_one_error() -> None:
    with pytest.raises(UsageError) as caught:
        demo(count=10, wait_s=float("nan"), kinds=("x", "z", "q"), lowest=-1)
    assert str(caught.value).split("; ") == [
        "count must be between 1 and 9, not 10",
        "wait must be a positive number of seconds, not nan",
        "kind must be one of x, y, not 'z'",
        "kind must be one of x, y, not 'q'",
        "lowest must be at least 1, or 0 for all, not -1",
    ]
    with pytest.raises(UsageError, match="nothing to verify"):
        demo(kinds=())


def test_numbers_that_are_too_long_for_a_float_are_refused() -> None:
    with pytest.raises(UsageError, match="count must be"):
        demo(count=10**400)


def test_flags_and_keys_derive_from_the_name_of_a_field() -> None:
    assert flags(FIELDS["verify"]) == ("--verify/--no-verify",)
    assert [key(FIELDS[field]) for field in ("wait_s", "kinds", "verify", "lowest")] == [
        "wait",
        "kind",
        "verify",
        "lowest",
    ]


def test_an_option_like_another_differs_in_what_is_said() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(Config):
        """Options of another command."""

        count: int = like(Demo, "count", default=3, shown="", help="How many here.")

    assert Other().count == 3
    with pytest.raises(UsageError, match="count must be between 1 and 9, not 0"):
        Other(count=0)


@pytest.mark.parametrize("config", CONFIGS)
def test_every_option_has_a_help_text_and_a_key_of_its_own(config: type[Config]) -> None:
    fields = options_of(config)
    assert all(about.help or about.argument for _, about in fields)
    keys = [key(known) for known, about in fields if not about.argument]
    assert len(set(keys)) == len(keys)
    assert all(field.kw_only for field in dataclasses.fields(config))


@pytest.mark.parametrize(
    "config",
    [
        demo(count=3, wait_s=1e-7, kinds=("y", "x"), verify=False, options=TrainingOptions(tied=True, seed=7)),
        demo(place=Path("/tmp/a \udcff"), options=TrainingOptions.of_tensors(mean_gradient=False)),
    ],
)
def test_a_child_process_gets_every_option_by_file(config: Demo, tmp_path: Path) -> None:
    found: list[Demo] = []

    @click.command(cls=Command, name="demo")
    @takes(Demo)
    def command(given: Given[Demo]) -> dict[str, Any]:
        found.append(given.config())
        return {}

    words = configured("demo", config, tmp_path / "logs" / "demo.toml")
    assert words[:2] == ["demo", *arguments(config)]
    command.main(words[1:], prog_name="demo", standalone_mode=False)
    assert found == [config]


def test_a_path_that_is_not_utf_8_goes_by_file_too(tmp_path: Path) -> None:
    odd = tmp_path / "o\udcff"
    server = ServerConfig(dataset=tmp_path / "d", out=odd, keys=odd, options=TrainingOptions())
    configured("server", server, tmp_path / "server.toml")
    found = read_toml(tmp_path / "server.toml")["server"]
    assert (found["out"], found["keys"]) == (str(odd), str(odd))
    assert found.keys() == entries(server).keys() >= {"checkpoint-every", "lease", "learning-rate", "join"}


@pytest.mark.parametrize("command", ["server", "worker", "train", "preprocess", "monitor", "plan"])
def test_a_command_has_the_options_of_its_config_and_no_default_of_its_own(command: str) -> None:
    configs = dict(zip(["server", "worker", "train", "preprocess", "monitor", "plan"], [
        ServerConfig, WorkerConfig, LocalConfig, PreprocessConfig, MonitorConfig, PlanConfig,
    ], strict=True))  # fmt: skip
    assert command in COMMANDS
    loaded = program.get_command(click.Context(program), command)
    assert loaded is not None
    shown = {name(each): each for each in loaded.params if isinstance(each, click.Option)}
    for known, about in options_of(configs[command]):
        if not about.argument:
            default = shown[key(known)].default
            assert default in (None, known.default) or shown[key(known)].required
