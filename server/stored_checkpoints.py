"""Keep this shard's checkpoints in a store, too, and bring them back to a shard that has lost its disk.

A store is like another shard that always answers (`checkpoints.copies`), and less: it has parts of checkpoints and, in
`shard-K-of-S.json`, the newest generation that a shard knew, without its secret. So a shard that has the generation
from a store alone never joins it, but begins the next. A thread of its own uploads; training never waits for it.
"""

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Self

from glovewire.common import errors, log
from glovewire.common.storage.artifacts import make_folder, output_errors
from glovewire.common.storage.run_folder import CHECKPOINTS
from glovewire.common.storage.stores import Store

from .checkpoints import generations
from .checkpoints.copies import PART, bring_part, parts_in
from .checkpoints.generations import Generation
from .config import ServerConfig

EVERY_S = 0.5
"""Time between two looks for what is to be uploaded."""
RETRY_S = 2.0
PARTING_S, FAILING_S = 120.0, 10.0
"""How long a shard that ends stays for a store that is slow, and for one that fails."""
KNOWN = re.compile(r"shard-\d+-of-\d+\.json", re.ASCII)

logger = logging.getLogger(__name__)


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- from the store

    def bring(self) -> None:
        """Bring the checkpoints that this shard lacks; for a new run, require that the store has none of this shard.

        A store that fails is an error only for a shard that knows nothing of its run: it would begin anew.
        """
        if self._config.checkpoints is None:
            return
        try:
            with Store(self._config.checkpoints) as store:
                self._bring(store)
        except errors.StoreError as error:
            if generations.newest(self._config.out) is None:
                raise
            logger.warning(log.line("not_brought", why=error))

    def _bring(self, store: Store) -> None:
        names = store.names()
        parts = self._parts(names)
        if not (self._config.recover or self._config.resume or self._config.join):
            if f"{self._name}.json" in names or any(name.endswith(f".{self._name}") for name in parts):
                raise errors.OutputError(
                    f"{store.url} holds checkpoints of a run: go on with it (--recover), name "
                    "another place or remove them"
                )
            return
        if not names:
            return
        with output_errors(self._config.out, "run"):
            make_folder(self._folder)
        for name in sorted(parts - parts_in(self._folder).keys()):
            with contextlib.suppress(errors.ArtifactError):  # it was not uploaded to the end
                checksum = store.manifest(f"{name}/")[0].checksum
                if bring_part(store, self._folder / name, checksum):
                    logger.info(log.line("brought", part=name))
        for name in filter(KNOWN.fullmatch, names):
            found = generations.parse_generation((store.read(name) or b"").decode(errors="replace"), name)
            newest = generations.newest(self._config.out)
            if newest is None or newest.number < found.number:
                generations.create(self._config.out, replace(found, secret=""), by="store")

    @staticmethod
    def _parts(names: Mapping[str, object]) -> set[str]:
        """Return the names of the parts of checkpoints that a store holds, whole or not."""
        return {folder for folder, _, _ in (name.partition("/") for name in names) if PART.fullmatch(folder)}

    # ---- to the store

    def follow(self) -> None:
        """Upload what this shard writes from now on."""
        if self._config.checkpoints is not None:
            self._thread = threading.Thread(target=self._follow, name="checkpoints", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread once everything is uploaded, or the store fails or is too slow; may be called twice."""
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(PARTING_S)
            if thread.is_alive():
                logger.warning(log.line("not_stored", url=self._config.checkpoints, why=f"not in {PARTING_S:g} s"))
                if self._store is not None:
                    self._store.close()
                thread.join(FAILING_S)

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
        """Upload what the store lacks, and remove what is no longer here; return whether that went well."""
        try:
            if self._store is None:
                self._store = Store(self._config.checkpoints or "")
                self._there, self._generation = self._listed(self._store), None
            self._upload(self._store)
        except errors.GlovewireError as error:
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
        return True

    def _listed(self, store: Store) -> dict[str, str]:
        """Return the checksums of this shard's parts in the store, "" for one that is not whole."""
        found = {}
        for name in self._parts(store.names()):
            if name.endswith(f".{self._name}"):
                found[name] = ""
                with contextlib.suppress(errors.ArtifactError):
                    found[name] = store.manifest(f"{name}/")[0].checksum
        return found

    def _upload(self, store: Store) -> None:
        generation = generations.newest(self._config.out)  # before the parts: all that it needs is then among them
        here = {name: each for name, each in parts_in(self._folder).items() if name.endswith(f".{self._name}")}
        for name, checksum in here.items():
            if self._there.get(name) != checksum:
                self._there[name] = ""
                with contextlib.suppress(errors.ArtifactError):  # it was removed meanwhile
                    began = time.monotonic()
                    store.upload(self._folder / name, name)
                    self._there[name] = checksum
                    logger.info(log.line("stored", part=name, seconds=f"{time.monotonic() - began:.1f}"))
        for name in sorted(self._there.keys() - here.keys()) if here else ():  # a new disk has none
            store.remove(name)
            del self._there[name]
        if generation is not None and generation != self._generation:
            store.write(f"{self._name}.json", json.dumps(asdict(replace(generation, secret=""))).encode())
            self._generation = generation
