"""Shards that share no folder: each has its own disk, which it may lose, and a socket for the other shards.

`ApartOracle` checks what decision 30 promises as long as at most one disk is lost at a time: a checkpoint that every
shard has on its disk is not lost, no shard serves twice in one generation, and no two in different ones of one number.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from disk import Disk
from network import Network, SimulatedLinks
from oracles import CheckpointOracle, reached, require
from threads import threading
from world import Clock, Process, World

from glovewire.common.errors import GlovewireError
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.wire import Frame
from glovewire.common.storage.artifacts import MANIFEST, Manifest
from glovewire.common.storage.run_folder import CHECKPOINTS
from glovewire.common.storage.strip_files import SUFFIX
from glovewire.common.transport import client as clients
from glovewire.server import peers
from glovewire.server.checkpoints import files, generations
from glovewire.server.checkpoints.copies import Copies, Heard, _checksum
from glovewire.server.checkpoints.cuts import MAX_UNWRITTEN
from glovewire.server.checkpoints.generations import Generation, Mark
from glovewire.server.config import ServerConfig
from glovewire.server.peer_socket import Answer
from glovewire.server.peers import FIRST_LOOK_S

if TYPE_CHECKING:
    from cluster import Cluster

APART_FAULTS = (
    "cut shards",
    "slow shards",
    "isolate shard",
    "lose disk",
    "lose parts",
    "shard loses power",
    "damage strip",
    "old disk",
    "dying disk",
)
APART_END_FAULTS = ("cut shards", "slow shards", "isolate shard", "lose disk", "shard loses power", "leave behind")
LEFT_OVER = MAX_UNWRITTEN
"""Most copies of parts that another shard may have at the end though their owner has removed the parts: it removes one
for each checkpoint that it wrote since the other looked, and at the end of a run it writes all due ones at once."""
LONGER = 3.0
"""Factor by which cuts between shards last longer than others: starting shards wait 20 s for each other."""


def address_of(shard: int) -> str:
    """Return the address at which other shards reach a shard."""
    return f"tcp://10.0.0.{shard + 1}:5557"


def folder_of(root: Path, shard: int) -> Path:
    """Return the disk of a shard below `root`, with its run folder and its cache of datasets."""
    return root / f"shard-{shard}"


class SimulatedPeerSocket:
    """Stands for `PeerSocket`."""

    def __init__(
        self, network: Network, address: str, answer: Answer, answered: Callable[[str, m.Folder], object]
    ) -> None:
        self._network, self._address, self._answer, self._answered = network, address, answer, answered
        self._arrived: deque[tuple[bytes, list[Frame]]] = deque()
        self._thread: Process | None = None
        self._wake: Callable[[], object] = lambda: None
        network.listeners[address] = self

    def arrive(self, peer: bytes, frames: list[Frame]) -> None:
        """Take a request from the network; requests to a process that has ended are lost."""
        if self._thread is None or self._thread.alive:
            self._arrived.append((peer, frames))
            self._wake()

    def serve(self, is_over: Callable[[], bool]) -> None:
        """See PeerSocket."""
        world = self._network.world
        self._thread = world.running
        while not is_over():
            if not self._arrived:
                self._wake = world.waker()
                world.wait(0.05)
            while self._arrived:
                peer, frames = self._arrived.popleft()
                number, reply = self._answer([b"", *frames])
                if isinstance(reply, m.Folder):
                    self._answered(self._network.name_of(peer), reply)
                self._network.to_client(peer, [bytes(frame) for frame in wire.encode(number, reply)])

    def close(self) -> None:
        """See PeerSocket."""
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]


@contextlib.contextmanager
def apart_simulated(world: World, cluster: Callable[[], Cluster]) -> Iterator[None]:
    """Let shards that share no folder use virtual time and the simulated network, and oracles see their generations."""

    def client(addresses: Sequence[str], name: str, dataset: str, silence_s: float, _: object) -> clients.RequestClient:
        links = SimulatedLinks(cluster().network, name, tuple(addresses))
        return clients.RequestClient(addresses, name, dataset, silence_s, None, links)

    def socket(address: str, _: object, __: int, answer: Answer) -> SimulatedPeerSocket:
        def answered(name: str, folder: m.Folder) -> None:
            if (oracle := cluster().apart) is not None:
                oracle.answers(name, address, folder)

        return SimulatedPeerSocket(cluster().network, address, answer, answered)

    successor, create, bring = generations.successor, generations.create, Copies.bring

    def bringing(copies: Copies, client: clients.RequestClient, peer: int, *, own: bool = False) -> Heard:
        heard = None
        try:
            heard = bring(copies, client, peer, own=own)
        finally:
            if (oracle := cluster().apart) is not None:
                oracle.asks(copies._config.shard, peer, in_vain=heard is None or not heard.is_copied)
        return heard

    def following(config: ServerConfig, current: Generation | None) -> Generation:
        found = successor(config, current)
        for oracle in (cluster().apart, cluster().stored):
            if oracle is not None:
                oracle.chosen(found)
        return found

    def creating(run: Path, generation: Generation, *, by: str) -> None:
        if (oracle := cluster().apart) is not None and world.current is not None:
            with world.observing():
                oracle.creates(run, generation, by)
        create(run, generation, by=by)
        if generation.label and cluster().when_begun:
            with world.observing():
                cluster().when_begun.pop(0)(generation)

    _checksum.cache_clear()  # cached checksums save time, and a run must not depend on the one before
    with contextlib.ExitStack() as stack:
        for name, stands in [
            ("time", Clock(world)), ("threading", threading(world)), ("RequestClient", client), ("PeerSocket", socket),
            ("EVERY_S", world.chance("time between copies").choice([peers.EVERY_S, 1.0, 1.0])),
        ]:  # fmt: skip
            stack.enter_context(mock.patch.object(peers, name, stands))
        stack.enter_context(mock.patch.object(generations, "successor", following))
        stack.enter_context(mock.patch.object(generations, "create", creating))
        stack.enter_context(mock.patch.object(Copies, "bring", bringing))
        yield


def parts_on(run: Path) -> dict[str, bytes]:
    """Return the manifests of the parts of checkpoints in a run folder, by name of the part."""
    found, folder = {}, f"{run / CHECKPOINTS}/"
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if ".shard-" in name and not name.startswith("."):
            with contextlib.suppress(OSError):
                manifest = f"{folder}{name}/{MANIFEST}"
                status = os.stat(manifest)
                found[name] = _read(manifest, status.st_mtime_ns, status.st_ino)
    return found


@lru_cache(1000)
def _read(path: str, modified_ns: int, inode: int) -> bytes:
    """Return the content of a file; time and inode distinguish its versions."""
    del modified_ns, inode
    return Path(path).read_bytes()


class UnionOracle(CheckpointOracle):
    """Restores checkpoints from the parts, or copies of parts, that shards have on their own disks."""

    def __init__(self, root: Path, runs: Sequence[Path], *args: Any) -> None:
        super().__init__(*args)
        self._runs, self._union = runs, root / "union"
        self.gone: set[str] = set()
        """Checkpoints of which a part was lost before another shard had a copy."""

    def announced(self, generation: int, shard: int, label: str) -> None:
        """See CheckpointOracle; a part that had been lost may be written again."""
        name = files.part_folder(self._union, label, shard, self._config.shards).name
        self.gone.discard(name)
        super().announced(generation, shard, label)

    def restore(self, label: str, run: Path | None = None) -> None:
        """Restore a checkpoint from all disks, or from the one with the folder `run`."""
        names = self._parts_of(label)
        if self.is_lost(label):
            return
        if run is None:
            run = self._union
            shutil.rmtree(run, ignore_errors=True)
            (run / CHECKPOINTS).mkdir(parents=True)
            for shard, name in enumerate(names):
                places = [self._runs[shard], *self._runs]
                found = [place for place in places if (place / CHECKPOINTS / name).exists()]
                require(found, f"{name} has been announced, and no disk has it")
                place = next((place for place in found if (place / CHECKPOINTS / name / MANIFEST).exists()), None)
                if place is None:  # the part is being removed, manifest first
                    self.require_kept(reached(label))
                    return
                os.symlink(place / CHECKPOINTS / name, run / CHECKPOINTS / name)
        super().restore(label, run)

    def note_gone(self) -> None:
        """Record parts that no disk has: newer ones were lost, and the owner had removed these."""
        there = set().union(*map(parts_on, self._runs))
        self.gone.update({name for _, label in self._announced for name in self._parts_of(label)} - there)

    def is_lost(self, label: str) -> bool:
        """See CheckpointOracle."""
        return not self.gone.isdisjoint(self._parts_of(label))

    def newest(self) -> Generation | None:
        """See CheckpointOracle; consider all disks."""
        found = [generation for run in self._runs if (generation := generations.newest(run)) is not None]
        return max(found, key=lambda generation: generation.number, default=None)

    def require_kept(self, furthest: float) -> None:
        """Require that the parts of a checkpoint at `furthest` or later are on some disk; see also `ApartOracle`."""
        found: set[str] = set().union(*map(parts_on, self._runs))
        labels = {name.partition(".shard-")[0] for name in found}
        whole = [label for label in labels if found.issuperset(self._parts_of(label))]
        begun = generation.label if (generation := self.newest()) is not None else ""
        kept = max(map(reached, [*whole, begun]))
        require(kept >= furthest, f"{furthest:.0f} rounds or updates were on disks, and {kept:.0f} are left")

    def _parts_of(self, label: str) -> list[str]:
        shards = self._config.shards
        return [files.part_folder(self._union, label, shard, shards).name for shard in range(shards)]


class ApartOracle:
    """Checks the promises of decision 30; `disks` are those of the shards, `runs` their run folders."""

    def __init__(self, world: World, disks: Sequence[Disk], runs: Sequence[Path], checkpoints: UnionOracle) -> None:
        self._world, self.disks, self.runs, self._checkpoints = world, disks, runs, checkpoints
        self._promised: dict[str, float] = {}
        self._kept = -1.0
        self._restored: set[str] = set()
        self._whole: dict[str, tuple[bytes, ...]] = {}
        """Manifests of checkpoints that were found complete, by label."""
        self._contents: dict[int, str] = {}
        self._line = {0: math.inf}
        """The progress of each generation at which the next one began from it, infinity for the newest that serves.

        The run has lost what a generation trained after that point, and all generations that are not listed here.
        """
        self._served: set[tuple[int, int]] = set()
        self._begun: set[str] = set()
        """The generations that shard 0 has had on its disk, by content."""
        self._started: dict[int, tuple[float, bool]] = {}
        """For each shard that does not serve yet: when it was started, and whether its disk was empty then."""
        self._answered: set[tuple[str, str]] = set()
        """Which shards have been answered by which others since they were started, by name and address."""
        self._told: dict[str, set[str]] = {}
        """The parts that a shard was told of last, by its name."""
        self._in_vain: dict[tuple[int, int], Counter[int]] = {}
        """How often a shard has asked others in vain since it copied from one, by (asking shard, copied shard)."""
        self._went_back = False
        self.lost: set[int] = set()
        """Shards that have lost files and do not have everything back yet that the others have."""
        self.dying: set[int] = set()
        """Shards whose disks fail until they are lost."""

    def look(self) -> None:
        """Record which checkpoints every shard has on its disk, since none may be lost; restore each from one disk."""
        found = [parts_on(run) for run in self.runs]
        common = set.intersection(*(set(parts.items()) for parts in found))
        shards = len(self.runs)
        for label in sorted({name.partition(".shard-")[0] for name, _ in common}):
            names = [files.part_folder(Path(), label, shard, shards).name for shard in range(shards)]
            manifests = tuple(found[0].get(name, b"") for name in names)
            if not all(part in common for part in zip(names, manifests, strict=True)):
                continue
            if self._whole.get(label) != manifests and not self._is_whole(label):
                continue
            self._whole[label] = manifests
            if label.startswith(("round-", "update-")) and self._leads_here(label, manifests[0]):
                self._kept = max(self._kept, reached(label))
            if label not in self._restored:
                self._restored.add(label)
                self._checkpoints.restore(label, self.runs[len(self._restored) % shards])
        self.lost = {shard for shard in self.lost if not self._is_back(shard, found)}

    def _is_whole(self, label: str) -> bool:
        """Return whether the parts of a checkpoint belong together."""
        with contextlib.suppress(GlovewireError):
            facts = files.read_facts(self.runs[0], label, len(self.runs))
            return files.is_consistent(facts)
        return False

    def _leads_here(self, label: str, manifest: bytes) -> bool:
        """Return whether the current training descends from a checkpoint; in exclusive order all are the same.

        A generation that begins without checkpoints that cannot be reached writes others with the same names.
        `manifest` is that of the first part.
        """
        facts = Manifest.parse(manifest, "it").facts
        came = self._line.get(facts["generation"], -math.inf)
        return facts["options"]["consistency"] == "exclusive" or reached(label) <= came

    def _is_back(self, shard: int, found: Sequence[dict[str, bytes]]) -> bool:
        """Return whether a shard that lost files has the generation and parts back that all other shards have."""
        others = [each for other, each in enumerate(found) if other != shard]
        numbers = [-1 if (each := generations.newest(run)) is None else each.number for run in self.runs]
        common = set.intersection(*map(set, others))
        served = max((number for where, number in self._served if where == shard), default=-1)
        return common <= found[shard].keys() and numbers[shard] == max(numbers) == served

    def starts(self, shard: int) -> None:
        """Record that a shard is started."""
        mark = self.runs[shard] / CHECKPOINTS / f".shard-{shard}-of-{len(self.runs)}"
        self._started[shard] = self._world.now, not mark.exists()
        self._answered = {each for each in self._answered if each[0] != f"shard-{shard}"}
        self._in_vain = {each: times for each, times in self._in_vain.items() if each[0] != shard}

    def answers(self, name: str, address: str, folder: m.Folder) -> None:
        """Record that the shard at `address` tells the shard called `name` what is in its folder."""
        self._answered.add((name, address))
        self._told[name] = set(json.loads(folder.body.tobytes())["parts"])

    def asks(self, shard: int, other: int, *, in_vain: bool) -> None:
        """Record that a shard has copied from another one, or has asked it in vain."""
        if in_vain:
            self._in_vain.pop((shard, other), None)
            for (asking, _), times in self._in_vain.items():
                times[other] += asking == shard
        else:
            self._in_vain[shard, other] = Counter()

    def chosen(self, generation: Generation) -> None:
        """Record the progress that a generation that a shard wants to begin must not fall behind."""
        self._promised[generation.run] = self._kept

    def creates(self, run: Path, generation: Generation, by: str) -> None:
        """Check a generation that a shard puts on its disk: shard 0 has begun it, once it had heard from all others.

        Its number is new to all shards. A shard that copies the generation has those parts of its initial checkpoint
        that shard 0 has, and that the shard from which it copies had when it listed its parts.
        """
        shard, what = self.runs.index(run), f"generation {generation.number}"
        if generations._generation_file(run, generation.number).exists():
            return
        self._world.tell(f"puts {what} on the disk of shard {shard}, {by}: {generation.run} from {generation.label!r}")
        is_new, is_copy = generation.run not in self._begun, by == "copy"
        if by.startswith("shard-"):  # from a store, which has it from a shard
            self._begun.add(generation.run)
        elif shard:
            require(not is_new, f"shard {shard} has {what}, which shard 0 has not begun")
        elif is_new and not is_copy:
            if 0 in self._started and not generation.ended:
                self._require_heard()
            known = [-1 if (each := generations.newest(run)) is None else each.number for run in self.runs]
            require(max(known) < generation.number or self._went_back, f"shard 0 begins {what} after {max(known)}")
        if not shard:
            self._begun.add(generation.run)
        if is_copy and generation.label and not self._went_back and shard not in self.lost:
            parts = [
                files.part_folder(run, generation.label, each, generation.parts).name
                for each in range(generation.parts)
            ]
            at_0, here = (set(parts_on(each)) for each in (self.runs[0], run))
            told = self._told.get(f"shard-{shard}", set())
            missing = at_0.intersection(parts, told) - here - self._checkpoints.gone
            require(not missing, f"shard {shard} has {what}, and lacks {sorted(missing)} from which it begins")

    def _require_heard(self) -> None:
        """Require that all others have told shard 0 what they have, or that it has waited for long enough."""
        began, was_empty = self._started[0]
        clock, others = self._world.clocks["shard 0"], range(1, len(self.runs))
        waited = (self._world.now - began) * clock.rate >= FIRST_LOOK_S or clock.jumped > began
        unheard = [shard for shard in others if ("shard-0", address_of(shard)) not in self._answered]
        where = "on an empty disk" if was_empty else "at once"
        require(not unheard or (waited and not was_empty), f"shard 0 begins {where}, and has not heard of {unheard}")
        old = [
            other for (shard, other), times in self._in_vain.items() if not shard and max(times.values(), default=0) > 1
        ]
        require(not old, f"shard 0 begins {where}, and has not asked {old} again while others did not answer")

    def serves(self, shard: int, number: int) -> None:
        """Check the generation in which a shard is about to serve."""
        path = generations._generation_file(self.runs[shard], number)
        generation = generations.parse_generation(path.read_text(encoding="utf-8"), str(path))
        self._world.tell(f"lets shard {shard} serve in generation {number}")
        known = self._contents.setdefault(number, generation.run)
        require(known == generation.run, f"shard {shard} serves in generation {number} of another content")
        newest = generations.newest(self.runs[shard])
        is_over = self._went_back and newest is not None and newest.ended
        is_new = (shard, number) not in self._served
        require(is_new or is_over, f"shard {shard} serves in generation {number} again")
        self._served.add((shard, number))
        self._started.pop(shard, None)
        begins_at = reached(generation.label, self.runs[shard], generation.parts)
        if number not in self._line:
            begins = generation.label and files.read_facts(self.runs[shard], generation.label, generation.parts)
            before = {each: came for each, came in self._line.items() if begins and each <= begins[0]["generation"]}
            self._line = {each: min(came, begins_at) for each, came in before.items()} | {number: math.inf}
        promised = self._promised.get(generation.run, -1.0)
        require(
            begins_at >= promised,
            f"generation {number} begins from {generation.label or 'nothing'}, and every disk had {promised:.0f}",
        )

    def forget(self) -> None:
        """Record that all disks were lost: nothing that was on them is promised any longer."""
        self._kept = -1.0
        self._restored.clear()
        self._contents.clear()
        self._served.clear()
        self.lost.clear()

    def require_forgotten(self) -> None:
        """Require, at the end, that few copies are left of parts that their owner has removed."""
        found = [parts_on(run) for run in self.runs]
        for owner, holder in itertools.permutations(range(len(found)), 2):
            ends = f".shard-{owner}-of-{len(found)}"
            left = [name for name in found[holder] if name.endswith(ends) and name not in found[owner]]
            require(len(left) <= LEFT_OVER, f"shard {holder} has kept {sorted(left)}")

    # ---- faults

    @property
    def has_whole(self) -> bool:
        """Return whether all disks have had a checkpoint in common since checkpoints were last lost."""
        return self._kept >= 0.0

    def may_lose(self, shard: int) -> bool:
        """Return whether the files of a shard may be lost: one disk at a time, and while others must wait for it.

        Return False if it is the only shard that knows that the run has ended: its workers may be on their way out.
        """
        self.look()
        ended = {each for each, run in enumerate(self.runs) if (known := generations.newest(run)) and known.ended}
        path = self.runs[shard] / CHECKPOINTS / f".shard-{shard}-of-{len(self.runs)}"
        mark = generations.parse_mark(path.read_text(encoding="utf-8"), "it") if path.exists() else Mark()
        return not (self.lost | self.dying) - {shard} and not mark.left and ended != {shard}

    def loses(self, shard: int, names: Sequence[str] | None = None) -> None:
        """Lose the disk of a shard, or only the parts called `names`."""
        parts = parts_on(self.runs[shard])
        others = [parts_on(run) for other, run in enumerate(self.runs) if other != shard]
        lost = parts if names is None else {name: parts[name] for name in names}
        for name, manifest in lost.items():
            if not any(each.get(name) == manifest for each in others):
                self._checkpoints.gone.add(name)
        self.lost.add(shard)
        if names is None:
            self._world.tell(f"loses the disk of shard {shard}")
            self.disks[shard].lose_all()
        for name in names or ():
            self._world.tell(f"loses {name} from the disk of shard {shard}")
            shutil.rmtree(self.runs[shard] / CHECKPOINTS / name)
        self._checkpoints.note_gone()
        if names is not None:  # if it cannot ask the others, it continues without these parts
            self._kept = -1.0
            self.look()

    def goes_back(self, shard: int) -> None:
        """Replace the disk of a shard by an older state, see `Disk.back_up`."""
        before = parts_on(self.runs[shard])
        self._world.tell(f"puts an older state in the place of the disk of shard {shard}")
        self.disks[shard].go_back()
        here = parts_on(self.runs[shard])
        others = [parts_on(run) for other, run in enumerate(self.runs) if other != shard]
        lost = {name for name, manifest in before.items() if here.get(name) != manifest}
        self._checkpoints.gone |= {name for name in lost if not any(each.get(name) == before[name] for each in others)}
        self._checkpoints.note_gone()
        self.lost.add(shard)
        self._kept, self._went_back = -1.0, True
        self.look()


def let_apart_happen(
    cluster: Cluster, oracle: ApartOracle, kind: str, seconds: float, pick: float, *, may_wait: bool = False
) -> bool:
    """Let one of APART_FAULTS happen, see `scenario.Fault`; return False if it finds nothing to harm yet.

    If it `may_wait`, most disks are lost only once a checkpoint is on all of them. Otherwise a shard that is to lose
    parts of checkpoints is killed even if it has none.
    """
    world, network, count = cluster.world, cluster.network, len(cluster.addresses)
    shard = int(pick * count)
    other = (shard + 1 + int(pick * 7919) % (count - 1)) % count
    process, is_cut = cluster.shards[shard], int(pick * 613) % 3 == 0
    match kind:
        case "cut shards":
            for one, two in ((shard, other), (other, shard))[: 1 + int(pick * 613) % 2]:
                network.cut(f"shard-{one}", address_of(two), LONGER * seconds)
        case "isolate shard":
            for each in set(range(count)) - {shard}:
                network.cut(f"shard-{shard}", address_of(each), LONGER * seconds)
                network.cut(f"shard-{each}", address_of(shard), LONGER * seconds)
        case "leave behind":  # one shard learns late what happens next
            let_apart_happen(cluster, oracle, "isolate shard", seconds, pick)
            world.kill(cluster.shards[other])
        case "slow shards":
            network.slow_down(f"shard-{shard}", address_of(other), seconds)
        case "damage strip":
            names = sorted(cluster.workers)
            name = names[int(pick * len(names))]
            strips = sorted(cluster.cache_of(name).glob(f"*/*{SUFFIX}"))
            if not strips:
                return False
            path = strips[int(pick * 7919) % len(strips)]
            world.tell(f"damages {path.name} of {name}")
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            world.kill(cluster.workers[name])
        case "shard loses power":
            world.kill(process)
            world.tell(f"loses power: the machine of shard {shard}")
            oracle.disks[shard].lose_power()
            if is_cut:
                let_apart_happen(cluster, oracle, "isolate shard", seconds, pick)
        case "old disk":
            if not (oracle.has_whole and cluster.all_serve and oracle.may_lose(shard)):
                return False
            oracle.disks[shard].back_up()
            world.after(LONGER * seconds, partial(_go_back, cluster, oracle, shard, seconds, pick))
        case "dying disk":  # it fails now and then before it is lost
            if oracle.dying or not (oracle.has_whole and cluster.all_serve and oracle.may_lose(shard)):
                return False
            world.tell(f"lets the disk of shard {shard} die in {LONGER * seconds:.2f} s")
            oracle.disks[shard].fail(LONGER * seconds, seldom=True)
            oracle.dying.add(shard)
            world.after(LONGER * seconds, partial(_die, cluster, oracle, shard))
        case "lose disk" | "lose parts":
            if may_wait and not oracle.has_whole and (kind == "lose parts" or int(pick * 977) % 4):
                return False
            if not (cluster.all_serve and oracle.may_lose(shard)):
                return False
            parts = sorted(parts_on(cluster.folders[shard]))
            world.kill(process)
            if is_cut:
                let_apart_happen(cluster, oracle, "isolate shard", seconds, pick)
            if kind == "lose disk":
                oracle.loses(shard)
            elif parts:
                oracle.loses(shard, parts[int(pick * 7919) % len(parts) :][:2])
                if cluster.stored is not None:
                    cluster.stored.loses_parts()
    return True


def _die(cluster: Cluster, oracle: ApartOracle, shard: int) -> None:
    """Lose a disk that has been failing."""
    oracle.dying.discard(shard)
    if cluster.all_serve and oracle.may_lose(shard):
        cluster.world.kill(cluster.shards[shard])
        oracle.loses(shard)


def _go_back(cluster: Cluster, oracle: ApartOracle, shard: int, seconds: float, pick: float) -> None:
    """Replace a shard's disk by an older state, as from a backup, and cut the shard off from the others."""
    if oracle.disks[shard].has_backup and cluster.all_serve and oracle.may_lose(shard):
        cluster.world.kill(cluster.shards[shard])
        oracle.goes_back(shard)
        for other in set(range(len(cluster.addresses))) - {shard}:
            cluster.network.cut(f"shard-{shard}", address_of(other), FIRST_LOOK_S + seconds)
            if int(pick * 613) % 2:
                cluster.network.cut(f"shard-{other}", address_of(shard), FIRST_LOOK_S + seconds)
