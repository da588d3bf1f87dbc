"""Run a whole training: shards on this machine, workers in any pool, scores from an observer."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pools

from glovewire.common.errors import GlovewireError, RunOver, UsageError
from glovewire.common.storage.run_folder import load_tensors
from glovewire.launch.serving import serving
from glovewire.worker.dense import Client

Tensors = dict[str, Any]


def run(command: click.Command) -> None:
    """Run an example's command; report errors in one line, as `glovewire` does."""
    try:
        command()
    except GlovewireError as error:
        sys.exit(f"error: {error}")


def train(
    run: Path,
    work: Callable[..., Any],
    about: tuple[Any, ...],
    accuracy: Callable[[Tensors], float],
    *,
    pool: str,
    workers: int,
    shards: int,
    every: int,
    steps: int,
    **options: Any,
) -> float:
    """Run `work(addresses, rank, *about)` for every rank in the pool until the servers have done `steps` updates.

    Prints the accuracy of the servers' tensors every `every` updates, and returns that of the final ones in `run`.
    """
    if every < 1:
        raise UsageError(f"the model is scored every N updates: N must be at least 1, not {every}")
    if pool not in pools.POOLS:
        raise UsageError(f"there is no pool {pool!r}: choose one of {', '.join(pools.POOLS)}")
    began = time.monotonic()

    def say(when: str, tensors: Tensors) -> float:
        found = accuracy(tensors)
        click.echo(f"{when:<12} accuracy {found:.4f}  {time.monotonic() - began:.1f} s")
        return found

    def score(addresses: list[str]) -> None:
        with Client(addresses, "scorer", observe=True) as ps, suppress(RunOver):
            ps.attach()
            for updates in range(every, steps, every):
                tensors = ps.pull(after=updates)
                ps.score("test accuracy", 100 * say(f"{ps.updates} updates", tensors))

    with ThreadPoolExecutor(1) as scorer, serving(run, shards, workers=workers, steps=steps, **options) as place:
        jobs = [(place.addresses, rank, *about) for rank in range(workers)]
        with pools.started(pool, work, jobs) as results:
            scores = scorer.submit(score, place.addresses)
            batches = results()  # raises a worker's exception, which ends the run and thus the scorer
            scores.result()
    click.echo(f"batches of each worker: {batches}")
    return say("at the end", load_tensors(run)[0])
