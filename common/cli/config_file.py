"""Read and write the TOML files for `--config`: one table per command, with long option names as keys."""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UsageError
from ..option import Config, arguments, entries

T = TypeVar("T")


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file as a dict; UsageError in one line if it is missing or malformed.

    Bytes that are not UTF-8 become surrogate escapes, as in Python's file names, because paths may hold any bytes.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error


def saved_value(file: Path, key: str, kind: type[T]) -> T | None:
    """Return the value of `key` in any table of a saved configuration; None if no file, or no value of type `kind`."""
    tables = read_toml(file).values() if file.is_file() else ()
    return next((table[key] for table in tables if isinstance(table, dict) and type(table.get(key)) is kind), None)


def to_toml(command: str, values: Mapping[str, object]) -> str:
    """Return options, by key, as the TOML table [`command`] that `--config` reads."""
    return "".join([f"[{command}]\n", *(f"{key} = {toml_value(value)}\n" for key, value in values.items())])


def toml_value(value: object) -> str:
    """Return a plain value, a path, or a list of these in TOML syntax."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON leaves DEL as it is


def configured(command: str, config: Config, file: Path) -> list[str]:
    """Write a config to `file`; return the `glovewire` arguments that run the command with this config."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(to_toml(command, entries(config)), encoding="utf-8", errors="surrogateescape")
    return [command, *arguments(config), "--config", str(file)]
