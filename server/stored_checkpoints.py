"""Keep this shard's checkpoints in a store, too, and bring them back to a shard that has lost its disk.

A store resembles a shard that always answers (`checkpoints.copies`), but holds only parts of checkpoints and, in
`shard-K-of-S.json`, the newest generation that a shard knew, without its secret. So a shard that has the generation
from a store alone never joins it, but begins the next. A thread of its own uploads; training never waits for it.
"""

import contextlib
import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from pathlib import Path

from glovewire.common import errors, log
from glovewire.common.storage.artifacts import MANIFEST, Manifest, flush_path, make_folder, output_errors
from glovewire.common.storage.run_folder import CHECKPOINTS
from glovewire.common.storage.stores import Store

from .checkpoints import files, generations
from .checkpoints.copies import bring_part, parts_in
from .checkpoints.generations import Generation
from .config import ServerConfig

EVERY_S = 0.5
"""Time between two looks for what is to be uploaded."""
RETRY_S = 2.0
PARTING_S, FAILING_S = 120.0, 10.0
"""Seconds that an ending shard stays for a store that is slow, and for one that fails."""
KNOWN = re.compile(r"shard-\d+-of-\d+\.json", re.ASCII)

logger = logging.getLogger(__name__)


def bring(url: str, run: Path, shard: int, shards: int) -> None:
    """Bring the checkpoints and generations that a shard's folder `run` lacks from a store.

    A store that fails is an error only for a shard that knows nothing of its run: it would begin anew.
    """
    try:
        with Store(url) as store:
            _bring(store, run, f"shard-{shard}-of-{shards}")
    except errors.StoreError as error:
        if generations.newest(run) is None:
            raise
        logger.warning(log.line("not_brought", why=error))


def _bring(store: Store, run: Path, who: str) -> None:
    names, folder = store.names(), run / CHECKPOINTS
    if not names:
        return
    with output_errors(run, "run"):
        make_folder(folder)
    for name in sorted(_parts(names) - {name for name, checksum in parts_in(folder).items() if checksum}):
        with contextlib.suppress(errors.ArtifactError):  # it was not uploaded to the end
            checksum = store.manifest(f"{name}/")[0].checksum
            own = folder / f".{who}.{name}"  # others may bring it to a shared folder at the same time
            if bring_part(store, own, checksum, name):
                _move(own, folder / name)
                logger.info(log.line("brought", part=name))
    for name in filter(KNOWN.fullmatch, names):
        found = generations.parse_generation((store.read(name) or b"").decode(errors="replace"), name)
        newest = generations.newest(run)
        if newest is None or newest.number < found.number:
            generations.create(run, replace(found, secret=""), by=who)  # others do the same in a shared folder


def _move(own: Path, part: Path) -> None:
    """Give a part that was brought its name, unless another shard has been faster."""
    with output_errors(part, files.KIND):
        if not parts_in(part.parent).get(part.name):
            shutil.rmtree(part, ignore_errors=True)  # it is damaged, or not there
            try:
                own.rename(part)
            except OSError:
                if not parts_in(part.parent).get(part.name):
                    raise
            flush_path(part.parent)
        shutil.rmtree(own, ignore_errors=True)


def _parts(names: Iterable[str]) -> set[str]:
    """Return the names of the parts of checkpoints that a store holds, whole or not."""
    return {folder for name in names if files.PART.fullmatch(folder := name.partition("/")[0])}


def _manifests(store: Store, names: Collection[str], label: str, shards: int) -> dict[str, Manifest]:
    """Return the manifests of a checkpoint's parts by name; ArtifactError if one is not among the store's `names`."""
    parts = [files.part_name(label, shard, shards) for shard in range(shards)]
    if missing := [part for part in parts if f"{part}/{MANIFEST}" not in names]:
        raise errors.ArtifactError(f"{store.url} lacks {missing[0]}")
    return {part: store.manifest(f"{part}/")[0] for part in parts}


