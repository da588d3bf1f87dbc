"""Keep a copy of what the other shards write in this shard's run folder, for shards that share no folder.

Every shard serves its folder (`answer`) and copies those of the others into its own (`bring`): their parts of
checkpoints, their marks, and the generations of the run, which shard 0 alone creates. Everything else reads the folder
as if it were shared. A part is copied before the mark or the generation that follows it.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glovewire.common import errors, log
from glovewire.common.protocol import messages as m
from glovewire.common.runtime.descriptors import is_shortage
from glovewire.common.storage import artifacts
from glovewire.common.storage.cache import Source
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import CHECKPOINTS
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.files import Served

from ..config import ServerConfig
from . import files, generations
from .generations import Generation, Mark

FILES = frozenset((artifacts.MANIFEST, files.ROWS, files.VERSIONS))

logger = logging.getLogger(__name__)


class Heard(NamedTuple):
    """What another shard has told: the newest generation that it knows, and the marks by shard.

    `is_whole`: the other shard has got back what it had, see `Copies`. `is_copied`: this shard has copied everything
    that it lacked, and the other's disk could read all of it. `is_taken`: this shard has also stored the other's
    generation and marks. It does so once it has copied the parts, or has failed to copy the same ones twice.
    """

    generation: Generation | None
    marks: Mapping[int, Mark]
    is_whole: bool
    is_copied: bool
    is_taken: bool


class Copies:
    """The copies that one shard has in its run folder, and its replies to the other shards."""

    def __init__(self, config: ServerConfig) -> None:
        self._config, self._folder = config, config.out / CHECKPOINTS
        self.dataset: Dataset | None = None
        """What the other shards may download."""
        self.is_whole = False
        """Whether this shard has got back what it had before its disk was lost; until then it decides nothing."""
        self._had: set[tuple[str, str]] = set()
        self._failed: dict[int, set[str]] = {}
        """The parts that could not be copied the last time, by the shard that was asked."""
        self._noted: dict[int, Mark | None] = {}
        with artifacts.output_errors(config.out, "run"):
            self._folder.mkdir(parents=True, exist_ok=True)
        for shard in range(config.shards):
            files.remove_leftovers(config.out, shard, config.shards)

    # ---- for the other shards

    def answer(self, message: m.Message) -> m.Message:
        """Return the reply to another shard's request; raises the GlovewireError with which it is refused."""
        match message:
            case m.GetFolder():
                return m.Folder(np.frombuffer(json.dumps(self._contents()).encode(), np.uint8))
            case m.GetData() if "/" not in message.file:
                if self.dataset is None:
                    raise errors.NotReady("this shard has no dataset, or has not opened it yet")
                body, size = self.dataset.read(message.file, message.offset, message.allowed)
                return m.Data(message.offset, size, np.frombuffer(body, np.uint8))
            case m.GetData():
                part, _, file = message.file.partition("/")
                if not files.PART.fullmatch(part) or file not in FILES:
                    raise errors.BadRequest(f"{message.file[:80]!r} is no file of a checkpoint")
                body, size = artifacts.read_piece(self._folder / part / file, message.offset, message.allowed)
                return m.Data(message.offset, size, np.frombuffer(body, np.uint8))
            case m.Begin():
                return m.Begun(json.dumps(asdict(self._begin(message.generation))))
        raise errors.ProtocolError(f"{type(message).__name__} is not for shards")

    def _contents(self) -> dict[str, object]:
        """Return what `Folder` says: marks by shard, the newest generation, and the checksums of parts by name."""
        marks = {shard: self._mark(shard) for shard in range(self._config.shards)}
        generation = generations.newest(self._config.out)  # before the parts: all that it needs is then among them
        return {
            "marks": {shard: asdict(mark) for shard, mark in marks.items() if mark is not None},
            "generation": None if generation is None else asdict(generation),
            "parts": parts_in(self._folder),
            "whole": self.is_whole,
        }

    def _begin(self, text: str) -> Generation:
        """Begin a generation unless another shard has begun one of its number; return the newest."""
        if self._config.shard:
            raise errors.BadRequest("shard 0 alone begins generations of the run")
        if not self.is_whole:
            raise errors.NotReady("shard 0 has not read the other shards' folders yet")
        wanted, newest = generations.parse_generation(text, "the generation"), generations.newest(self._config.out)
        if wanted.number == (0 if newest is None else newest.number + 1):
            if wanted.ended and (newest is None or generations.unfinished(self._config, newest)):
                raise errors.NotReady("shard 0 has not the final checkpoints of all shards yet")
            generations.create(self._config.out, wanted, by="other")
            newest = generations.newest(self._config.out)
        if newest is None:
            raise errors.NotReady("shard 0 has no generation of the run yet")
        return newest

    # ---- from the other shards

    def bring(self, client: RequestClient, peer: int, *, own: bool = False) -> Heard:
        """Copy what shard `peer` has and this one lacks, with `own` also parts that this shard had.

        Raises the errors of `client.ask`, and ProtocolError or ArtifactError if the answers make no sense.
        """
        reply = client.ask(0, m.GetFolder())
        try:
            found = json.loads(reply.body.tobytes() if isinstance(reply, m.Folder) else b"")
            marks = {
                int(shard): generations.parse_mark(json.dumps(mark), f"the mark of shard {shard}")
                for shard, mark in found["marks"].items()
            }
            parts = {str(name): str(checksum) for name, checksum in found["parts"].items()}
            newest = found["generation"] and generations.parse_generation(json.dumps(found["generation"]), "it")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise errors.ProtocolError(f"{client.where(0)} sent no list of its run folder ({error})") from error
        here, failed = parts_in(self._folder), set()
        for name, checksum in parts.items():
            if checksum and self._lacks(name, checksum, peer, here, own=own):
                if bring_part(Served(client), self._folder / name, checksum):
                    self._had.add((name, checksum))
                else:
                    failed.add(name)
        if found.get("whole") is True:
            self._forget(peer, parts)
        before, self._failed[peer] = self._failed.get(peer, set()), failed
        is_copied, is_taken = all(parts.values()) and not failed, failed <= before
        heard = Heard(newest, marks, found.get("whole") is True, is_copied, is_taken)
        if not is_taken:
            return heard  # what follows these parts is taken once they have been asked for again
        known = generations.newest(self._config.out)
        if newest and (known is None or known.number < newest.number):
            generations.create(self._config.out, newest, by="copy")
        elif newest and known and known.number == newest.number and known != newest and not self._config.shard:
            # shard 0 lost its disk while the other could not be asked, and began the run anew: begin a common one
            generations.create(self._config.out, generations.successor(self._config, known), by="copy")
        for shard, mark in marks.items():
            if 0 <= shard < self._config.shards and shard != self._config.shard:
                self._note(shard, mark)
        return heard

    def note_own(self, heard: Iterable[Mapping[int, Mark]]) -> None:
        """Keep the latest mark of this shard that others have noted: it may have lost its own."""
        for marks in heard:
            if (mark := marks.get(self._config.shard)) is not None:
                self._note(self._config.shard, mark)

    def _lacks(self, name: str, checksum: str, peer: int, here: Mapping[str, str], *, own: bool) -> bool:
        """Return whether to copy a part: it is missing and was not removed, or its owner has another version."""
        match = files.PART.fullmatch(name)
        if match is None or (int(match["shard"]) == self._config.shard and not own) or here.get(name) == checksum:
            return False
        is_owner = int(match["shard"]) == peer and match["shards"] == str(self._config.shards)
        return is_owner if name in here else (name, checksum) not in self._had

    def _forget(self, peer: int, parts: Mapping[str, str]) -> None:
        """Remove the copies of parts that their owner has removed; not if it has none at all, as on a new disk."""
        ends = f".shard-{peer}-of-{self._config.shards}"
        if any(name.endswith(ends) for name in parts):
            for name, checksum in parts_in(self._folder).items():
                if name.endswith(ends) and name not in parts:
                    self._had.add((name, checksum))  # another shard may still have a copy
                    shutil.rmtree(self._folder / name, ignore_errors=True)

    def _note(self, shard: int, mark: Mark) -> None:
        """Keep the mark of a shard if it is later than the one that is known."""
        known = self._mark(shard)
        if known is None or known.order < mark.order:
            generations.write_mark(self._config, shard, mark)
            self._noted[shard] = mark

    def _mark(self, shard: int) -> Mark | None:
        """Return the mark of a shard in the folder; nothing else writes those of the others, so each is read once."""
        if shard == self._config.shard:
            return generations.mark_of(self._config)
        if shard not in self._noted:
            self._noted[shard] = generations.mark_of(self._config, shard)
        return self._noted[shard]


