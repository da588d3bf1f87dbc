"""Exchange run folders with the other shards, for shards that share none: two threads beside the daemon.

The first thread answers the other shards (`peer_socket`), the second one copies from them (`checkpoints.copies`). A
shard without peers has neither.
"""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from glovewire.common import log
from glovewire.common.endings import LASTING
from glovewire.common.errors import GlovewireError, NotReady, ProtocolError
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.storage.artifacts import MANIFEST
from glovewire.common.storage.cache import make_cache
from glovewire.common.storage.dataset import Dataset
from glovewire.common.text import printable
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.curve_keys import ClientKeys, ServerKeys
from glovewire.common.transport.download import downloaded
from glovewire.common.transport.files import Served

from .checkpoints import generations
from .checkpoints.copies import Copies, Heard, begin_at
from .checkpoints.generations import Generation, Mark
from .config import ServerConfig
from .peer_socket import PeerSocket

EVERY_S = 0.25
"""Seconds between two looks into the folders of the others."""
SILENCE_S = 2.0
FIRST_LOOK_S = 20.0
"""Seconds that a starting shard waits for the folders of all others; on an empty disk it waits until all answer."""
BEGIN_S = 60.0
PARTING_S, PARTING_FOR_GOOD_S = 10.0, 60.0
"""Seconds that an ending shard stays for the others to copy its last files; the second if no generation follows."""

logger = logging.getLogger(__name__)


