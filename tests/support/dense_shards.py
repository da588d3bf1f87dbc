"""Shards of a dense model in threads of this process, and values for it, for tests of clients for custom models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from processes import FREE
from shards import served

from glovewire.common.model.options import TrainingOptions
from glovewire.server.checkpoints.generations import Generation
from glovewire.server.config import ServerConfig
from glovewire.server.core.core import Core
from glovewire.server.core.state import ShardState
from glovewire.server.daemon import Daemon
from glovewire.server.service import prepare


class DenseShard(Daemon):
    """A daemon that gives tests access to its core and state."""

    def __init__(self, state: ShardState, run: Path) -> None:
        self.core, self.state = Core(state), state
        super().__init__(self.core, run, FREE, FREE)

    def begin_again(self, state: ShardState) -> None:
        self.core, self.state = Core(state), state
        self.replace_core(self.core)


SHAPES = {"w": (40, 30), "b": (30,), "scale": ()}


def values(seed: int, dtype: str = "<f4") -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: draw.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


@contextlib.contextmanager
def shards_of(
    run: Path, count: int = 1, workers: int = 1, checkpoint_every: int = 0, **options: Any
) -> Iterator[list[DenseShard]]:
    """Serve `count` shards in threads of this process."""
    run.mkdir()
    training = TrainingOptions.of_tensors(**{"optimizer": "sgd", "learning_rate": 0.5, **options})
    with contextlib.ExitStack() as stack:
        daemons = []
        for number in range(count):
            config = ServerConfig(
                out=run,
                options=training,
                shard=number,
                shards=count,
                workers=workers,
                checkpoint_every=checkpoint_every,
            )
            daemons.append(DenseShard(prepare(config, None, Generation(0, "run", count), 0.0), run))
            stack.enter_context(served(daemons[-1]))
        yield daemons


def addresses(daemons: list[DenseShard]) -> list[str]:
    return [daemon.address for daemon in daemons]


def begin_again(daemons: list[DenseShard], run: Path) -> None:
    """Begin a new generation of the run without a checkpoint, as after a kill before the first one."""
    for number, daemon in enumerate(daemons):
        config = ServerConfig(out=run, options=daemon.state.options, shard=number, shards=len(daemons))
        daemon.begin_again(prepare(config, None, Generation(1, "again", len(daemons)), 0.0))
