"""Defines an option of a command once, as a field of a frozen dataclass. No I/O.

Click options, environment variables, TOML keys, validation, `config.toml` and the files of child processes all derive
from the field: its name and type, its default, and the `Option` in its metadata.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field
from pathlib import Path
from typing import Any

from .errors import UsageError, require

_METADATA = "glovewire"


@dataclass(frozen=True)
class Range:
    """Which finite numbers are allowed, and how an error says so."""

    text: str
    holds: Callable[[float], bool]


def between(low: float, high: float, text: str = "") -> Range:
    """Return the range from `low` to `high`, both included; `text` replaces its wording in errors."""
    return Range(text or f"between {low:,} and {high:,}", lambda value: low <= value <= high)


def at_least(low: float, text: str = "") -> Range:
    """Return the range from `low` upwards; `text` replaces its wording in errors."""
    return Range(text or f"at least {low}", lambda value: value >= low)


POSITIVE = Range("a positive number", lambda value: value > 0)
SECONDS = Range("a positive number of seconds", lambda value: value > 0)
FRACTION = Range("at least 0 and less than 1", lambda value: 0 <= value < 1)


@dataclass(frozen=True, kw_only=True)
class Option:
    """What the command line needs to know of a field beside its name, type and default.

    A field without a default is required, unless `shown` says what stands in for it. `flags` default to the field's
    name; `path` holds what click.Path checks; `parse` turns text into the value, and raises ValueError; `check` raises
    UsageError for a value (for each of several). `shown` is the default in words where the value itself does not tell,
    and `per` holds the defaults of objectives that differ from it.
    """

    help: str = ""
    argument: bool = False
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    range: Range | None = None
    check: Callable[[Any], object] | None = None
    parse: Callable[[str], Any] | None = None
    path: Mapping[str, bool] | None = None
    shown: str = ""
    per: Mapping[str, Any] = field(default_factory=dict)
    hidden: bool = False


def option(default: Any = MISSING, *, default_factory: Any = MISSING, **about: Any) -> Any:
    """Return a dataclass field that is an option; `about` are the fields of `Option`."""
    metadata = {_METADATA: Option(**about)}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def like(config: type[Config], name: str, **changes: Any) -> Any:
    """Return a field like `name` of another config, but for `changes` (`default` among them)."""
    known = next(known for known in dataclasses.fields(config) if known.name == name)
    about = dataclasses.replace(known.metadata[_METADATA], **{k: v for k, v in changes.items() if k != "default"})
    if known.default_factory is not MISSING:
        return field(default_factory=known.default_factory, metadata={_METADATA: about})
    return field(default=changes.get("default", known.default), metadata={_METADATA: about})


@dataclass(frozen=True)
class Config:
    """Base of the frozen, keyword-only dataclass that holds a command's options; building one checks all of them."""

    def __post_init__(self) -> None:
        """Raise one UsageError that names every problem."""
        require(list(dict.fromkeys(self._problems())))

    def conflicts(self) -> list[str]:
        """Return what is wrong with values that are fine each by itself."""
        return []

    def _problems(self) -> Iterator[str]:
        for known, about in options_of(type(self)):
            value = getattr(self, known.name)
            for each in value if isinstance(value, tuple) else (value,):
                if each is not None:
                    yield from _refusals(key(known), about, each)
        yield from self.conflicts()


def _refusals(name: str, about: Option, value: Any) -> Iterator[str]:
    if about.range is not None and not (abs(value) < math.inf and about.range.holds(value)):
        yield f"{name} must be {about.range.text}, not {value}"
    if about.choices and value not in about.choices:
        yield f"{name} must be one of {', '.join(about.choices)}, not {value!r}"
    if about.check is not None:
        try:
            about.check(value)
        except UsageError as error:
            yield str(error)


def options_of(config: type[Any]) -> list[tuple[Field[Any], Option]]:
    """Return the fields of a config that are options, each with its `Option`."""
    return [(known, known.metadata[_METADATA]) for known in dataclasses.fields(config) if _METADATA in known.metadata]


def spoken(name: str) -> str:
    """Return a field's name as a flag or a key has it."""
    return name.replace("_", "-")


def flags(known: Field[Any]) -> tuple[str, ...]:
    """Return the flags of an option; one that is true by default also has `--no-NAME`."""
    flag = f"--{spoken(known.name)}"
    usual = f"{flag}/--no-{spoken(known.name)}" if known.default is True else flag
    return known.metadata[_METADATA].flags or (usual,)


def key(known: Field[Any]) -> str:
    """Return the name of an option in a TOML file: its longest flag, without dashes."""
    return max((flag.partition("/")[0] for flag in flags(known)), key=len).lstrip("-")


def entries(config: Config) -> dict[str, Any]:
    """Return the options of a config, and of one inside it, by their keys, without arguments and None."""
    found = {key(known): getattr(config, known.name) for known, about in options_of(type(config)) if not about.argument}
    for known in dataclasses.fields(config):
        if isinstance(inner := getattr(config, known.name), Config):
            found |= entries(inner)
    return {name: value for name, value in found.items() if value is not None}


def arguments(config: Config) -> list[str]:
    """Return the words of a config's positional arguments."""
    values = [getattr(config, known.name) for known, about in options_of(type(config)) if about.argument]
    several = [value if isinstance(value, tuple) else (value,) for value in values if value is not None]
    return [str(each) for group in several for each in group]


@dataclass(frozen=True, kw_only=True)
class SharedOptions(Config):
    """Options that several commands have, for `like`."""

    keys: Path | None = option(
        None,
        metavar="DIR",
        help="Keys made by `glovewire keys`: a folder, or one client's .key file in it. Encrypts and authenticates.",
    )
    prometheus: int | None = option(
        None,
        range=between(0, 65535),
        metavar="PORT",
        help="Serve metrics of this process to Prometheus, on this machine only; 0 takes a free port (see the log).",
    )
    verify: bool = option(True, help="Compare the dataset's checksums first.")
    log_level: str = option("info", choices=("debug", "info", "warning", "error"), help="What is logged on stderr.")