class Peers:
    """The other shards of a run, if they have folders of their own; `keys` are this server's."""

    def __init__(self, config: ServerConfig, keys: ServerKeys | None) -> None:
        self._config = config
        self._keys = None if keys is None else ClientKeys(keys.pair, keys.pair.public, config.keys or config.out)
        self._others = [shard for shard in range(config.shards) if config.peers and shard != config.shard]
        self._heard: dict[int, Heard] = {}
        self._problems: dict[int, str] = {}
        self._ended, self._copying = threading.Event(), threading.Lock()
        self.copied_at = -math.inf
        """When a piece of a file was last asked of this shard, or of another one by this shard."""
        self._threads: list[threading.Thread] = []
        if not self._others:
            return
        self._copies = Copies(config)
        self._socket = PeerSocket(config.peers[config.shard], keys, config.shards, self._answer)
        self._start(partial(self._socket.serve, self._ended.is_set), "shards")

    def close(self) -> None:
        """End the threads and release the socket."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        if self._others:
            self._socket.close()

    def offer(self, dataset: Dataset | None) -> None:
        """Send the dataset of the run to shards that ask for it."""
        if self._others:
            self._copies.dataset = dataset

    @contextlib.contextmanager
    def dataset(self) -> Iterator[Dataset]:
        """Yield the dataset that shard 0 has, which is downloaded unless the cache has it."""
        config = self._config
        make_cache(config.cache)  # before another shard is waited for
        with contextlib.ExitStack() as held:
            with self._client(0, BEGIN_S) as client:
                self._patiently(lambda: client.ask(0, m.GetData(MANIFEST, 0)))
                found = downloaded(Served(client), config.cache, config.cache_bytes, verify=config.verify)
                dataset = held.enter_context(found)
            yield dataset

    def _patiently(self, ask: Callable[[], object]) -> None:
        """Ask again while the other shard is not ready."""
        deadline = time.monotonic() + BEGIN_S
        while True:
            try:
                ask()
                return
            except NotReady:
                if time.monotonic() > deadline:
                    raise
            self._ended.wait(EVERY_S)

    def look(self, patience_s: float = 0.0) -> None:
        """Copy from every other shard, the first time also what this one had and has lost.

        While one does not answer, or a disk cannot read a part, copy from all again, so that no copy is old, but not
        longer than `patience_s`. On an empty disk, which cannot tell in which generation this shard has died, continue
        until every other shard has answered, and this one has stored the generation and marks of each.
        """
        if not self._others:
            return
        unheard = set(self._others) if generations.mark_of(self._config) is None else set()
        deadline = time.monotonic() + patience_s
        with _clients() as clients:
            own = not self._copies.is_whole
            while missing := [shard for shard in self._others if not self._copy(clients, shard, own=own)]:
                unheard -= {shard for shard, heard in self._heard.items() if heard.is_taken}
                if time.monotonic() > deadline:
                    logger.warning(log.line("unheard", shards=" ".join(map(str, missing)), waits=bool(unheard)))
                    if not unheard:
                        break
                    deadline += FIRST_LOOK_S
                self._ended.wait(EVERY_S)
        self._copies.note_own(heard.marks for heard in list(self._heard.values()))

    def tell_whole(self) -> None:
        """Tell the others that this shard has got back what it had: from now on they forget what it does not have."""
        if self._others:
            self._copies.is_whole = True

    def follow(self) -> None:
        """Copy from the others from now on."""
        if self._others:
            self._start(self._follow, "copies")

    @property
    def begin(self) -> Callable[[Generation], None] | None:
        """Return what begins a generation at shard 0; None if this shard does it itself."""
        return self._begin if self._others and self._config.shard else None

    def confirm(self, generation: Generation, is_stopped: Callable[[], bool]) -> None:
        """Wait until another shard knows that this one has entered `generation`; Superseded if it is not the newest.

        If this shard then loses its disk, it learns from the other that it died in that generation, and does not enter
        it again. Raises Superseded, too, if another shard knows of a different entry: then this one's folder is an
        older state, as from a backup.
        """
        own = generations.mark_of(self._config) or Mark()
        while self._others and not is_stopped():
            end = generations.announced_ending(self._config, generation)
            if generations.has_ended(self._config, generation) or (end is not None and end.ending not in LASTING):
                return  # the others may be gone
            there = [heard for heard in list(self._heard.values()) if heard.generation == generation]
            if any(noted.entry != own.entry for heard in there if (noted := self._noted(heard, own)) is not None):
                was = f"this shard was in generation {own.generation} before, and its folder is an older state"
                raise generations.Superseded(f"{was}: continuing in the next generation")
            if any(self._is_known(heard, own) for heard in there):
                return
            self._ended.wait(0.05)

    def part(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait until the others know how this shard has left, but not longer than PARTING_S or PARTING_FOR_GOOD_S.

        At the end of the run that time begins anew with each piece of a file that is copied, because the others hear of
        the end after they have copied what belongs to it. A shard that has left, too, and no longer answers need not
        know. Raises Superseded if the run continues.
        """
        config, began = self._config, time.monotonic()
        own = generations.mark_of(config) or Mark()
        entered = Generation(own.generation)
        while not all(self._is_known(self._heard.get(shard), own) for shard in self._not_gone(entered)):
            generations.has_ended(config, entered)
            for_good = own.left in LASTING and not is_stopped()
            patience_s, since = (PARTING_FOR_GOOD_S, max(began, self.copied_at)) if for_good else (PARTING_S, began)
            if time.monotonic() > since + patience_s:
                return
            self._ended.wait(0.1)

    def _not_gone(self, generation: Generation) -> set[int]:
        return {*self._heard, *generations.not_left(self._config, generation)} if self._others else set()

    def _noted(self, heard: Heard, own: Mark) -> Mark | None:
        """Return the mark of this shard that another one has noted, None if it is older than `own`, the current one."""
        noted = heard.marks.get(self._config.shard)
        return noted if noted is not None and noted.order >= own.order else None

    def _is_known(self, heard: Heard | None, own: Mark) -> bool:
        """Return whether another shard has told that it knows this one's mark and has got back its own folder."""
        return heard is not None and heard.is_whole and self._noted(heard, own) is not None

    def _start(self, work: Callable[[], None], name: str) -> None:
        self._threads.append(threading.Thread(target=work, name=name))
        self._threads[-1].start()

    # ---- asking

    def _begin(self, generation: Generation) -> None:
        with self._client(0, BEGIN_S) as client:
            self._patiently(lambda: begin_at(client, self._config, generation))

    def _client(self, shard: int, silence_s: float) -> RequestClient:
        client = RequestClient([self._config.peers[shard]], f"shard-{self._config.shard}", "", silence_s, self._keys)
        client.on_sent = lambda message, _: self._note(message)
        return client

    def _note(self, request: m.Message) -> None:
        if isinstance(request, m.GetData):
            self.copied_at = time.monotonic()

    def _follow(self) -> None:
        with _clients() as clients:
            while not self._ended.wait(EVERY_S):
                for shard in self._others:
                    self._copy(clients, shard)

    def _copy(self, clients: dict[int, RequestClient], shard: int, *, own: bool = False) -> bool:
        """Copy from one shard; return whether all was copied. After a failure the next try has a new connection."""
        try:
            client = clients.get(shard) or clients.setdefault(shard, self._client(shard, SILENCE_S))
            with self._copying:
                heard = self._heard[shard] = self._copies.bring(client, shard, own=own)
        except (GlovewireError, OSError) as error:
            if self._problems.get(shard) != str(error):  # each once, until the shard answers again
                self._problems[shard] = str(error)
                logger.warning(log.line("not_copied", shard=shard, why=error))
            self._heard.pop(shard, None)
            if (failed := clients.pop(shard, None)) is not None:
                failed.close()
            return False
        self._problems.pop(shard, None)
        return heard.is_copied

    # ---- answering

    def _answer(self, frames: list[wire.Frame]) -> tuple[int, m.Message]:
        number = 0
        try:
            if len(frames[0]):
                raise ProtocolError("a request is [empty, greeting, header, arrays...]")
            request = wire.decode(frames[1:])
            number = request.number  # a refusal with number 0 would end the client's session
            reply = self._copies.answer(request.message)
            self._note(request.message)  # not of what was refused: a stranger could keep this shard from ending
            return number, reply
        except GlovewireError as error:
            return number, m.Refused(error.code, printable(str(error), m.MAX_EXPLANATION), "")


@contextlib.contextmanager
def _clients() -> Iterator[dict[int, RequestClient]]:
    """Yield the connections to other shards, by shard, and close them at the end."""
    clients: dict[int, RequestClient] = {}
    try:
        yield clients
    finally:
        for client in clients.values():
            client.close()
