"""A run and its faults, drawn from one seed, and what must hold whatever happens.

Each fault comes after a number of messages. After the last fault the network is good, killed processes are restarted,
and the run must end within ENDS_WITHIN_S.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import random
import shutil
import signal
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dense_model
import numpy as np
from apart import APART_END_FAULTS, APART_FAULTS, folder_of, let_apart_happen
from cluster import Cluster, opened, simulated
from disk import DISK_FAULTS, Calls, Disk
from handmade import random_dataset
from network import Weather
from oracles import CheckpointOracle, ShardOracle
from stored import STORE_END_FAULTS, STORE_FAULTS, ObjectStore, let_store_happen
from visitors import SILENCE_S
from world import Broken, Overdue, World

from glovewire.common.array_types import Rows
from glovewire.common.endings import Ending
from glovewire.common.errors import (
    ArtifactError,
    DeadlineExceeded,
    Interrupted,
    NotReady,
    OutputError,
    StoreError,
)
from glovewire.common.model.options import CLOCKS, TrainingOptions
from glovewire.common.protocol import messages as m
from glovewire.common.storage import run_folder
from glovewire.common.storage.artifacts import PARTIAL
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import CHECKPOINTS
from glovewire.server.checkpoints import files, generations
from glovewire.server.checkpoints.cuts import FINAL, MAX_UNWRITTEN, Cut
from glovewire.server.checkpoints.generations import GENERATION
from glovewire.server.consistency.blocks import ExclusiveBlocks
from glovewire.server.core.core import Core, Effects
from glovewire.server.sessions import Peer

FAULTS = (
    "kill worker",
    "kill shard",
    "stop worker",
    "stop shard",
    "cut",
    "cut all",
    "leave",
    "jump clock",
    "cut visitor",
    "kill visitor",
    "lose worker",
    "slow link",
    "lose one way",
    "fill queue",
)
END_FAULTS = ("kill worker", "kill shard", "stop shard", "cut", "lose one way", "kill while writing", "power failure")
"""Faults that also come when the run begins to end."""
MORE_END_FAULTS = ("stop worker", "cut all", "slow link", "fill queue", "cut visitor", "disk full", "disk fails")
"""More of them, since draw 10."""
SINCE = {
    "damage checkpoint": 3, "liar": 3, "damage strip": 4, "fill queue": 6, "idler": 6, "damage beginning": 10,
    "old disk": 10, "dying disk": 11,
}  # fmt: skip
"""The draw that introduced a kind of fault or a visitor; those not listed exist since draw 1. See DRAW."""
VISITORS = {"monitor": 0.25, "admin": 0.25, "scorer": 0.1, "finisher": 0.1, "liar": 0.2, "idler": 0.1}
"""The share of seeds with a monitor, an administrator, one that resumes a held run after every epoch, one that ends the
run, a peer that sends what must be refused, and a peer that takes strips and trains nothing."""
POLICIES = ("none", "none", "inverse", "hyperbolic:2", "gap", "dc:0.5")
"""Policies of staleness. Synchronous training has no staleness, so they change nothing there."""
INIT, WITH_ROLES = 0.2, 0.3
"""The shares of seeds whose rows begin with the vectors of another run, and in which keys have roles."""
DRAW = 12
"""Version of what a seed draws; the tables below tell what each took first. Draw 1 is without stores. 2 is without
hostile peers, roles, initial vectors from another run, policies of staleness, and damaged checkpoints. Up to 4, all
runs ended with n-grams. Up to 6, uploads were looked for up to fifty times a second. Up to 7, a fault that found
nothing to harm was not retried; every shard had trained rows. Up to 9, each run could have faults of all kinds, each
at its own time; fewer kinds came at the end; no disk got an old state back. Up to 10, a failing disk still told which
files it had, and no disk failed before it was lost. Up to 11, runs were larger, and took twice the processor time."""
PLENTY = 1 << 30
"""Size of a cache that is never full, in bytes."""
CHANCES = {
    "apart": {1: 0.2, 5: 0.15, 7: 0.12, 8: 0.07, 12: 0.055},
    "store": {1: 0.0, 2: 0.2, 8: 0.13, 12: 0.1},
    "n-grams": {1: 1.0, 5: 0.2, 12: 0.1},
}
"""Question -> the draw since which it is answered with yes for this share of seeds. Shards apart are of several."""
EVERY_ROUND = [0, 1, 1, 1, 1, 1, 1, 2]
CHOICES: dict[str, dict[int, Sequence[Any]]] = {
    "shards": {
        1: [1, 2, 3, 4], 5: [1, 1, 1, 2, 2, 2, 3, 4], 7: [1, 1, 1, 1, 2, 2, 2, 2, 3, 4],
        12: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 4],
    },
    "workers": {1: [1, 2, 3, 4, 5, 6], 6: [1, 2, 2, 3, 4, 6], 12: [1, 1, 2, 2, 3, 4]},
    "epochs": {1: [2, 3, 5], 5: [1, 2, 3], 6: [1, 1, 2], 12: [1, 1, 1, 2]},
    "epochs stored": {1: [2, 3, 5], 5: [1, 2, 3], 6: [1, 1, 2], 8: [2, 3, 4], 12: [2, 3]},
    "epochs apart": {1: [2, 3, 5], 5: [1, 2, 3], 6: [1, 1, 2], 8: [4, 6], 12: [3, 4]},
    "local epochs": {1: [1], 9: [1, 1, 2, 3]},
    "local epochs stored": {1: [1], 9: [1, 1, 2, 3], 12: [1, 1, 2, 2]},
    "local epochs apart": {1: [1], 9: [1, 1, 2, 3], 12: [1, 1, 2, 2]},
    "steps": {1: [5, 20, 40], 5: [3, 8, 20], 6: [3, 8]},
    "steps stored": {1: [5, 20, 40], 5: [3, 8, 20], 6: [3, 8], 8: [8, 20], 12: [6, 12]},
    "steps apart": {1: [5, 20, 40], 5: [3, 8, 20], 6: [3, 8], 8: [20, 40], 12: [8, 16]},
    "checkpoints": {1: [0, 1, 1, 2]},
    "checkpoints stored": {1: [0, 1, 1, 2], 8: EVERY_ROUND},
    "checkpoints apart": {1: [0, 1, 1, 2], 8: EVERY_ROUND},
    "unwritten checkpoints": {1: [MAX_UNWRITTEN], 3: [MAX_UNWRITTEN, 1, 2]},
    "time between uploads": {1: [0.02, 0.1, 0.5], 7: [0.1, 0.25, 0.5]},
    "delay": {1: [0.0005, 0.005, 0.05], 7: [0.0005, 0.005, 0.005, 0.05]},
    "pieces": {1: [0, 0, 400, 1200], 12: [0, 0, 0, 400, 1200]},
    "pieces of files": {1: [m.MAX_DATA_BYTES], 4: [m.MAX_DATA_BYTES, 300], 5: [m.MAX_DATA_BYTES, 1000]},
    "cache": {1: [PLENTY], 4: [PLENTY, 2000]},
    "fixed": {1: [dense_model.FEW], 8: [dense_model.FEW, dense_model.MANY]},
    "faults": {1: [0, 1, 2, 4, 8], 12: [0, 1, 2, 3, 5]},
    "disk faults": {1: [0, 0, 2, 4, 8], 12: [0, 0, 1, 2, 4]},
    "faults at the end": {1: [0, 0, 2, 4], 10: [0, 2, 4, 8], 12: [0, 1, 2, 5]},
    "apart faults": {1: [0, 2, 4, 8], 8: [2, 4, 8, 16], 12: [1, 3, 6, 12]},
    "store faults": {1: [0, 2, 4, 8], 8: [2, 4, 8, 16], 12: [1, 3, 6, 12]},
}  # fmt: skip
"""Question -> the draw since which a seed chooses one of these. Runs with shards apart, or else with a store, have
choices of their own for some questions: more has to happen before they end."""
EARLY = {1: 120, 5: 60}
"""Mean number of messages before a fault, since each draw; faults at the end come sooner, see END_EARLY."""
LASTING_S = {1: (0.05, 0.7, 3.0, 8.0), 7: (0.05, 0.7, 3.0, 5.0), 12: (0.05, 0.5, 1.5, 3.0)}
"""How long a fault lasts on average, one of these since each draw."""
TICK_S = {1: 0.1, 7: 0.25}
"""Time after which an idle shard looks at its clock, since each draw."""
FAULT_TRIES = {1: 1, 8: 400}
"""How often a fault that finds nothing to harm is tried, since each draw."""
EACH_KIND = 1 / 7
"""Expected share of each kind in a seed's number of faults."""
END_EARLY = 20
"""Mean number of messages between the beginning of the end and a fault."""
FEW_KINDS = BURSTS = 0.5
"""The shares of seeds with few kinds of faults, and with faults that come together."""
FEWER = 3
"""With few kinds, each takes part in one of FEWER seeds, and comes FEWER times as often."""
TOGETHER_S = (0.1, 0.5, 2.0, 10.0)
"""How long a burst of faults lasts, on average."""
EXPECTED = (DeadlineExceeded, Interrupted, NotReady)
"""Errors with which a process may end when its peers are away."""
ENDS_WITHIN_S = 180.0
MOST_PROCESSOR_S = 30.0
"""Real processor time that a run may take; the longest takes a tenth."""
REVIVE_S = 0.5
AGAIN_AFTER = 5
"""After how many messages a fault that found nothing to harm is tried again."""
LEFTOVER = f".[!g]*.shard-*{PARTIAL}"
"""Scratch names of parts of checkpoints that killed shards were writing; those of generations stay."""
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
WORDS, DIM = 40, 4


