"""Let the shards of a run agree on its generation: after a shard was lost, all begin a new one from one checkpoint.

They agree through the run folder, without messages. The file of a generation is created once, whole, and never changes:
`os.link` refuses a second one of the same number. The end of the run is such a file, too. So what follows a generation,
another one or the end, is decided once, for all shards. The mark file of each shard holds the last generation that the
shard entered and how it left, so that a restarted shard knows whether it died in that generation.
"""

import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from glovewire.common import log
from glovewire.common.cli.config_file import to_toml
from glovewire.common.endings import LASTING, Ending, RunEnd
from glovewire.common.errors import ArtifactError, GlovewireError, OutputError
from glovewire.common.option import entries
from glovewire.common.protocol.schema import is_name
from glovewire.common.storage import run_folder
from glovewire.common.storage.artifacts import (
    MANIFEST,
    PARTIAL,
    damage_errors,
    flush_path,
    is_there,
    is_unreadable,
    make_folder,
    names_in,
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

    `secret` (32 hex digits) is the key of the tokens that the shards exchange; no client may know it. With `ended`, an
    Ending, it is not a generation but the end of the run: the generation before it was the last. With `asked`, the
    Ending that was asked for in the generation before, in which a shard was lost, it ends so once a worker is back.
    """

    number: int = 0
    run: str = ""
    shards: int = 1
    label: str = ""
    parts: int = 0
    secret: str = field(default="", repr=False)
    ended: str = ""
    asked: str = ""


@dataclass(frozen=True)
class Mark:
    """The last generation that a shard entered (-1: none), the Ending it announced, and the Ending with which it left.

    Both endings are "" at first; `text` explains the ending. `is_empty`: the shard ends without a final checkpoint.
    `entry` is drawn at random each time that the shard enters a generation.
    """

    generation: int = -1
    ending: str = ""
    left: str = ""
    text: str = ""
    is_empty: bool = False
    entry: str = ""

    @property
    def order(self) -> tuple[int, bool, bool, bool]:
        """Return what grows with every mark that a shard writes."""
        return self.generation, bool(self.ending), bool(self.left), self.is_empty


Begin = Callable[[Generation], None]
"""Begins a generation of the run unless one of its number exists, and stores the one that exists in the end."""


# ---- entering a generation


def next_generation(config: ServerConfig) -> Generation:
    """Return the generation to enter: the newest, or a new one if this shard died in it or lacks its first checkpoint.

    Raises ArtifactError if there is a checkpoint that cannot be read, or with --resume none.
    """
    current, mark = newest(config.out), mark_of(config)
    if current is not None and current.shards == config.shards and current.secret:
        entered = mark is not None and mark.generation >= current.number
        if not entered and _has_beginning(config, current):
            return current
    return successor(config, current)


def successor(config: ServerConfig, current: Generation | None) -> Generation:
    """Return a generation that follows `current` and begins from the newest checkpoint; see `next_generation`."""
    label, parts = "", 0
    if config.resume or config.recover:
        try:
            label, parts = files.newest(config.out)
        except ArtifactError as error:
            if config.resume or is_unreadable(error):
                raise
    number = current.number + 1 if current else 0
    if number > MAX_NUMBER:
        raise ArtifactError(f"{config.out} has had {number} generations: train in another folder")
    asked = _asked(config, current) if label and config.recover and current is not None else ""
    secret = secrets.token_hex(SECRET_BYTES)
    return Generation(number, secrets.token_hex(4), config.shards, label, parts, secret, asked=asked)


def _asked(config: ServerConfig, generation: Generation) -> str:
    """Return the Ending that was asked for in a generation, according to the marks of its shards; "" if none was.

    A dense model without a number of steps is complete when a worker says so, so that this counts as asked for, too.
    """
    options = config.options
    when_asked = LASTING if options.objective == "tensors" and not options.steps else (Ending.ASKED,)
    marks = (_mark_in(config, shard, generation).ending for shard in range(config.shards))
    return next((ending for ending in (generation.asked, *marks) if ending in when_asked), "")


def claim(config: ServerConfig) -> None:
    """Claim the run folder for this shard: a new folder, or one that the other shards of the run have begun.

    Raises OutputError if the folder holds a finished run, something that is no run, or this shard already.
    """
    again = config.resume or config.recover
    if not (again or config.join):
        _require_new(config)
    mark = Path(_mark_file(config, config.shard))
    with output_errors(config.out, "run"):
        for folder in (config.out, mark.parent):
            make_folder(folder)
        try:
            mark.touch(exist_ok=again)
        except FileExistsError as error:
            raise OutputError(f"run {config.out} has a shard {config.shard}/{config.shards} already") from error
    files.remove_leftovers(config.out, config.shard, config.shards)
    if config.shard == 0 and not is_there(config.out / run_folder.CONFIG):
        write_text_atomically(config.out / run_folder.CONFIG, to_toml("server", entries(config.options)))


def enter(config: ServerConfig, generation: Generation, begin: Begin | None = None) -> bool:
    """Begin `generation` if needed, and enter it; return False if another shard has begun a different one first.

    Return False, too, if a shard of the generation before has meanwhile rewritten a part of its first checkpoint.
    Without a shared folder, `begin` asks shard 0 to begin it.
    """
    _begin(config, generation, begin)
    if newest(config.out) != generation or not _has_beginning(config, generation, verify=False):
        return False
    if config.shard == 0 and generation.number and not generation.label:  # the run begins anew, and so do its metrics
        with output_errors(config.out, "run"):
            (config.out / run_folder.METRICS).unlink(missing_ok=True)
    write_mark(config, config.shard, Mark(generation.number, entry=secrets.token_hex(4)))
    return True


def _begin(config: ServerConfig, generation: Generation, begin: Begin | None) -> None:
    if not is_there(_generation_file(config.out, generation.number)):
        (begin or partial(create, config.out, by=str(config.shard)))(generation)


def create(run: Path, generation: Generation, *, by: str) -> None:
    """Create the file of a generation in `run` unless one of its number exists; `by` tells creators apart."""
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


def has_ended(config: ServerConfig, generation: Generation) -> bool:
    """Return whether the run has ended in `generation`. Raises Superseded if shards have begun a newer one."""
    if _newest_name(config.out) in ("", _generation_name(generation.number)):
        return False
    found = newest(config.out)
    if found is None or found.number <= generation.number:
        return False
    if found.ended and found.number == generation.number + 1:
        return True
    raise Superseded(f"another shard was restarted: continuing in generation {found.number} of the run")


# ---- leaving a generation


def announce_ending(config: ServerConfig, generation: Generation, end: RunEnd, *, is_empty: bool = False) -> None:
    """Tell the other shards, through this shard's mark, why this shard is ending the run; see `Mark`."""
    before = _mark_in(config, config.shard, generation)
    mark = replace(before, generation=generation.number, ending=end.ending, left="", text=end.text, is_empty=is_empty)
    write_mark(config, config.shard, mark)


def announced_ending(config: ServerConfig, generation: Generation) -> RunEnd | None:
    """Return why another shard is ending the run, None while none is."""
    marks = _other_marks(config, generation).values()
    return next((RunEnd(Ending(mark.ending), mark.text) for mark in marks if mark.ending), None)


def leave(config: ServerConfig, generation: Generation, end: RunEnd) -> None:
    """Record in this shard's mark that it has written everything the run needs from it, and has left."""
    before, ending = _mark_in(config, config.shard, generation), end.ending
    mark = replace(before, generation=generation.number, ending=ending, left=ending, text=end.text)
    write_mark(config, config.shard, mark)


def not_left(config: ServerConfig, generation: Generation) -> list[int]:
    """Return the other shards that have not left this generation."""
    return [shard for shard, mark in _other_marks(config, generation).items() if not mark.left]


def unfinished(config: ServerConfig, generation: Generation) -> list[int]:
    """Return the shards that have written no final checkpoint of this generation, and do not end without one."""
    missing = files.missing(config.out, final_label(generation.number), config.shards)
    marks = {shard: _mark_in(config, shard, generation) for shard in missing}
    return [shard for shard, mark in marks.items() if not (mark.left or mark.is_empty)]


def record_end(config: ServerConfig, generation: Generation, ending: str, begin: Begin | None = None) -> None:
    """Record that the run has ended in `generation`, unless another one has been begun after it.

    Call it when every shard has finished the generation and none has let its workers go, so that none needs another.
    """
    _begin(config, Generation(generation.number + 1, generation.run, generation.shards, ended=ending), begin)


def is_stopped(config: ServerConfig, generation: Generation) -> bool:
    """Return whether a signal has ended shard 0, which then records no end, because the run may continue later."""
    return _mark_in(config, 0, generation).ending == Ending.STOPPED


def end_of_run(config: ServerConfig, begin: Begin | None = None, dataset: str | None = None) -> Generation | None:
    """Return the end of the run if it has ended for good, so that a restarted shard has nothing to train.

    If every shard has finished the newest generation, this one records the end, unless its parent starts all shards
    again. `dataset` is the checksum of this shard's dataset, if it has it.
    """
    current = newest(config.out)
    if current is None:
        return None
    if not current.ended and not config.join and (ending := outcome(config, current, dataset)):
        record_end(config, current, ending, begin)
        current = newest(config.out) or current
    is_over = _ended_for_good(config, current.ended) and (not config.join or has_results(config, current))
    return current if is_over else None


def has_results(config: ServerConfig, end: Generation) -> bool:
    """Return whether shard 0 has written the results of the run into this folder, and left."""
    return is_there(config.out / MANIFEST) and bool(_mark_in(config, 0, replace(end, number=end.number - 1)).left)


def outcome(config: ServerConfig, generation: Generation, dataset: str | None = None) -> str:
    """Return the ending of a generation once every shard has finished it; "" before that, and if the run continues."""
    if generation.shards != config.shards or unfinished(config, generation):
        return ""
    label = final_label(generation.number)
    if without := files.missing(config.out, label, generation.shards):
        ending = _mark_in(config, without[0], generation).ending
    else:
        try:
            facts = files.read_facts(config.out, label, generation.shards)[0]
        except ArtifactError as error:
            logger.warning(log.line("checkpoint_skipped", label=label, why=error))
            return ""
        same = facts["options"] == config.options.as_message() and dataset in (None, facts["dataset"])
        ending = str(facts.get(SUMMARY, {}).get("ending", "")) if same else ""
    return ending if _ended_for_good(config, ending) else ""


def _mark_in(config: ServerConfig, shard: int, generation: Generation) -> Mark:
    """Return the mark of a shard if it was made in `generation`, else an empty one."""
    mark = mark_of(config, shard)
    return mark if mark is not None and mark.generation == generation.number else Mark()


def _other_marks(config: ServerConfig, generation: Generation) -> dict[int, Mark]:
    return {shard: _mark_in(config, shard, generation) for shard in range(config.shards) if shard != config.shard}


def _ended_for_good(config: ServerConfig, ending: str) -> bool:
    """Return whether no generation follows this ending: COMPLETE with --resume, otherwise any but a signal's."""
    return ending == Ending.COMPLETE if config.resume else ending not in ("", Ending.STOPPED)


# ---- files


def newest(run: Path) -> Generation | None:
    """Return the last generation that was begun in `run`, None before the first.

    Raises ArtifactError for a file that no shard writes.
    """
    name = _newest_name(run)
    if not name:
        return None
    path = os.path.join(run, run_folder.CHECKPOINTS, name)
    generation = parse_generation(_text(path) or "", path)
    if name != _generation_name(generation.number):
        raise _not_ours(path)
    return generation


def _newest_name(run: Path) -> str:
    """Return the name of the file of the last generation that was begun in `run`, "" before the first."""
    folder = os.path.join(run, run_folder.CHECKPOINTS)  # much quicker than a `Path`, for what is asked all the time
    names = (name for name in names_in(folder) if name.startswith(GENERATION))
    return max((name for name in names if not name.endswith(PARTIAL)), default="")


@lru_cache(64)
def parse_generation(text: str, where: str) -> Generation:
    """Return the generation that is written in `text`, the content of `where`; ArtifactError if no shard writes it.

    One that a store has kept has no secret.
    """
    generation = Generation(**_parse(text, Generation, where))
    sizes = 0 <= generation.number <= MAX_NUMBER and 1 <= generation.shards <= MAX_SHARDS
    begins = not generation.label or (1 <= generation.parts <= MAX_SHARDS and LABEL.fullmatch(generation.label))
    names = is_name(generation.run) and SECRET.fullmatch(generation.secret)
    endings = generation.ended in {"", *Ending} and generation.asked in {"", *LASTING}
    if not (sizes and begins and names and endings):
        raise _not_ours(where)
    return generation


def mark_of(config: ServerConfig, shard: int | None = None) -> Mark | None:
    """Return the mark of a shard (by default this one), None if it never claimed the run folder."""
    path = _mark_file(config, config.shard if shard is None else shard)
    text = _text(path)
    return None if text is None else parse_mark(text, path)


@lru_cache(64)
def parse_mark(text: str, where: str) -> Mark:
    """Return the mark that is written in `text`, the content of `where`; ArtifactError if no shard writes it."""
    mark = Mark(**_parse(text, Mark, where))
    if not -1 <= mark.generation <= MAX_NUMBER or not {mark.ending, mark.left} <= {"", *Ending}:
        raise _not_ours(where)
    return mark


def _has_beginning(config: ServerConfig, generation: Generation, *, verify: bool = True) -> bool:
    """Return False if the first checkpoint of a generation is not intact and this shard may begin another one."""
    if not ((config.resume or config.recover) and generation.label):
        return True
    return files.is_intact(config.out, generation.label, generation.parts, verify=verify)


def _require_new(config: ServerConfig) -> None:
    out = config.out
    if is_there(out) and not out.is_dir():
        raise OutputError(f"run {out} is a file: name another place or remove it")
    if is_there(out / MANIFEST) or (config.shard == 0 and is_there(out / run_folder.METRICS)):
        raise run_folder.started_before(out)
    # What makes it a run is looked for last: another shard that starts at the same time may be making it.
    if names_in(out) and not is_there(out / run_folder.CHECKPOINTS):
        raise OutputError(f"run {out} exists and is not a run: name another place or remove it")


def _generation_file(run: Path, number: int) -> Path:
    return run.joinpath(run_folder.CHECKPOINTS, _generation_name(number))


def _generation_name(number: int) -> str:
    return f"{GENERATION}{number:06d}"


def _mark_file(config: ServerConfig, shard: int) -> str:
    return os.path.join(config.out, run_folder.CHECKPOINTS, f".shard-{shard}-of-{config.shards}")


def write_mark(config: ServerConfig, shard: int, mark: Mark) -> None:
    """Write the mark of a shard to this shard's folder."""
    write_text_atomically(Path(_mark_file(config, shard)), json.dumps(asdict(mark)) + "\n")


def _text(path: str) -> str | None:
    """Return the content of a file, None if there is no such file."""
    missing = suppress(FileNotFoundError, NotADirectoryError)
    with damage_errors(f"{path} cannot be read"), missing, open(path, "rb") as stream:
        return stream.read().decode()
    return None


def _parse(text: str, kind: type[Generation | Mark], where: str) -> Mapping[str, Any]:
    """Return the fields of a generation or mark; none for a mark that was only just created."""
    with damage_errors(f"{where} cannot be read", RecursionError):
        found = json.loads(text or "{}")
    known = {field.name: field.type for field in fields(kind)}
    if not isinstance(found, dict) or any(type(value) is not known.get(name) for name, value in found.items()):
        raise _not_ours(where)
    return found


def _not_ours(where: str) -> ArtifactError:
    return ArtifactError(f"{where} is not a file that a shard writes: remove it, or train in another folder")
