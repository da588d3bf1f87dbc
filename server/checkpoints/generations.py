"""Let the shards of a run agree on its generation: after a shard was lost, all begin a new one from one checkpoint.

They agree through the run folder, without messages. The file of a generation is created once, whole, and never changes:
`os.link` refuses a second one of the same number. The mark file of each shard holds the last generation that the shard
entered and how it left, so that a restarted shard knows whether it died in that generation.
"""

import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

from glovewire.common import log
from glovewire.common.cli.config_file import to_toml
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import ArtifactError, GlovewireError, OutputError
from glovewire.common.option import entries
from glovewire.common.protocol.schema import is_name
from glovewire.common.storage import run_folder
from glovewire.common.storage.artifacts import (
    MANIFEST,
    PARTIAL,
    flush_path,
    make_folder,
    output_errors,
    write_text_atomically,
)

from ..config import MAX_SHARDS, ServerConfig
from . import files
from .cuts import SUMMARY, final_label

GENERATION = ".generation-"
MAX_NUMBER = 999_999
SECRET_BYTES, SECRET_MODE = 16, 0o600
SECRET = re.compile(f"([0-9a-f]{{{2 * SECRET_BYTES}}})?")
LABEL = re.compile(r"[a-z]+(-\d+)*", re.ASCII)

logger = logging.getLogger(__name__)


class Superseded(GlovewireError, code="superseded"):
    """Another shard has begun a new generation of the run."""


@dataclass(frozen=True)
class Generation:
    """A generation: number, run id on the stream, shards, label of its first checkpoint ("": none), number of parts.

    `secret` (32 hex digits) is the key of the tokens that the shards exchange; no client may know it.
    """

    number: int = 0
    run: str = ""
    shards: int = 1
    label: str = ""
    parts: int = 0
    secret: str = field(default="", repr=False)


@dataclass(frozen=True)
class Mark:
    """The last generation that a shard entered (-1: none), the Ending it announced, and the Ending with which it left.

    Both endings are "" at first; `text` explains the ending.
    """

    generation: int = -1
    ending: str = ""
    left: str = ""
    text: str = ""

    @property
    def order(self) -> tuple[int, bool, bool]:
        """Return what grows with every mark that a shard writes."""
        return self.generation, bool(self.ending), bool(self.left)


class Concluded(Superseded, code="concluded"):
    """An earlier generation ended the run after this one was begun: `ended` is it, with the summary of its training."""

    ended: tuple[Generation, dict[str, Any]]

    @classmethod
    def by(cls, ended: tuple[Generation, dict[str, Any]]) -> Self:
        """Return the error for a run that ended in the generation of `ended`."""
        error = cls(f"the run ended in generation {ended[0].number}")
        error.ended = ended
        return error


Begin = Callable[[Generation], None]
"""Begins a generation of the run unless there is one of its number, and stores the one that there is then."""


# ---- entering a generation


def next_generation(config: ServerConfig) -> Generation:
    """Return the generation to enter: the newest, or a new one if this shard died in it or lacks its first checkpoint.

    Raises ArtifactError with --resume if there is no checkpoint.
    """
    current, mark = newest(config.out), mark_of(config)
    if current is not None and _may_join(config, current, mark):
        return current
    return successor(config, current)


def successor(config: ServerConfig, current: Generation | None) -> Generation:
    """Return a generation that follows `current` and begins from the newest checkpoint; see `next_generation`."""
    label, parts = "", 0
    if config.resume or config.recover:
        files.require_readable_version(config.out)
        try:
            label, parts = files.newest(config.out)
        except ArtifactError:
            if config.resume:
                raise
    number = current.number + 1 if current else 0
    if number > MAX_NUMBER:
        raise ArtifactError(f"{config.out} has had {number} generations: train in another folder")
    return Generation(number, secrets.token_hex(4), config.shards, label, parts, secrets.token_hex(SECRET_BYTES))


