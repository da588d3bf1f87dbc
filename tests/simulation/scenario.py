"""A run and its faults, all from one seed; and what must hold whatever happens.

Faults come when so many messages have been sent. After the last of them the network is good, what was killed is started
again, and the run must end within ENDS_WITHIN_S.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster import Cluster, simulated
from handmade import random_dataset
from network import Weather
from world import Overdue, World

from glovewire.common.model.options import TrainingOptions

ENDS_WITHIN_S = 180.0
REVIVE_S = 0.5
WORDS = 40


@dataclass(frozen=True)
class Fault:
    """Something that happens once `after` messages have been sent: to a process or link that `pick` chooses."""

    after: int
    kind: str
    seconds: float
    pick: float

    def __str__(self) -> str:
        return f"{self.kind} after {self.after} messages, {self.seconds:.2f} s, {self.pick:.3f}"


@dataclass(frozen=True)
class Scenario:
    """What is run, and what happens to it."""

    seed: int
    shards: int
    workers: int
    checkpoint_every: int
    options: dict[str, Any]
    weather: Weather
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, seed: int) -> Scenario:
        """Draw a scenario."""
        chance = random.Random(seed)
        options: dict[str, Any] = {
            "dim": 4,
            "epochs": chance.choice([2, 3, 5]),
            "tied": chance.random() < 0.3,
            "bfloat16": chance.random() < 0.7,
            "consistency": "exclusive" if chance.random() < 0.8 else "async",
        }
        if chance.random() < 0.25:
            mode = chance.choice(["async", "sync", "ssp:2", "softsync:2"])
            options |= {"schedule": "minibatch", "consistency": mode, "batch_size": chance.choice([50, 200])}
        slow = chance.choice([0.0005, 0.005, 0.05])
        weather = Weather(
            slow, slow, *(chance.choice([0.0, 0.0, 0.02, 0.1]) for _ in ("loss", "repeat", "overtake"))
        )  # fmt: skip
        faults = tuple(
            Fault(
                int(chance.expovariate(1 / 120)),
                chance.choice(["kill worker", "kill shard", "stop worker", "stop shard", "cut", "cut all", "leave"]),
                chance.choice([0.05, 0.7, 3.0, 8.0]) * (0.5 + chance.random()),
                chance.random(),
            )
            for _ in range(chance.choice([0, 1, 2, 4, 8]))
        )
        return cls(
            seed, chance.randint(1, 4), chance.randint(1, 6), chance.choice([0, 1, 1, 2]), options, weather,
            tuple(sorted(faults, key=lambda fault: fault.after)),
        )  # fmt: skip


@dataclass
class Outcome:
    """What became of a scenario: `problem` is "" if all holds."""

    scenario: Scenario
    problem: str = ""
    story: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def play(scenario: Scenario, folder: Path) -> Outcome:
    """Run a scenario in `folder`, which holds the dataset, and check what must hold."""
    world, outcome = World(scenario.seed), Outcome(scenario)
    out = folder / f"run-{scenario.seed}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    cluster: Cluster | None = None

    def its() -> Cluster:
        assert cluster is not None
        return cluster

    try:
        with simulated(world, its):
            options = TrainingOptions(**scenario.options)
            cluster = Cluster(
                world, folder / "data", out, options, scenario.shards, scenario.workers, scenario.checkpoint_every
            )
            cluster.network.weather = scenario.weather
            _revive_often(cluster)
            left = list(scenario.faults)
            while left and not cluster.over:
                fault = left.pop(0)
                world.run(
                    lambda after=fault.after: its().over or its().network.counts["sent"] >= after, world.now + 900.0
                )  # type: ignore[misc]
                if not cluster.over:
                    _let_happen(cluster, fault)
            cluster.network.weather = Weather()
            world.run(lambda: its().over, world.now + ENDS_WITHIN_S)
            outcome.problem = _problem(scenario, cluster, folder)
    except Overdue as error:
        outcome.problem = f"{error}: {_still_there(its())}"
    except Exception as error:  # noqa: BLE001
        outcome.problem = f"{type(error).__name__}: {error}"
    outcome.story, outcome.seconds = world.story, world.now - 1000.0
    outcome.counts = its().network.counts
    shutil.rmtree(out, ignore_errors=True)
    return outcome


def _revive_often(cluster: Cluster) -> None:
    def again() -> None:
        cluster.revive()
        if not cluster.over:
            cluster.world.after(REVIVE_S, again)

    cluster.world.after(REVIVE_S, again)


def _let_happen(cluster: Cluster, fault: Fault) -> None:
    world = cluster.world
    workers, shards = list(cluster.workers.values()), list(cluster.shards.values())
    worker, shard = (some[int(fault.pick * len(some))] for some in (workers, shards))
    match fault.kind:
        case "kill worker":
            world.kill(worker)
        case "kill shard":
            world.kill(shard)
        case "stop worker":
            world.stop(worker, fault.seconds)
        case "stop shard":
            world.stop(shard, fault.seconds)
        case "cut":
            address = cluster.addresses[int(fault.pick * 7919) % len(cluster.addresses)]
            cluster.network.cut(worker.name, address, fault.seconds)
        case "cut all":
            for name in cluster.workers:
                for address in cluster.addresses:
                    cluster.network.cut(name, address, fault.seconds)
        case "leave":
            world.tell(f"tells {worker.name} to leave")
            cluster.interrupt(worker.name)


def _still_there(cluster: Cluster) -> str:
    processes = [*cluster.shards.values(), *cluster.workers.values()]
    return ", ".join(f"{each.name} {'runs' if each.alive else each.error or each.result}" for each in processes)


# ---- what must hold


def _problem(scenario: Scenario, cluster: Cluster, folder: Path) -> str:
    """Return what does not hold of a run that is over, "" if all does."""
    facts = cluster.facts
    if facts["ending"] != "complete":
        return f"the run ended as {facts['ending']}: {facts.get('ending_text', '')}"
    for shard, process in cluster.shards.items():
        if (pushes := process.result.get("pushes")) is not None:
            answered = sum(pushes[kind] for kind in ("applied", "repeated", "refused"))
            if pushes["heard"] != answered:
                return f"shard {shard} heard {pushes['heard']} pushes and answered {answered}"
    if scenario.options["consistency"] == "exclusive":
        expected = undisturbed(json.dumps(scenario.options), folder)
        if cluster.vectors != expected:
            return "the vectors are not those of an undisturbed run"
    return ""


@cache
def undisturbed(options: str, folder: Path) -> bytes:
    """Return the vectors of one shard and one worker in good weather."""
    out = folder / "undisturbed"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    world, cluster = World(0), None
    with simulated(world, lambda: cluster):  # type: ignore[arg-type,return-value]
        cluster = Cluster(world, folder / "data", out, TrainingOptions(**json.loads(options)), 1, 1)
        world.run(lambda: cluster.over, world.now + ENDS_WITHIN_S)
        return cluster.vectors


# ---- many seeds


def play_all(seeds: range, each: Callable[[Outcome], None]) -> None:
    """Run the scenarios of `seeds` in a folder in memory."""
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        random_dataset(folder / "data", size=WORDS)
        for seed in seeds:
            each(play(Scenario.of(seed), folder))
