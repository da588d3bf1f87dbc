"""The generations of a run: when a shard was lost, all shards begin a new generation together, from one checkpoint.

They agree through the run folder, without a message. A generation is a small file that is made once, whole, and never
changes: `os.link` refuses the second one of a number. Each shard's mark says in which generation it was, so that it
knows whether it died in it, and how it left. Files only: what a shard does in its generation is decided elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common import log
from glovewire.common.cli.config_file import to_toml
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import ArtifactError, GlovewireError, OutputError
from glovewire.common.option import entries
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import MANIFEST, write_text_atomically

from ..config import ServerConfig
from . import files as checkpoint
from .cuts import SUMMARY, final_label

logger = logging.getLogger(__name__)


class Superseded(GlovewireError):
    """Another shard has begun a new generation of the run."""

    code = "superseded"


@dataclass(frozen=True)
class Generation:
    """Number, id on the stream, how many shards take part, and the checkpoint that it begins from ("": none)."""

    number: int = 0
    run: str = ""
    shards: int = 1
    label: str = ""
    parts: int = 0


@dataclass(frozen=True)
class Mark:
    """The last generation of a shard (-1: none), the Ending that it began and the one with which it left ("": none).

    `text` tells people more about the ending.
    """

    generation: int = -1
    ending: str = ""
    left: str = ""
    text: str = ""


def due(config: ServerConfig) -> Generation:
    """The generation that this shard has to enter: the newest of all, or a new one when it died in that.

    A new one, too, when the checkpoint that the newest began from is gone before this shard had it. Raises
    ArtifactError when it is to resume and there is no checkpoint.
    """
    current, mark = newest(config.out), mark_of(config)
    if current is not None and _is_new_to(config, current, mark):
        return current
    label, parts = _furthest(config)
    return Generation(current.number + 1 if current else 0, secrets.token_hex(4), config.shards, label, parts)


def enter(config: ServerConfig, generation: Generation) -> bool:
    """Take part in `generation`; False when there is another one of its number, which somebody made first."""
    path = _place(config.out, generation.number)
    if not path.exists():
        scratch = path.with_name(f"{path.name}.{config.shard}.partial")
        write_text_atomically(scratch, json.dumps(dataclasses.asdict(generation)) + "\n")
        try:
            os.link(scratch, path)
        except FileExistsError:
            return False
        except OSError as error:
            raise OutputError(f"run {config.out} cannot be written: {error.strerror}") from error
        finally:
            scratch.unlink()
    elif newest(config.out) != generation:
        return False
    if config.shard == 0 and generation.number and not generation.label:  # the run begins anew, and so does its record
        (config.out / runs.METRICS).unlink(missing_ok=True)
    _write(config, Mark(generation.number))
    return True


def stay(config: ServerConfig, generation: Generation) -> None:
    """Raise Superseded when there is a newer generation than this."""
    if _place(config.out, generation.number + 1).exists():
        raise Superseded(
            f"another shard was started again: going on with it in generation {generation.number + 1} of the run"
        )


def leave(config: ServerConfig, generation: Generation, end: RunEnd) -> None:
    """Record that this shard has left behind everything that the run needs of it."""
    _write(config, Mark(generation.number, end.ending, end.ending, end.text))


def tell(config: ServerConfig, generation: Generation, end: RunEnd) -> None:
    """Let the other shards know that this one is ending the run."""
    _write(config, Mark(generation.number, end.ending, text=end.text))


def told(config: ServerConfig, generation: Generation) -> RunEnd | None:
    """Return why another shard is ending the run, None while none is."""
    marks = [mark for mark in _others(config).values() if mark is not None and mark.generation == generation.number]
    return next((RunEnd(Ending(mark.ending), mark.text) for mark in marks if mark.ending), None)


def absent(config: ServerConfig, generation: Generation) -> list[int]:
    """The other shards that have not left this generation yet."""
    marks = _others(config)
    return [
        shard for shard, mark in marks.items() if mark is None or mark.generation != generation.number or not mark.left
    ]


def over(config: ServerConfig) -> bool:
    """Whether a shard that is started again has nothing left to do: the vectors are there, and no signal ended it."""
    mark = mark_of(config)
    if mark is None or not (config.out / MANIFEST).exists():
        return False
    return _for_good(config, mark.left)


def unassembled(config: ServerConfig, dataset: str) -> tuple[Generation, dict[str, Any]] | None:
    """The newest generation, and how it ended, if that is over for good and nothing but the vectors lacks.

    Every shard has left its final checkpoint then, and one was killed before it could leave. `dataset` is the checksum
    of this shard's.
    """
    generation = newest(config.out)
    label = "" if generation is None else final_label(generation.number)
    if (
        generation is None
        or generation.shards != config.shards
        or checkpoint.missing(config.out, label, generation.shards)
    ):
        return None
    try:
        facts = checkpoint.whole(config.out, label, generation.shards)[0]
    except ArtifactError as error:
        logger.warning(log.line("checkpoint_skipped", label=label, why=error))
        return None
    ended, ours = facts.get(SUMMARY, {}), (config.options.as_message(), dataset)
    mine = (facts["options"], facts["dataset"]) == ours and _for_good(config, str(ended.get("ending", "")))
    return (generation, ended) if mine else None


def _for_good(config: ServerConfig, ending: str) -> bool:
    """Return whether a generation with this ending is the last one; with --resume only a complete run is over."""
    return ending == Ending.COMPLETE if config.resume else ending not in ("", Ending.STOPPED)


def claim(config: ServerConfig) -> None:
    """Make sure that RUN is ours to write: new, or begun by the other shards of the same training.

    Raises OutputError when it holds a finished run, another run, or this very shard already.
    """
    again = config.resume or config.recover
    if not (again or config.join):
        _require_new(config)
    mark = _mark(config, config.shard)
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch(exist_ok=again)
    except FileExistsError as error:
        raise OutputError(f"run {config.out} has a shard {config.shard}/{config.shards} already") from error
    except OSError as error:
        raise OutputError(f"run {config.out} cannot be written: {error.strerror}") from error
    checkpoint.clear_away(config.out, config.shard, config.shards)
    if config.shard == 0 and not (config.out / runs.CONFIG).exists():
        write_text_atomically(config.out / runs.CONFIG, to_toml("server", entries(config.options)))


def newest(run: Path) -> Generation | None:
    """The last generation that was begun in `run`, None before the first."""
    path = max((run / runs.CHECKPOINTS).glob(".generation-[0-9]*[0-9]"), default=None)
    return None if path is None else Generation(**_read(path))


def mark_of(config: ServerConfig, shard: int | None = None) -> Mark | None:
    """What a shard (by default this one) has left of itself, None when it was never here."""
    path = _mark(config, config.shard if shard is None else shard)
    return Mark(**_read(path)) if path.exists() else None


def _others(config: ServerConfig) -> dict[int, Mark | None]:
    return {shard: mark_of(config, shard) for shard in range(config.shards) if shard != config.shard}


def _is_new_to(config: ServerConfig, generation: Generation, mark: Mark | None) -> bool:
    """Whether this shard has not been in a generation, and can begin it: what that begins from may be gone."""
    if generation.shards != config.shards or (mark is not None and mark.generation >= generation.number):
        return False
    may_go_back = config.resume or config.recover
    return not (may_go_back and generation.label and checkpoint.missing(config.out, generation.label, generation.parts))


def _furthest(config: ServerConfig) -> tuple[str, int]:
    if not (config.resume or config.recover):
        return "", 0
    try:
        return checkpoint.newest(config.out)
    except ArtifactError:
        if config.resume:
            raise
        return "", 0


def _require_new(config: ServerConfig) -> None:
    out = config.out
    if out.exists() and not out.is_dir():
        raise OutputError(f"run {out} is a file: name another place or remove it")
    if (out / MANIFEST).exists() or (config.shard == 0 and (out / runs.METRICS).exists()):
        raise OutputError(f"run {out} exists already: name another place or remove it")
    if out.exists() and not (out / runs.CHECKPOINTS).exists() and any(out.iterdir()):
        raise OutputError(f"run {out} exists and is not a run: name another place or remove it")


def _place(run: Path, number: int) -> Path:
    return run / runs.CHECKPOINTS / f".generation-{number:06d}"


def _mark(config: ServerConfig, shard: int) -> Path:
    return config.out / runs.CHECKPOINTS / f".shard-{shard}-of-{config.shards}"


def _write(config: ServerConfig, mark: Mark) -> None:
    write_text_atomically(_mark(config, config.shard), json.dumps(dataclasses.asdict(mark)) + "\n")


def _read(path: Path) -> Mapping[str, Any]:
    """The fields in one of our files; a mark that was only just made is empty."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8") or "{}")
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    known = {field.name for kind in (Generation, Mark) for field in dataclasses.fields(kind)}
    if not isinstance(fields, dict) or not fields.keys() <= known:
        raise ArtifactError(f"{path} is not what a shard writes")
    return fields