@dataclass(frozen=True)
class Fault:
    """Something that happens, once `after` messages have been sent, to a process or link that `pick` chooses.

    With `at_end`, messages are counted from when the first shard says that the run ends.
    """

    after: int
    kind: str
    seconds: float
    pick: float
    at_end: bool = False
    tries: int = 1
    later_s: float = 0.0
    """Additional delay, which gives each fault of a burst its own time."""

    def __str__(self) -> str:
        end, later = " of the end" * self.at_end, f" and {self.later_s:.2f} s" * (self.later_s > 0.0)
        return f"{self.kind} after {self.after} messages{end}{later}, {self.seconds:.2f} s, {self.pick:.3f}"


@dataclass(frozen=True)
class Scenario:
    """A run, and what happens to it."""

    seed: int
    draw: int
    """Version of what the seed means, see DRAW."""
    shards: int
    workers: int
    checkpoint_every: int
    options: dict[str, Any]
    weather: Weather
    faults: tuple[Fault, ...]
    piece_bytes: int = 0
    """Largest push or pull of rows in one message; 0 stands for the program's own limit, which no run here reaches."""
    drift: float = 0.0
    """Each process's clock has a rate from 1 - drift to 1 + drift; unless drift is 0, it begins anywhere."""
    visitors: tuple[str, ...] = ()
    """Peers other than shards and workers, see VISITORS."""
    finish_s: float = 0.0
    """When the finisher comes."""
    disk_step_s: float = 0.0
    """Duration of a call to the disk."""
    one_pid: bool = False
    """Whether all processes have the same id, as those of containers do."""
    apart: bool = False
    """Whether each shard has its own folder, on its own disk, and workers have no dataset."""
    stored: bool = False
    """Whether checkpoints are also kept in a store."""
    kept: int = 3
    """How many old checkpoints a shard keeps."""
    init: bool = False
    """Whether rows begin with the vectors of another run."""
    roles: bool = False
    """Whether every client has a key with a role."""
    unwritten: int = MAX_UNWRITTEN
    """How many automatic checkpoints may be unwritten."""
    data_bytes: int = m.MAX_DATA_BYTES
    """Largest piece of a file in one message."""
    cache_bytes: int = PLENTY
    """Size of the cache of a worker that has no dataset."""
    fixed: int = dense_model.FEW
    """Number of fixed elements of a dense model."""
    tick_s: float = 0.1
    """Time after which an idle shard looks at its clock."""
    keen: bool = False
    """Whether the administrator requests nothing but checkpoints."""
    silent_disks: bool = False
    """Whether queries which files exist also fail on a failing disk."""
    upload_s: float = 0.5
    """Time after which a shard looks for what is to be uploaded to the store; runs here take only seconds."""

    @classmethod
    def of(cls, seed: int, draw: int = DRAW) -> Scenario:
        """Draw a scenario. Each question has its own random stream, so a new question does not change old answers."""
        is_third, is_tenth = draw >= 3, draw >= 10

        def ask(question: str) -> random.Random:
            return random.Random(f"{seed} {question}")

        def share(question: str) -> float:
            return ask(question).random()

        def happens(question: str) -> bool:
            return share(question) < of_draw(CHANCES[question], draw)

        def choose(question: str, kind_of_run: str = "") -> Any:
            return ask(question).choice(of_draw(CHOICES[question + kind_of_run], draw))

        def known(kinds: Iterable[str]) -> list[str]:
            return [kind for kind in kinds if SINCE.get(kind, 1) <= draw]

        shards = choose("shards")
        apart = shards > 1 and happens("apart")
        stored = happens("store")
        longer = " apart" if apart else " stored" if stored else ""
        """More has to happen before the end of these runs."""
        options: dict[str, Any] = {
            "dim": DIM,
            "epochs": choose("epochs", longer),
            "tied": share("tied") < 0.3,
            "bfloat16": share("bfloat16") < 0.7,
            "consistency": "exclusive" if share("consistency") < 0.8 else "async",
        }
        if not happens("n-grams"):
            options["subwords"] = 0.0
        if share("schedule") < 0.25:
            mode = ask("mode").choice(["async", "sync", "ssp:2", "softsync:2"])
            size = ask("batch size").choice([50, 200])
            options |= {"schedule": "minibatch", "consistency": mode, "batch_size": size}
            if is_third:
                options |= {"staleness": ask("staleness").choice(POLICIES), "clock": ask("clock").choice(CLOCKS)}
        else:
            options["local_epochs"] = choose("local epochs", longer)
            options["epochs"] *= options["local_epochs"]
        if share("model") < 0.2:
            mode = ask("mode of tensors").choice(["async", "sync", "sync", "ssp:2", "softsync:2"])
            options = {
                "objective": "tensors", "consistency": mode, "steps": choose("steps", longer),
                "optimizer": "sgd", "learning_rate": dense_model.RATE, "rate_shape": "constant",
                "mean_gradient": True, "backup": int(mode == "sync" and share("backup") < 0.3),
                "staleness": ask("staleness").choice(POLICIES) if mode == "sync" and is_third else "none",
            }  # fmt: skip
        visitors = [name for name in known(VISITORS) if share(name) < VISITORS[name]]
        if "liar" in visitors and "idler" in visitors:  # with both, a step of synchronous training takes minutes
            visitors.remove("idler")
        if options.get("schedule", "tensors" if "objective" in options else "blocks") != "blocks":
            visitors = [name for name in visitors if name != "scorer"]
        slow = choose("delay")
        weather = Weather(
            slow, slow, *(ask(what).choice([0.0, 0.0, 0.02, 0.1]) for what in ("loss", "repeat", "overtake"))
        )
        few_kinds, bursts = (
            is_tenth and share(what) < rate for what, rate in (("few kinds", FEW_KINDS), ("bursts", BURSTS))
        )
        draw_faults = FaultDraw(ask, of_draw(EARLY, draw), of_draw(LASTING_S, draw), few_kinds, bursts)
        last = choose("faults at the end")
        faults = draw_faults(known(FAULTS), choose("faults"))
        faults += draw_faults(known(DISK_FAULTS), choose("disk faults"))
        faults += draw_faults((*END_FAULTS, *(MORE_END_FAULTS if is_tenth else ())), last, at_end=True)
        if apart:
            faults += draw_faults(known(APART_FAULTS), choose("apart faults"))
            if is_tenth:
                faults += draw_faults(APART_END_FAULTS, last, at_end=True)
        if stored:
            faults += draw_faults(STORE_FAULTS, choose("store faults"))
            faults += draw_faults(STORE_END_FAULTS, last, at_end=True)
        tries = of_draw(FAULT_TRIES, draw)
        return cls(
            seed, draw, shards, choose("workers"), choose("checkpoints", longer), options, weather,
            tuple(replace(fault, tries=tries) for fault in sorted(faults, key=lambda fault: fault.after)),
            piece_bytes=choose("pieces"), drift=ask("drift").choice([0.0, 0.0, 0.001, 0.1]),
            visitors=tuple(visitors), finish_s=ask("finish").expovariate(1.0),
            disk_step_s=ask("disk step").choice([0.0, 0.0002, 0.002]), one_pid=share("one pid") < 0.3,
            apart=apart, stored=stored, kept=ask("kept").choice([1, 3]) if stored else 3,
            init=is_third and share("init") < INIT and "objective" not in options,
            roles=is_third and share("roles") < WITH_ROLES, unwritten=choose("unwritten checkpoints"),
            data_bytes=choose("pieces of files"), cache_bytes=choose("cache"), fixed=choose("fixed"),
            tick_s=of_draw(TICK_S, draw), keen=is_tenth and share("keen") < 0.5, silent_disks=draw >= 11,
            upload_s=choose("time between uploads"),
        )  # fmt: skip