def claim(config: ServerConfig) -> None:
    """Claim the run folder for this shard: a new folder, or one that the other shards of the run have begun.

    Raises OutputError if the folder holds a finished run, something else than a run, or this shard already.
    """
    again = config.resume or config.recover
    if not (again or config.join):
        _require_new(config)
    mark = _mark_file(config, config.shard)
    with output_errors(config.out, "run"):
        for folder in (config.out, mark.parent):
            make_folder(folder)
        try:
            mark.touch(exist_ok=again)
        except FileExistsError as error:
            raise OutputError(f"run {config.out} has a shard {config.shard}/{config.shards} already") from error
    files.remove_leftovers(config.out, config.shard, config.shards)
    if config.shard == 0 and not (config.out / run_folder.CONFIG).exists():
        write_text_atomically(config.out / run_folder.CONFIG, to_toml("server", entries(config.options)))


def enter(config: ServerConfig, generation: Generation, begin: Begin | None = None) -> bool:
    """Enter `generation`, which is begun if needed; return False if another shard has begun another one first.

    Without a shared folder, `begin` asks shard 0 to begin it.
    """
    if not _generation_file(config.out, generation.number).exists():
        (begin or partial(create, config.out, by=str(config.shard)))(generation)
    if newest(config.out) != generation:
        return False
    if config.shard == 0 and generation.number and not generation.label:  # the run begins anew, and so do its metrics
        with output_errors(config.out, "run"):
            (config.out / run_folder.METRICS).unlink(missing_ok=True)
    _write_mark(config, Mark(generation.number))
    return True


def create(run: Path, generation: Generation, *, by: str) -> None:
    """Create the file of a generation in `run` unless there is one of its number; two creators differ in `by`."""
    path = _generation_file(run, generation.number)
    offer = path.with_name(f"{path.name}.{by}{PARTIAL}")
    write_text_atomically(offer, json.dumps(asdict(generation)) + "\n", SECRET_MODE)
    with output_errors(run, "run"):
        try:
            os.link(offer, path)
        except FileExistsError:
            pass
        finally:
            offer.unlink()
        flush_path(path.parent)  # shard 0 tells another one before it enters the generation itself


def require_current(config: ServerConfig, generation: Generation) -> None:
    """Raise Superseded if there is a newer generation, Concluded if an earlier one has ended the run meanwhile."""
    if (ended := concluded(config, generation)) is not None:
        raise Concluded.by(ended)
    if _newest_file(config.out) in (None, _generation_file(config.out, generation.number)):
        return
    found = newest(config.out)
    if found is not None and found.number > generation.number:
        raise Superseded(f"another shard was started again: going on with it in generation {found.number} of the run")


# ---- leaving a generation


def announce_ending(config: ServerConfig, generation: Generation, end: RunEnd) -> None:
    """Tell the other shards, through this shard's mark, why this shard is ending the run."""
    _write_mark(config, Mark(generation.number, end.ending, text=end.text))


def announced_ending(config: ServerConfig, generation: Generation) -> RunEnd | None:
    """Return why another shard is ending the run, None while none is."""
    marks = [mark for mark in _other_marks(config).values() if mark.generation == generation.number]
    return next((RunEnd(Ending(mark.ending), mark.text) for mark in marks if mark.ending), None)


def leave(config: ServerConfig, generation: Generation, end: RunEnd) -> None:
    """Record in this shard's mark that it has written everything the run needs from it, and has left."""
    _write_mark(config, Mark(generation.number, end.ending, end.ending, end.text))


def not_left(config: ServerConfig, generation: Generation) -> list[int]:
    """Return the other shards that have not left this generation."""
    marks = _other_marks(config)
    return [shard for shard, mark in marks.items() if mark.generation != generation.number or not mark.left]