def parts_in(folder: Path) -> dict[str, str]:
    """Return the checksums of the intact parts of checkpoints in a run's folder of checkpoints, by name.

    The checksum of one that is there and cannot be read is "". Raises ArtifactError if the folder cannot be read or too
    many files are open.
    """
    found = {}
    for name in filter(files.PART.fullmatch, sorted(artifacts.names_in(folder))):
        try:
            status = os.stat(f"{folder}/{name}/{artifacts.MANIFEST}")
            found[name] = _checksum(f"{folder}/{name}", status.st_mtime_ns, status.st_ino)
        except (errors.ArtifactError, OSError) as error:
            if is_shortage(error):
                raise
            if artifacts.is_unreadable(error):
                found[name] = ""
    return found


def bring_part(source: Source, folder: Path, checksum: str, name: str = "") -> bool:
    """Copy the part of a checkpoint called `name`, by default as `folder`; return False if its owner removes it.

    Raises OutputError if the copy cannot be written, or not be read again.
    """
    name = name or folder.name
    try:
        with artifacts.output_errors(folder, files.KIND), artifacts.atomic(folder, replace_folder=True) as scratch:
            scratch.mkdir()
            manifest, text = source.manifest(f"{name}/")
            for file in sorted(FILES & manifest.files.keys()):
                source.fetch(f"{name}/{file}", manifest.files[file]["bytes"], scratch / file)
            with artifacts.atomic_stream(scratch / artifacts.MANIFEST) as stream:  # which also syncs the folder
                stream.write(text)
            if artifacts.Manifest.load(scratch, files.KIND, files.SCHEMA).checksum != checksum:
                raise errors.ArtifactError(f"{name} has changed meanwhile")
    except (errors.ArtifactError, errors.BadRequest) as error:
        if artifacts.is_unreadable(error):
            raise errors.OutputError(f"the copy of {name} cannot be read again: {error}") from error
        logger.debug(log.line("not_copied", part=name, why=error))
        return False
    return True


def begin_at(client: RequestClient, config: ServerConfig, generation: Generation) -> None:
    """Ask shard 0 to begin a generation, and store its answer: the newest generation."""
    reply = client.ask(0, m.Begin(json.dumps(asdict(generation))))
    if not isinstance(reply, m.Begun):
        raise errors.ProtocolError(f"{client.where(0)} did not say which generation it has begun")
    begun = generations.parse_generation(reply.generation, "the generation that shard 0 sent")
    generations.create(config.out, begun, by="begun")


@lru_cache(4096)
def _checksum(folder: str, modified_ns: int, inode: int) -> str:
    """Return the checksum of a part's manifest; time and inode are those of its file, and tell versions apart."""
    del modified_ns, inode
    return artifacts.Manifest.read(Path(folder)).checksum