def of_draw(since: Mapping[int, Any], draw: int) -> Any:
    """Return what a draw takes of values that others replaced: the newest that is not newer than the draw."""
    return since[max(number for number in since if number <= draw)]


@dataclass
class FaultDraw:
    """Draws faults that come after `early` messages on average, and last for one of the times in `lasting` on average.

    With `few_kinds`, two of three kinds never come, and the third comes three times as often. With `bursts`, all come
    within seconds after a few moments, so that a second fault hits processes that are still busy with the first.
    """

    ask: Callable[[str], random.Random]
    early: float
    lasting: Sequence[float]
    few_kinds: bool
    bursts: bool

    def __call__(self, kinds: Sequence[str], most: int, *, at_end: bool = False) -> list[Fault]:
        """Draw faults of some kinds; those at the end follow its beginning sooner than others the start of the run."""
        early, where = (END_EARLY, " at the end") if at_end else (self.early, "")
        moments = self.ask(f"moments{where}")
        bursts = [int(moments.expovariate(1 / early)) for _ in range(moments.choice([1, 1, 2, 3]))]
        together_s = moments.choice(TOGETHER_S)
        found = []
        for kind in kinds:
            chance, times = self.ask(f"{kind}{where}"), 1
            if self.few_kinds:
                times = FEWER * (self.ask(f"{kind} comes").random() < 1 / FEWER)
            for _ in range(most * times):
                if chance.random() < EACH_KIND:
                    seconds = chance.choice(self.lasting) * (0.5 + chance.random())
                    fault = Fault(int(chance.expovariate(1 / early)), kind, seconds, chance.random(), at_end)
                    if self.bursts:
                        later_s = chance.expovariate(1 / together_s)
                        fault = replace(fault, after=chance.choice(bursts), later_s=later_s)
                    found.append(fault)
        return found