def is_over(config: ServerConfig) -> bool:
    """Return whether a restarted shard has nothing left to do: the run ended for good and its results are written.

    Or it has none: shards of a dense model leave although others lack values, and so have no final checkpoint. Then
    this one is marked as one that has left, too, because shard 0 waits for that.
    """
    files.require_readable_version(config.out)
    current, mark = newest(config.out), mark_of(config)
    if mark is not None and _ended_for_good(config, mark.left):
        first = mark_of(config, 0)  # shard 0 writes the results, and then leaves
        if (config.out / MANIFEST).exists() or (config.shard and first and _ended_for_good(config, first.left)):
            return True
    if current is None or config.dataset is not None:
        return False
    others = [other for other in _other_marks(config).values() if other.generation == current.number]
    gone = next((other for other in others if _ended_for_good(config, other.left)), None)
    if gone is None or not files.missing(config.out, final_label(current.number), config.shards):
        return False
    _write_mark(config, gone)
    return True


def unassembled(config: ServerConfig, dataset: str | None = None) -> tuple[Generation, dict[str, Any]] | None:
    """Return the newest generation and its summary, if it ended for good and only the results are missing.

    Every shard has written its final checkpoint then, and one was killed before it left. `dataset` is the checksum of
    this shard's dataset, if it has it.
    """
    generation = newest(config.out)
    if generation is None:
        return None
    return _unassembled(config, generation, dataset) or concluded(config, generation)


def concluded(config: ServerConfig, generation: Generation) -> tuple[Generation, dict[str, Any]] | None:
    """Return an earlier generation that another shard has left for good, and its summary; None if there is none.

    A shard that is restarted may begin the next generation while the others write what it needs to end the run. They do
    not wait for it any more then. With --resume, each run ends before the next one.
    """
    if config.resume or not generation.number:
        return None
    for mark in _other_marks(config).values():
        if mark.generation < generation.number and mark.left and _ended_for_good(config, mark.left):
            earlier = parse_generation(_text(_generation_file(config.out, mark.generation)) or "", str(config.out))
            if (ended := _unassembled(config, earlier, None)) is not None:
                return ended
    return None


def _unassembled(
    config: ServerConfig, generation: Generation, dataset: str | None
) -> tuple[Generation, dict[str, Any]] | None:
    """Return a generation and its summary if all final checkpoints are there, and it ended for good."""
    if generation.shards != config.shards:
        return None
    label = final_label(generation.number)
    if files.missing(config.out, label, generation.shards):
        return None
    try:
        facts = files.read_facts(config.out, label, generation.shards)[0]
    except ArtifactError as error:
        logger.warning(log.line("checkpoint_skipped", label=label, why=error))
        return None
    summary = facts.get(SUMMARY, {})
    same = facts["options"] == config.options.as_message() and dataset in (None, facts["dataset"])
    return (generation, summary) if same and _ended_for_good(config, str(summary.get("ending", ""))) else None


def _ended_for_good(config: ServerConfig, ending: str) -> bool:
    """Return whether no generation follows this ending: COMPLETE with --resume, otherwise any but a signal's."""
    return ending == Ending.COMPLETE if config.resume else ending not in ("", Ending.STOPPED)


# ---- files


def newest(run: Path) -> Generation | None:
    """Return the last generation that was begun in `run`, None before the first.

    Raises ArtifactError for a file that no shard writes.
    """
    path = _newest_file(run)
    if path is None:
        return None
    generation = parse_generation(_text(path) or "", str(path))
    if path != _generation_file(run, generation.number):
        raise _not_ours(str(path))
    return generation


def _newest_file(run: Path) -> Path | None:
    """Return the file of the last generation that was begun in `run`, None before the first."""
    folder = run / run_folder.CHECKPOINTS
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    found = (name for name in names if name.startswith(GENERATION) and not name.endswith(PARTIAL))
    name = max(found, default=None)
    return None if name is None else folder / name


