"""Define an option of a command once, as a field of a frozen dataclass. No I/O.

Click options, environment variables, TOML keys, validation, `config.toml` and the files of child processes all derive
from the field: its name and type, its default, and the `Option` in its metadata.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field
from pathlib import Path
from typing import Any

from .errors import UsageError, require

_METADATA = "glovewire"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Range:
    """Allowed finite numbers: `holds` tests one, and `text` completes the error message "must be ..."."""

    text: str
    holds: Callable[[float], bool]


def between(low: float, high: float, text: str = "") -> Range:
    """Return the range from `low` to `high`, both included; `text` replaces the default wording of errors."""
    return Range(text or f"between {low:,} and {high:,}", lambda value: low <= value <= high)


def at_least(low: float, text: str = "") -> Range:
    """Return the range of numbers from `low` upwards; `text` replaces the default wording of errors."""
    return Range(text or f"at least {low}", lambda value: value >= low)


POSITIVE = Range("a positive number", lambda value: value > 0)
SECONDS = Range("a positive number of seconds", lambda value: value > 0)
FRACTION = Range("at least 0 and less than 1", lambda value: 0 <= value < 1)


def parse_size(text: str) -> int:
    """Convert text such as `4GB`, `800M` or `1.5g` to bytes (K, M, G, T: powers of 1024); ValueError if malformed."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", text.upper())
    if not match:
        raise ValueError(f"{text!r} is not a number of bytes, such as 4GB")
    return int(float(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True, kw_only=True)
class Option:
    """What the command line needs to know about a field besides its name, type and default.

    A field without a default is required, unless `shown` is set. `shown` describes the default in help texts where its
    value does not; `per` maps an objective to its own default. `flags` are by default derived from the field's name.
    `bare` is the value of an option given without one; if None, a value is required. `path` holds arguments of
    click.Path. `parse` turns text into the value or raises ValueError; `check` raises UsageError for an invalid value
    and is called once for each item of a tuple.
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
    bare: int | str | None = None
    per: Mapping[str, Any] = field(default_factory=dict)
    hidden: bool = False


def option(default: Any = MISSING, *, default_factory: Any = MISSING, **about: Any) -> Any:
    """Return a dataclass field for an option of a command; `about` are the fields of its `Option`."""
    return field(default=default, default_factory=default_factory, metadata={_METADATA: Option(**about)})


@dataclass(frozen=True)
class Config:
    """Base of the frozen dataclasses that hold a command's options; the constructor checks every option."""

    def __post_init__(self) -> None:
        """Raise one UsageError that names every invalid option and conflict, if there are any."""
        require(list(dict.fromkeys(self._problems())))

    def conflicts(self) -> list[str]:
        """Return the conflicts between options that are valid one by one."""
        return []

    def _problems(self) -> Iterator[str]:
        for known, about in options_of(type(self)):
            value = getattr(self, known.name)
            for each in value if isinstance(value, tuple) else (value,):
                if each is not None:
                    yield from _refusals(known, about, each)
        yield from self.conflicts()


def like(config: type[Config], name: str, **changes: Any) -> Any:
    """Return a copy of the option `name` of another config; `changes` replace its default or fields of its `Option`."""
    known = next(known for known in dataclasses.fields(config) if known.name == name)
    defaults = {"default": known.default, "default_factory": known.default_factory}
    return option(**(defaults | vars(known.metadata[_METADATA]) | changes))


def _refusals(known: Field[Any], about: Option, value: Any) -> Iterator[str]:
    if about.range is not None and not (abs(value) < math.inf and about.range.holds(value)):
        yield f"{key(known)} must be {about.range.text}, not {value}"
    if about.choices and value not in about.choices:
        yield f"{key(known)} must be one of {', '.join(about.choices)}, not {value!r}"
    if about.check is not None:
        try:
            about.check(value)
        except UsageError as error:
            yield str(error)


def options_of(config: type[Any]) -> list[tuple[Field[Any], Option]]:
    """Return each field of a config class that is an option, with its `Option`."""
    return [(known, known.metadata[_METADATA]) for known in dataclasses.fields(config) if _METADATA in known.metadata]


def spoken(name: str) -> str:
    """Return a field's name as flags and TOML keys spell it, with dashes for underscores."""
    return name.replace("_", "-")


def flags(known: Field[Any]) -> tuple[str, ...]:
    """Return the flags of an option, by default `--NAME`, or `--NAME/--no-NAME` if it is true by default."""
    flag = f"--{spoken(known.name)}"
    usual = f"{flag}/--no-{spoken(known.name)}" if known.default is True else flag
    return known.metadata[_METADATA].flags or (usual,)


def key(known: Field[Any]) -> str:
    """Return the name of an option in a TOML file: its longest flag, without dashes."""
    return max((flag.partition("/")[0] for flag in flags(known)), key=len).lstrip("-")


def entries(config: Config) -> dict[str, Any]:
    """Return the values of a config's options and of configs in its fields, by TOML key; omit arguments and None."""
    found = {key(known): getattr(config, known.name) for known, about in options_of(type(config)) if not about.argument}
    for known in dataclasses.fields(config):
        if isinstance(inner := getattr(config, known.name), Config):
            found |= entries(inner)
    return {name: value for name, value in found.items() if value is not None}


def arguments(config: Config) -> list[str]:
    """Return a config's positional arguments as strings for a command line."""
    values = [getattr(config, known.name) for known, about in options_of(type(config)) if about.argument]
    several = [value if isinstance(value, tuple) else (value,) for value in values if value is not None]
    return [str(each) for group in several for each in group]


def default_cache() -> Path:
    """Return the folder of this user in which downloaded datasets are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glovewire" / "datasets"


@dataclass(frozen=True, kw_only=True)
class SharedOptions(Config):
    """Options that several commands have; their configs copy them with `like`."""

    keys: Path | None = option(
        None,
        metavar="DIR",
        help="Keys made by `glovewire keys`: a folder, or one client's .key file in it. Encrypts and authenticates.",
    )
    cache: Path = option(
        default_factory=default_cache,
        metavar="DIR",
        shown="~/.cache/glovewire/datasets",
        help="Folder for downloaded datasets, which all processes of a machine share.",
    )
    cache_bytes: int = option(
        64 << 30,
        parse=parse_size,
        metavar="SIZE",
        shown="64GB",
        help="Size limit of the cache; datasets in use may exceed it.",
    )
    prometheus: int | None = option(
        None,
        range=between(0, 65535),
        metavar="PORT",
        help="Serve metrics of this process to Prometheus, on this machine only; 0 takes a free port (see the log).",
    )
    verify: bool = option(True, help="Compare the dataset's checksums first.")
    log_level: str = option("info", choices=("debug", "info", "warning", "error"), help="What is logged on stderr.")