@dataclass
class Outcome:
    """The outcome of a scenario: `problem` is "" if everything holds."""

    scenario: Scenario
    problem: str = ""
    story: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@contextlib.contextmanager
def _decisions_told(world: World) -> Iterator[None]:
    """Add what workers log, from level debug on, to the story; other processes log nothing."""
    everything, workers, handler = (
        logging.getLogger("glovewire"),
        logging.getLogger("glovewire.worker"),
        logging.Handler(),
    )
    handler.emit = lambda record: world.tell(record.getMessage())  # type: ignore[method-assign]
    before = everything.level, workers.level, logging.root.manager.disable
    logging.disable(logging.NOTSET)
    everything.setLevel(logging.CRITICAL)
    workers.setLevel(logging.DEBUG)
    workers.addHandler(handler)
    workers.propagate = False
    try:
        yield
    finally:
        workers.propagate = True
        workers.removeHandler(handler)
        everything.setLevel(before[0])
        workers.setLevel(before[1])
        logging.disable(before[2])


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Raise Broken once a run has taken MOST_PROCESSOR_S, wherever it is: in a busy loop no virtual time passes."""

    def end(*_: object) -> None:
        raise Broken(f"a loop without end: {MOST_PROCESSOR_S:.0f} s of processor time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_PROCESSOR_S, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


@_watched()
def play(scenario: Scenario, folder: Path, *, decisions: bool = False) -> Outcome:
    """Run a scenario in `folder`, which contains the dataset, and check what must hold.

    With `decisions`, the story includes everything that workers log.
    """
    world, outcome = World(scenario.seed, drift=scenario.drift), Outcome(scenario)
    root = folder / f"disk-{scenario.seed}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    disks = _disks(scenario, world, root)
    cluster: Cluster | None = None

    def its() -> Cluster:
        assert cluster is not None
        return cluster

    def at(round: int) -> Rows | None:
        if scenario.options["consistency"] != "exclusive":
            return None
        return undisturbed(json.dumps(scenario.options), init=scenario.init)[1][round]

    try:
        at(0)  # before the functions of the program are replaced for this run
        told = _decisions_told(world) if decisions else contextlib.nullcontext()
        running = simulated(
            world, its, scenario.piece_bytes, scenario.unwritten, scenario.data_bytes, scenario.upload_s
        )
        with contextlib.ExitStack() as stack:
            for each in (told, Calls(disks).intercepted(), running):
                stack.enter_context(each)
            options = TrainingOptions.from_flags(**scenario.options)
            cluster = Cluster(
                world, folder / "data", root if scenario.apart else root / "run", options, scenario.shards,
                scenario.workers, scenario.checkpoint_every, at=at, hold="scorer" in scenario.visitors, disks=disks,
                store=ObjectStore(world) if scenario.stored else None, keep=scenario.kept,
                init=folder / "init" if scenario.init else None, roles=scenario.roles,
                cache_bytes=scenario.cache_bytes, tick_s=scenario.tick_s, fixed=scenario.fixed, keen=scenario.keen,
            )  # fmt: skip
            for name in scenario.visitors:
                cluster.world.after(scenario.finish_s * (name == "finisher"), partial(cluster.start_visitor, name))
            cluster.network.weather = scenario.weather
            _revive_often(cluster)
            try:
                _let_all_happen(cluster, disks, scenario.faults)
                world.run(lambda: its().over, world.now + ENDS_WITHIN_S)
                if (monitor := cluster.visitors.get("monitor")) is not None:
                    world.run(lambda: not monitor.alive, world.now + 2 * SILENCE_S)
                outcome.problem = _problem(scenario, cluster)
            except Overdue as error:
                outcome.problem = f"{error}: {_still_there(cluster)}"
    except Broken as error:
        outcome.problem = str(error)
    except Exception as error:  # noqa: BLE001
        outcome.problem = f"{type(error).__name__}: {error}"
    outcome.problem = outcome.problem.replace(str(root), "")
    outcome.story = [line.replace(str(root), "") for line in world.story]
    outcome.seconds = world.now - 1000.0
    outcome.counts = cluster.network.counts if cluster else {}
    shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(folder / f"from-store-{scenario.seed}", ignore_errors=True)
    return outcome


def _disks(scenario: Scenario, world: World, root: Path) -> list[Disk]:
    """Make the disk of the run folder, or a disk for each shard if they share no folder."""
    disk = partial(Disk, world, step_s=scenario.disk_step_s, one_pid=scenario.one_pid, silent=scenario.silent_disks)
    if not scenario.apart:
        return [disk(root)]
    folders = [folder_of(root, shard) for shard in range(scenario.shards)]
    for folder in folders:
        folder.mkdir()
    return [disk(folder, name=f" of {folder.name}") for folder in folders]


def _revive_often(cluster: Cluster) -> None:
    world = cluster.world

    def again() -> None:
        if cluster.apart is not None:
            try:
                cluster.apart.look()
            except Broken as error:
                world.broken = world.broken or error
        cluster.revive()
        if not cluster.over:
            cluster.world.after(REVIVE_S, again)

    cluster.world.after(REVIVE_S, again)


def _let_all_happen(cluster: Cluster, disks: Sequence[Disk], faults: Sequence[Fault]) -> None:
    """Run until the last fault has happened or the run is over; then make the network good."""
    counts = cluster.network.counts
    at_any_time, at_end = ([fault for fault in faults if fault.at_end is which] for which in (False, True))

    def due() -> list[Fault] | None:
        sent, ends_at = counts["sent"], cluster.ends_at
        if at_any_time and sent >= at_any_time[0].after:
            return at_any_time
        if at_end and ends_at is not None and sent - ends_at >= at_end[0].after:
            return at_end
        return None

    coming: list[Fault] = []

    def happen(fault: Fault) -> None:
        if not _let_happen(cluster, disks, fault) and fault.tries > 1:
            again = replace(fault, after=fault.after + AGAIN_AFTER, tries=fault.tries - 1, later_s=0.0)
            insort(at_end if fault.at_end else at_any_time, again, key=lambda fault: fault.after)

    def come(fault: Fault) -> None:
        coming.remove(fault)
        cluster.world.changes += 1
        if not cluster.over:
            happen(fault)

    def is_next() -> object:
        return cluster.over or due() or not (at_any_time or at_end or coming)

    while (at_any_time or at_end or coming) and not cluster.over:
        cluster.world.run(is_next, cluster.world.now + 900.0)
        if not cluster.over and (queue := due()) is not None:
            fault = queue.pop(0)
            if fault.later_s:
                coming.append(fault)
                cluster.world.after(fault.later_s, partial(come, fault))
            else:
                happen(fault)
    cluster.network.clear_up()


def _let_happen(cluster: Cluster, disks: Sequence[Disk], fault: Fault) -> bool:
    """Let a fault happen; return False if it finds nothing to harm yet."""
    world = cluster.world
    workers, shards = list(cluster.workers.values()), list(cluster.shards.values())
    worker, shard = (some[int(fault.pick * len(some))] for some in (workers, shards))
    disk = disks[int(fault.pick * len(disks))]
    if cluster.apart is not None and fault.kind in APART_FAULTS:
        may_wait = fault.tries > 1
        return let_apart_happen(cluster, cluster.apart, fault.kind, fault.seconds, fault.pick, may_wait=may_wait)
    if fault.kind in STORE_FAULTS:
        let_store_happen(cluster, disks, fault.kind, fault.seconds, fault.pick)
    match fault.kind:
        case "kill worker":
            world.kill(worker)
        case "kill shard":
            world.kill(shard)
        case "lose worker" if len(workers) > 1:
            world.kill(cluster.workers.pop(worker.name))
        case "stop worker":
            world.stop(worker, fault.seconds)
        case "stop shard":
            world.stop(shard, fault.seconds)
        case "cut":
            address = cluster.addresses[int(fault.pick * 7919) % len(cluster.addresses)]
            cluster.network.cut(worker.name, address, fault.seconds)
        case "cut all":
            for name in [*cluster.workers, *cluster.visitors]:
                for address in cluster.addresses:
                    cluster.network.cut(name, address, fault.seconds)
        case "fill queue":
            for address in cluster.addresses:
                cluster.network.fill(worker.name, address, fault.seconds)
        case "slow link" | "lose one way":
            address = cluster.addresses[int(fault.pick * 7919) % len(cluster.addresses)]
            if fault.kind == "slow link":
                cluster.network.slow_down(worker.name, address, fault.seconds)
            else:
                cluster.network.lose(
                    (worker.name, address, ("request", "reply")[int(fault.pick * 613) % 2]), fault.seconds
                )
        case "jump clock":
            victim = shard if fault.pick * 7919 % 1 < 0.5 else worker
            world.jump(victim, fault.seconds)
        case "cut visitor" | "kill visitor" if cluster.visitors:
            visitor = list(cluster.visitors.values())[int(fault.pick * len(cluster.visitors))]
            if fault.kind == "kill visitor":
                world.kill(visitor)
                return True
            for address in cluster.addresses:
                cluster.network.cut(visitor.name, address, fault.seconds)
        case "leave":
            world.tell(f"tells {worker.name} to leave")
            cluster.interrupt(worker.name)
        case "kill while writing":
            disk.kill_at[shard.name] = 1 + int(fault.pick * 7919) % 80
        case "power failure":
            for each in shards:
                world.kill(each)
            world.tell("loses power: the machine of the shards")
            before = cluster.checkpoints.furthest()
            for each in disks:
                each.lose_power()
            cluster.checkpoints.require_kept(before)
        case "disk full":
            world.tell(f"fills the disk for {fault.seconds:.2f} s")
            disk.full_until = world.now + fault.seconds
        case "damage checkpoint" if cluster.apart is None and cluster.stored is None:
            cluster.when_written.append(partial(_damage_one, cluster, disk, shard.name, fault.pick))
        case "damage beginning" if cluster.apart is None and cluster.stored is None and len(shards) > 1:
            newest = cluster.checkpoints.newest()
            if newest is None or not cluster.checkpoints.complete(newest):
                return False
            cluster.when_begun.append(lambda begun: _damage(cluster, disk, begun.label, fault.pick, begun.parts))
            world.kill(shard)
        case "disk fails":
            world.tell(f"lets the disk fail for {fault.seconds:.2f} s")
            disk.fail(fault.seconds, seldom=int(fault.pick * 7919) % 2 == 0)
    return True


def _damage_one(cluster: Cluster, disk: Disk, shard: str, pick: float) -> None:
    """Change a byte of a checkpoint that is not a final one, and kill a shard."""
    generation = cluster.checkpoints.newest()
    labels = [] if generation is None else cluster.checkpoints.complete(generation)
    labels = [label for label in labels if not label.startswith(FINAL)]
    for label in labels[int(pick * len(labels)) :][:1]:
        if _damage(cluster, disk, label, pick, len(cluster.shards)):
            cluster.world.kill(next(each for each in cluster.shards.values() if each.name == shard))


def _damage(cluster: Cluster, disk: Disk, label: str, pick: float, parts: int) -> bool:
    """Change a byte of a part of a checkpoint; return False if the part does not exist."""
    number = int(pick * 7919) % parts
    folder = files.part_folder(cluster.folder, label, number, parts)
    if not folder.exists():
        return False
    cluster.world.tell(f"damages {folder.name}")
    disk.damage(folder / files.ROWS)
    cluster.checkpoints.damaged(label, number)
    return True


def _still_there(cluster: Cluster) -> str:
    processes = [*cluster.shards.values(), *cluster.workers.values()]
    return ", ".join(f"{each.name} {'runs' if each.alive else each.error or each.result}" for each in processes)


# ---- what must hold


def _problem(scenario: Scenario, cluster: Cluster) -> str:
    """Return what is wrong with a run that is over, "" if everything holds."""
    facts = cluster.facts
    may_end = ["complete", "over", *(["asked"] if "finisher" in scenario.visitors else [])]
    if facts["ending"] not in may_end:
        return f"the run ended as {facts['ending']}: {facts.get('ending_text', '')}"
    if facts["ending"] == "complete" and any(_was_asked(run) & cluster.checkpoints.trained for run in cluster.folders):
        return "a generation began after the run was asked to end, and it trained to its end"
    whole = facts["ending"] == "complete" or "finisher" not in scenario.visitors
    ill = any(fault.kind in ("disk full", "disk fails", "dying disk") for fault in scenario.faults)
    expected = (
        *EXPECTED,
        *([ArtifactError, OutputError] if ill else []),
        *([ArtifactError] if cluster.checkpoints.has_damage else []),
        *([StoreError] if scenario.stored else []),  # on an empty disk, while the store is away
    )
    for process in cluster.world.processes:
        if process.error is not None and not isinstance(process.error, expected):
            return f"{process.name} failed: {type(process.error).__name__}: {process.error}"
    with contextlib.suppress(ArtifactError):
        label, _ = files.newest(cluster.folder)
        cluster.checkpoints.restore(label)
    if cluster.options.objective == "tensors" and whole:
        dense_model.check(cluster.folder, cluster.options, undisturbed=not scenario.faults)
    if not ill and (left := [path.name for run in cluster.folders for path in (run / CHECKPOINTS).glob(LEFTOVER)]):
        return f"what killed processes were writing is left: {left}"
    if cluster.apart is not None:
        cluster.apart.require_forgotten()
    if cluster.stored is not None and not ill:
        for shard, run in enumerate(cluster.folders):
            cluster.stored.require_stored(shard, run)
    if scenario.options["consistency"] == "exclusive" and whole:
        vectors, _ = undisturbed(json.dumps(scenario.options), init=scenario.init)
        if cluster.vectors != vectors:
            return "the vectors are not those of an undisturbed run"
    return ""


def _was_asked(run: Path) -> set[str]:
    """Return the generations known to a shard that had to end, because the run was asked to end in the previous one.

    They are named as in the stream, by `Generation.run`.
    """
    paths = (run / CHECKPOINTS).glob(f"{GENERATION}*[0-9]")
    begun = [generations.parse_generation(path.read_text(), str(path)) for path in paths]
    return {each.run for each in begun if each.asked == Ending.ASKED}


class CutRecorder(ShardOracle):
    """Keeps a copy of all rows at the start of every round."""

    cuts: list[Cut]

    def __init__(self, core: Core, checkpoints: CheckpointOracle, said_by: Callable[[Peer], int]) -> None:
        super().__init__(core, checkpoints, said_by)
        state = core._state
        assert isinstance(state.consistency, ExclusiveBlocks)
        rounds = state.options.sweeps * len(state.consistency.rounds)
        self.cuts = [Cut(round, state.table, state.consistency) for round in range(rounds + 1)]
        self._partitions = state.consistency.here()

    def received(self, peer: Peer, number: int, message: m.Message, effects: Effects) -> None:
        """See ShardOracle."""
        super().received(peer, number, message, effects)
        if isinstance(message, m.Push):
            for cut in self.cuts:
                for partition in self._partitions:
                    cut.copy(partition)


class UndisturbedCluster(Cluster):
    """One shard and one worker on a good network."""

    recorder: CutRecorder

    def oracle(self, core: Core) -> ShardOracle:
        """See Cluster."""
        self.recorder = CutRecorder(core, self.checkpoints, self.network.said_by)
        return self.recorder


@cache
def undisturbed(options: str, *, init: bool) -> tuple[bytes, list[Rows]]:
    """Return the vectors of one shard and one worker on a good network, and their rows at the start of each round."""
    world, cluster = World(0), None
    with TemporaryDirectory(dir=MEMORY) as name, simulated(world, lambda: cluster):  # type: ignore[arg-type,return-value]
        folder = Path(name)
        prepare(folder)
        cluster = UndisturbedCluster(
            world, folder / "data", folder / "run", TrainingOptions(**json.loads(options)), 1, 1,
            init=folder / "init" if init else None,
        )  # fmt: skip
        world.run(lambda: cluster.over, world.now + ENDS_WITHIN_S)
        return cluster.vectors, [cut.rows for cut in cluster.recorder.cuts]


# ---- many seeds


def prepare(folder: Path) -> None:
    """Make the dataset, and initial vectors for some of its words."""
    random_dataset(folder / "data", size=WORDS)
    words = [*Dataset.open(folder / "data").words[::2], "elsewhere"]
    (folder / "init").mkdir()
    vectors = np.random.default_rng(0).standard_normal((len(words), DIM), np.float32)
    run_folder.write_vectors(folder / "init", words, vectors)


def play_all(scenarios: Iterable[Scenario], *, decisions: bool = False) -> Iterator[Outcome]:
    """Run scenarios in a folder in memory, and yield the outcome of each; `decisions` is as in `play`."""
    with TemporaryDirectory(dir=MEMORY) as name, _garbage_collected_seldom():
        folder = Path(name)
        prepare(folder)
        try:
            for scenario in scenarios:
                yield play(scenario, folder, decisions=decisions)
        finally:
            opened.cache_clear()


@contextlib.contextmanager
def _garbage_collected_seldom() -> Iterator[None]:
    """Look for cycles of objects less often than Python does: a run makes many objects and few cycles."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