def parse_generation(text: str, where: str) -> Generation:
    """Return the generation that is written in `text`, the content of `where`; ArtifactError if no shard writes it."""
    generation = Generation(**_parse(text, Generation, where))
    if not _is_possible(generation):
        raise _not_ours(where)
    return generation


def _is_possible(generation: Generation) -> bool:
    """Return whether a shard can have begun this generation; without a secret it did so in an earlier version."""
    sizes = 0 <= generation.number <= MAX_NUMBER and 1 <= generation.shards <= MAX_SHARDS
    begins = not generation.label or (1 <= generation.parts <= MAX_SHARDS and LABEL.fullmatch(generation.label))
    names = is_name(generation.run) and SECRET.fullmatch(generation.secret)
    return bool(sizes and begins and names)


def mark_of(config: ServerConfig, shard: int | None = None) -> Mark | None:
    """Return the mark of a shard (by default this one), None if it never claimed the run folder."""
    path = _mark_file(config, config.shard if shard is None else shard)
    text = _text(path)
    return None if text is None else parse_mark(text, str(path))


@lru_cache(64)
def parse_mark(text: str, where: str) -> Mark:
    """Return the mark that is written in `text`, the content of `where`; ArtifactError if no shard writes it."""
    mark = Mark(**_parse(text, Mark, where))
    if not -1 <= mark.generation <= MAX_NUMBER or not {mark.ending, mark.left} <= {"", *Ending}:
        raise _not_ours(where)
    return mark


def _other_marks(config: ServerConfig) -> dict[int, Mark]:
    return {shard: mark_of(config, shard) or Mark() for shard in range(config.shards) if shard != config.shard}


def _may_join(config: ServerConfig, generation: Generation, mark: Mark | None) -> bool:
    """Return whether this shard can enter a generation: it has not been in it, and the first checkpoint is intact."""
    entered = mark is not None and mark.generation >= generation.number
    if generation.shards != config.shards or entered or not generation.secret:
        return False
    may_go_back = config.resume or config.recover
    return not (may_go_back and generation.label) or files.is_intact(config.out, generation.label, generation.parts)


def _require_new(config: ServerConfig) -> None:
    out = config.out
    if out.exists() and not out.is_dir():
        raise OutputError(f"run {out} is a file: name another place or remove it")
    if (out / MANIFEST).exists() or (config.shard == 0 and (out / run_folder.METRICS).exists()):
        raise run_folder.started_before(out)
    if out.exists() and not (out / run_folder.CHECKPOINTS).exists() and any(out.iterdir()):
        raise OutputError(f"run {out} exists and is not a run: name another place or remove it")


def _generation_file(run: Path, number: int) -> Path:
    return run / run_folder.CHECKPOINTS / f"{GENERATION}{number:06d}"


def _mark_file(config: ServerConfig, shard: int) -> Path:
    return config.out / run_folder.CHECKPOINTS / f".shard-{shard}-of-{config.shards}"


def _write_mark(config: ServerConfig, mark: Mark) -> None:
    write_mark(config, config.shard, mark)


def write_mark(config: ServerConfig, shard: int, mark: Mark) -> None:
    """Write the mark of a shard to this shard's folder."""
    write_text_atomically(_mark_file(config, shard), json.dumps(asdict(mark)) + "\n")


def _text(path: Path) -> str | None:
    """Return the content of a file, None if there is no such file."""
    try:
        return path.read_bytes().decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read ({type(error).__name__}: {error})") from error


def _parse(text: str, kind: type[Generation | Mark], where: str) -> Mapping[str, Any]:
    """Return the fields of a generation or mark; none for a mark that was only just created."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where} cannot be read ({type(error).__name__}: {error})") from error
    known = {field.name: field.type for field in fields(kind)}
    if not isinstance(found, dict) or any(type(value) is not known.get(name) for name, value in found.items()):
        raise _not_ours(where)
    return found


def _not_ours(where: str) -> ArtifactError:
    return ArtifactError(f"{where} is not a file that a shard writes: remove it, or train in another folder")
