"""Exchange run folders with the other shards, for shards that share none: a socket and two threads beside the daemon.

The first thread answers the other shards, at any time, also while the daemon writes results. The second one copies from
them (`checkpoints.copies`). A shard without peers has neither.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Self

import zmq

from glovewire.common import log
from glovewire.common.addresses import is_loopback, port_of
from glovewire.common.errors import GlovewireError, NotReady, ProtocolError
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.storage.artifacts import MANIFEST
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport import sockets
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.curve_keys import ClientKeys, ServerKeys
from glovewire.common.transport.download import dataset_of_run

from .checkpoints import generations
from .checkpoints.copies import Copies, begin_at, has_noted
from .checkpoints.generations import Generation, Mark
from .config import ServerConfig

EVERY_S = 0.25
"""Time between two looks into the folders of the others."""
SILENCE_S = 2.0
FIRST_LOOK_S = 20.0
"""A shard that starts waits so long for the folders of all others: on a new disk its own tells nothing of the run."""
BEGIN_S = 60.0
PARTING_S = 10.0
"""A shard that ends stays so long for the others to copy its last words."""
MAX_REQUEST_BYTES = 4096

logger = logging.getLogger(__name__)


class Peers:
    """The other shards of a run, if they have folders of their own; `keys` are this server's."""

    def __init__(self, config: ServerConfig, keys: ServerKeys | None) -> None:
        self._config = config
        self._keys = None if keys is None else ClientKeys(keys.pair, keys.pair.public, config.keys or config.out)
        self._others = [shard for shard in range(config.shards) if config.peers and shard != config.shard]
        self._marks: dict[int, Mapping[int, Mark]] = {}
        self._problems: dict[int, str] = {}
        self._ended, self._copying = threading.Event(), threading.Lock()
        self._threads: list[threading.Thread] = []
        if not self._others:
            return
        self._copies = Copies(config)
        self._context = sockets.Context(None if keys is None else keys.for_shards())
        try:
            self._router, _ = self._context.router(listening(config.peers[config.shard]), MAX_REQUEST_BYTES)
        except GlovewireError:
            self.close()
            raise
        self._start(self._serve, "shards")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def offer(self, dataset: Dataset | None) -> None:
        """Send the dataset of the run to shards that ask for it."""
        if self._others:
            self._copies.dataset = dataset

    @contextlib.contextmanager
    def dataset(self) -> Iterator[Dataset]:
        """Yield the dataset that shard 0 has, which is downloaded unless the cache has it."""
        config = self._config
        with contextlib.ExitStack() as held:
            with self._client(0, BEGIN_S) as client:
                self._patiently(lambda: client.ask(0, m.GetData(MANIFEST, 0)))
                found = dataset_of_run(client, config.cache, config.cache_bytes, verify=config.verify)
                dataset = held.enter_context(found)
            yield dataset

    def _patiently(self, ask: Callable[[], object]) -> None:
        """Ask again while the other shard is not ready."""
        deadline = time.monotonic() + BEGIN_S
        while True:
            try:
                ask()
            except NotReady:
                if time.monotonic() > deadline:
                    raise
                self._ended.wait(EVERY_S)
            else:
                return

    def look(self, patience_s: float = 0.0, *, own: bool = False) -> None:
        """Copy once from every other shard, with `own` also what this one had on a lost disk.

        Waits `patience_s` at most for those that do not answer.
        """
        deadline = time.monotonic() + patience_s
        with _clients() as clients:
            missing = set(self._others)
            while missing:
                missing -= {shard for shard in missing if self._copy(clients, shard, own=own)}
                if missing and time.monotonic() > deadline:
                    logger.warning(log.line("unheard", shards=" ".join(map(str, sorted(missing)))))
                    break
                self._ended.wait(EVERY_S if missing else 0.0)
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

    def confirm(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until another shard knows which generation this one has entered, for FIRST_LOOK_S at most.

        A shard that then loses its disk learns that it died in that generation, and does not enter it again.
        """
        deadline = time.monotonic() + FIRST_LOOK_S
        while self._others and not self._is_known(any) and not is_stopped():
            if time.monotonic() > deadline:
                logger.warning(log.line("unconfirmed", shards=" ".join(map(str, self._others))))
                return
            self._ended.wait(0.02)

    def close(self) -> None:
        """End the threads once the others know how this shard has ended, or have not said so for PARTING_S."""
        deadline = time.monotonic() + PARTING_S
        while self._threads and not self._is_known() and time.monotonic() < deadline:
            self._ended.wait(0.05)
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._others:
            self._context.close()

    def _is_known(self, by: Callable[[Iterable[bool]], bool] = all) -> bool:
        """Return whether all shards that still answer have this shard's mark, or `any` of them."""
        with contextlib.suppress(GlovewireError):
            own = generations.mark_of(self._config)
            return by(has_noted(marks, self._config.shard, own) for marks in list(self._marks.values()))
        return True

    def _start(self, work: Callable[[], None], name: str) -> None:
        self._threads.append(threading.Thread(target=work, name=name))
        self._threads[-1].start()

    # ---- asking

    def _begin(self, generation: Generation) -> None:
        with self._client(0, BEGIN_S) as client:
            self._patiently(lambda: begin_at(client, self._config, generation))

    def _client(self, shard: int, silence_s: float = SILENCE_S) -> RequestClient:
        return RequestClient([self._config.peers[shard]], f"shard-{self._config.shard}", "", silence_s, self._keys)

    def _follow(self) -> None:
        with _clients() as clients:
            while not self._ended.wait(EVERY_S):
                for shard in self._others:
                    self._copy(clients, shard)

    def _copy(self, clients: dict[int, RequestClient], shard: int, *, own: bool = False) -> bool:
        """Copy from one shard; return whether it has answered. After a failure the next try has a new connection."""
        client = clients.get(shard) or clients.setdefault(shard, self._client(shard))
        try:
            with self._copying:
                self._marks[shard] = self._copies.bring(client, shard, own=own)
        except GlovewireError as error:
            if self._problems.get(shard) != str(error):  # each once, until the shard answers again
                self._problems[shard] = str(error)
                logger.warning(log.line("not_copied", shard=shard, why=error))
            self._marks.pop(shard, None)
            clients.pop(shard).close()
            return False
        self._problems.pop(shard, None)
        return True

    # ---- answering

    def _serve(self) -> None:
        poller, zap = zmq.Poller(), self._context.zap
        poller.register(self._router, zmq.POLLIN)
        if zap is not None:
            poller.register(zap.socket, zmq.POLLIN)
        while not self._ended.is_set():
            poller.poll(50)
            if zap is not None:
                zap.answer()
            while sockets.has_message(self._router):
                peer = self._router.recv(zmq.NOBLOCK)
                self._answer(peer, sockets.receive(self._router))

    def _answer(self, peer: bytes, frames: list[wire.Frame]) -> None:
        number = 0
        try:
            if len(frames[0]):
                raise ProtocolError("a request is [empty, greeting, header, arrays...]")
            request = wire.decode(frames[1:])
            number = request.number  # a refusal with number 0 would end the client's session
            reply = self._copies.answer(request.message)
        except GlovewireError as error:
            reply = m.Refused(error.code, str(error)[: m.MAX_EXPLANATION], "")
        with contextlib.suppress(zmq.ZMQError):  # the peer is gone, or asks again
            sockets.send(self._router, [peer, b"", *wire.encode(number, reply)])


@contextlib.contextmanager
def _clients() -> Iterator[dict[int, RequestClient]]:
    """Yield the connections to other shards, by shard, and close them at the end."""
    clients: dict[int, RequestClient] = {}
    try:
        yield clients
    finally:
        for client in clients.values():
            client.close()


def listening(address: str) -> str:
    """Return where a shard listens whose address for the others is `address`: a name may not be known to itself."""
    return address if is_loopback(address) else f"tcp://0.0.0.0:{port_of(address)}"
