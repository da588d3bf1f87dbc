"""A publisher on port 0 and samples of a plausible run, for the tests of the monitor."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from processes import until as wait

from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol.messages import (
    Event,
    LossSample,
    Message,
    QualitySample,
    RunSample,
    ServerSample,
    WorkerSample,
)
from glovewire.common.protocol.wire import encode_sample
from glovewire.common.transport import sockets
from glovewire.monitor.history.history import RunHistory


class Publisher:
    """Publishes numbered samples of one run at `address`."""

    def __init__(self, run: str = "run-1", address: str = "tcp://127.0.0.1:0") -> None:
        self._context = sockets.Context()
        self._socket, self.address = self._context.publisher(address)
        self.run = run
        self.number = 0

    def publish(self, message: Message) -> None:
        self.number += 1
        self.send(encode_sample(self.run, self.number, message))

    def send(self, frames: Sequence[bytes]) -> None:
        sockets.send(self._socket, frames)

    def close(self) -> None:
        self._context.close(last_words_ms=1000)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def until(done: Callable[[], bool], what: str, again: Callable[[], object] | None = None) -> None:
    """Wait until `done()`, calling `again` between checks if given; fail at the deadline, naming `what`."""

    def happened() -> bool:
        if done():
            return True
        if again is not None:
            again()
        return False

    wait(happened, what)


def loss(t: float = 1.0, worker: str = "all", entries: int = 100, value: float = 0.5, **changes: float) -> LossSample:
    fields = {"epoch": 0, "epochs": 2, "total": 1000, "bias_only_loss": 0.7, "norm": 1.0, "entries_per_second": 100.0}
    fields |= {"mean_loss": value, "mean_bias_only_loss": changes.get("bias_only_loss", 0.7), **changes}
    return LossSample(t=t, worker=worker, entries=entries, loss=value, **fields)  # type: ignore[arg-type]


def run_sample(name: str = "one", dataset: str = "pydoc", objective: str = "glove", **options: Any) -> RunSample:
    chosen = TrainingOptions.from_flags(objective=objective, **options).as_message()
    return RunSample(0.0, name, dataset, 0 if objective == "tensors" else 1000, chosen)


def dense_history(steps: int = 1000) -> RunHistory:
    """A dense model with a score, after 200 of `steps` updates (0: unlimited), in ten seconds."""
    history = RunHistory()
    history.add(run_sample("net", "", "tensors", steps=steps, learning_rate=0.01), 0.0)
    for tick in range(1, 101):
        t, value = tick / 10, 1 / (1 + tick / 10)
        same = {"epochs": steps, "bias_only_loss": 0.0, "norm": 0.5, "entries_per_second": 1280.0}
        for name, share in (("w0", 2), ("all", 1)):
            made = loss(t, name, 128 * tick // share, value, epoch=2 * tick, **same)
            history.add(dataclasses.replace(made, total=0), t)
        history.add(worker("w0", t=t), t)
    history.add(server_sample(10.0, 0, 1, 40, 200, 1_000_000), 10.0)
    history.add(QualitySample(10.0, 12_800, "test accuracy", 91.25), 10.0)
    return history


def worker(
    name: str = "w0", state: str = "training", t: float = 1.0, sent: int = 0, age_s: float = 0.1
) -> WorkerSample:
    return WorkerSample(t, name, state, 100, 50.0, sent, age_s, 0)


def shard(number: int = 0, t: float = 1.0, pulls: int = 0, traffic: int = 0) -> ServerSample:
    return server_sample(t, number, 2, 5000, pulls, traffic)


def server_sample(
    t: float, number: int, shards: int, rows: int, pulls: int, traffic: int, port: int = 0, **changes: Any
) -> ServerSample:
    """A shard that has served `pulls` pulls and pushes, a third of which were stale by one."""
    staleness = {"0": pulls - pulls // 3, "1": pulls // 3}
    sample = ServerSample(
        t, number, shards, rows, 3, pulls, pulls, 0, 0, 0, traffic, traffic, 0, rows * 1088, 0, -1.0, port, staleness,
        {f"{number * rows}-{number * rows + rows // 2 - 1}": pulls},
    )  # fmt: skip
    return dataclasses.replace(sample, **changes)


def run_of(
    names: Sequence[str] = ("w0", "w1", "w2"), seconds: float = 60.0, hz: float = 5.0, shards: int = 2, seed: int = 1
) -> Iterator[Message]:
    """The samples of a whole run, in the order in which a server would send them, up to `finished`."""
    random_of, steps, epochs, total = random.Random(seed), int(seconds * hz), 10, 54_000_000
    for name in names:
        yield Event(0.0, "joined", name, "")
    for step in range(1, steps + 1):
        t, part = step / hz, step / steps
        value = 0.028 + 0.6 * math.exp(-22 * part) + 0.05 * math.exp(-4 * part)
        floor = 0.075 + 0.55 * math.exp(-30 * part)
        shape = {"epoch": int(part * epochs), "epochs": epochs, "total": total, "bias_only_loss": floor}
        shape |= {"norm": 1 + 2.2 * part, "entries_per_second": total / seconds}
        for name in names:
            done = int(total * part / len(names))
            yield loss(t, name, done, value * (1 + random_of.gauss(0, 0.09)), **shape)
            yield WorkerSample(t, name, "training", done, total / seconds / len(names), done * 20, 0.2, 1)
        for number in range(shards):
            sent = int(step / hz * 8e6 * (1 + number))
            yield server_sample(t, number, shards, 20_000 // shards, 3 * step, sent)
        yield loss(t, "all", int(total * part), value, **shape)
        if int(part * epochs) > int((part - 1 / steps) * epochs):
            yield Event(t, "epoch", str(int(part * epochs)), f"loss {value:.4f}")
            yield QualitySample(t, int(total * part), "wordsim353", 20 + 38 * part)
    yield Event(seconds, "finished", "shard 0", "")