class StoredCheckpoints:
    """What one shard has in the store that `--checkpoints` names; does nothing without one."""

    def __init__(self, config: ServerConfig) -> None:
        self._config, self._folder = config, config.out / CHECKPOINTS
        self._name = f"shard-{config.shard}-of-{config.shards}"
        self._store: Store | None = None
        self._there: dict[str, str] = {}
        self._generation: Generation | None = None
        self._problem = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """End the thread once everything is uploaded, or the store fails or is too slow."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(PARTING_S)
            if self._thread.is_alive():
                logger.warning(log.line("not_stored", url=self._config.checkpoints, why=f"not in {PARTING_S:g} s"))
                if self._store is not None:
                    self._store.close()
                self._thread.join(FAILING_S)

    # ---- from the store

    def bring(self) -> None:
        """Bring what this shard lacks, see `bring`; for a new run, require that the store has nothing of this shard."""
        config = self._config
        if config.checkpoints is None:
            return
        if config.recover or config.resume or config.join:
            bring(config.checkpoints, config.out, config.shard, config.shards)
            return
        with Store(config.checkpoints) as store:
            names = store.names()
            if f"{self._name}.json" in names or any(name.endswith(f".{self._name}") for name in _parts(names)):
                raise errors.OutputError(
                    f"{store.url} holds checkpoints of a run: continue that run (--recover), name "
                    "another place or remove them"
                )

    # ---- to the store

    def follow(self) -> None:
        """Upload what this shard writes from now on."""
        if self._config.checkpoints is not None:
            self._thread = threading.Thread(target=self._follow, name="checkpoints", daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        """Upload until this shard ends, and then until everything is there or the store has failed for FAILING_S."""
        wait_s = 0.0
        while not self._ended.wait(wait_s):
            wait_s = EVERY_S if self._try() else RETRY_S
        deadline = time.monotonic() + FAILING_S
        while not self._try() and time.monotonic() < deadline:
            time.sleep(EVERY_S)
        if self._store is not None:
            self._store.close()

    def _try(self) -> bool:
        """Upload what the store lacks, and remove what is no longer here; return whether nothing is left to be done."""
        try:
            if self._store is None:
                self._store = Store(self._config.checkpoints or "")
                self._there, self._generation = self._listed(self._store), None
            is_done = self._upload(self._store)
        except (errors.GlovewireError, OSError) as error:
            if self._problem != str(error):  # each once, until the store answers again
                self._problem = str(error)
                logger.warning(log.line("not_stored", why=error, then="the checkpoint stays here; it is tried again"))
            if self._store is not None:
                self._store.close()
                self._store = None
            return False
        if self._problem:
            self._problem = ""
            logger.info(log.line("stored_again", url=self._store.url))
        return is_done

    def _listed(self, store: Store) -> dict[str, str]:
        """Return the checksums of this shard's parts in the store, "" for one that is not whole."""
        found = {}
        for name in sorted(_parts(store.names())):
            if name.endswith(f".{self._name}"):
                found[name] = ""
                with contextlib.suppress(errors.ArtifactError):
                    found[name] = store.manifest(f"{name}/")[0].checksum
        return found

    def _upload(self, store: Store) -> bool:
        """Do what `_try` says, and return what it returns; raises what keeps the store from it."""
        generation = generations.newest(self._config.out)  # before the parts: all that it needs is then among them
        here = {name: each for name, each in parts_in(self._folder).items() if name.endswith(f".{self._name}")}
        lacking = [name for name, checksum in here.items() if checksum and self._there.get(name) != checksum]
        for name in sorted(lacking, key=lambda name: bool(self._there.get(name))):  # first those that replace nothing
            if self._there.get(name) and len(lacking) > 1 and not self._may_replace(store, name):
                continue
            self._there[name] = ""
            with contextlib.suppress(errors.ArtifactError):  # it was removed, or written again
                began = time.monotonic()
                store.upload(self._folder / name, name)
                self._there[name] = here[name]
                logger.info(log.line("stored", part=name, seconds=f"{time.monotonic() - began:.1f}"))
        gone = sorted(self._there.keys() - here.keys()) if here else ()  # a new disk has none
        for name in self._superseded(store, gone) if gone else ():
            store.remove(name)
            del self._there[name]
        if generation is not None and generation != self._generation:
            store.write(f"{self._name}.json", json.dumps(asdict(replace(generation, secret=""))).encode())
            self._generation = generation
        return not here or (all(here.values()) and self._there == here)

    def _may_replace(self, store: Store, name: str) -> bool:
        """Return whether the store keeps a whole checkpoint while a part of another one is replaced.

        A part is replaced that was written again, because the training had gone back.
        """
        names, whole = store.names(), set()
        matches = [match for part in sorted(_parts(names)) if (match := files.PART.fullmatch(part))]
        for label, shards in dict.fromkeys((match["label"], int(match["shards"])) for match in matches):
            with contextlib.suppress(errors.ArtifactError, *files.BAD_FACTS):
                if files.is_consistent([each.facts for each in _manifests(store, names, label, shards).values()]):
                    whole.add(label)
        return name.partition(".")[0] not in whole or len(whole) > 1

    def _superseded(self, store: Store, gone: Collection[str]) -> list[str]:
        """Return the parts in `gone` that are not whole in the store, or no newer than a whole checkpoint there.

        The others stay: another shard may be slower to upload, so that the store has only old parts of it.
        """
        newest, found, first = self._newest_whole(store, gone), [], f"shard-0-of-{self._config.shards}"
        for name in gone:
            try:
                facts = store.manifest(f"{name}/")[0].facts
                if self._config.shard:
                    with contextlib.suppress(errors.ArtifactError):  # only shard 0 counts all
                        facts = store.manifest(f"{name.removesuffix(self._name)}{first}/")[0].facts
                reached = files.reached(facts)
            except (errors.ArtifactError, *files.BAD_FACTS):  # it was not uploaded to the end
                found.append(name)
            else:
                if newest is not None and reached <= newest:
                    found.append(name)
        return found

    def _newest_whole(self, store: Store, gone: Collection[str]) -> tuple[int, int] | None:
        """Return round and gradients of the newest checkpoint of which the store has all parts as they are here.

        One with a part in `gone` does not count: another shard may just have brought that back from the store.
        """
        here, names, run = parts_in(self._folder), store.names(), self._config.out
        for round, gradients, label, shards in sorted(files.complete(run), reverse=True):
            with contextlib.suppress(errors.ArtifactError):
                there = _manifests(store, names, label, shards)
                if all(part not in gone and each.checksum == here.get(part) for part, each in there.items()):
                    return round, gradients
        return None
