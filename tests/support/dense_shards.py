"""Shards of a dense model in threads of this process, and values for it, for tests of the clients of people's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from processes import FREE
from shards import served

from glovewire.common.model.options import TrainingOptions
from glovewire.server import dense
from glovewire.server.checkpoints.generations import Generation
from glovewire.server.config import ServerConfig
from glovewire.server.daemon import Daemon

SHAPES = {"w": (40, 30), "b": (30,), "scale": ()}


def values(seed: int, dtype: str = "<f4") -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: draw.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


@contextlib.contextmanager
def shards_of(
    run: Path, count: int = 1, workers: int = 1, checkpoint_every: int = 0, **options: Any
) -> Iterator[list[Daemon]]:
    """So many shards in threads of this process."""
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
            daemons.append(Daemon(dense.build(config, Generation(0, "run", count), 0.0), run, FREE, FREE))
            stack.enter_context(served(daemons[-1]))
        yield daemons


def addresses(daemons: list[Daemon]) -> list[str]:
    return [daemon.address for daemon in daemons]


def begin_again(daemons: list[Daemon], run: Path) -> None:
    """A new life of the run without a checkpoint, as after a kill before the first one."""
    for number, daemon in enumerate(daemons):
        config = ServerConfig(out=run, options=daemon._core.options, shard=number, shards=len(daemons))
        daemon.renew(dense.build(config, Generation(1, "again", len(daemons)), 0.0))
