"""Play many seeds on all cores, or one with its story: `make simulate SEEDS=10000`, `make simulate SEED=17`.

This folder and tests/support have to be on the PYTHONPATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence

from found import FOUND
from scenario import DRAW, Outcome, Scenario, play_all

CHUNK = 50
SHOWN = 10
STORY_LINES = 80
"""Lines from the end of a failed run's story; SEED shows all."""


def main() -> int:
    """Play the seeds that the command line names; return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="play this many seeds")
    parser.add_argument("--first", type=int, default=0, help="from this seed on")
    parser.add_argument("--seed", type=int, help="play this one alone and print its story")
    parser.add_argument("--apart", action="store_true", help="play only those in which shards share no folder")
    parser.add_argument(
        "--stored",
        action="store_true",
        help="play only those whose checkpoints are kept in a store, too: of single shards, of several with a shared "
        "folder, and, alone with --apart, of those without",
    )
    parser.add_argument("--found", action="store_true", help="play the seeds that have failed once first")
    parser.add_argument("--draw", type=int, default=DRAW, help="use an earlier meaning of seeds, see scenario.py")
    parser.add_argument("--until-failure", action="store_true", help="print how many seeds it took to find a failure")
    given = parser.parse_args()
    if given.seeds < 1 or not 1 <= given.draw <= DRAW:
        parser.error(f"play at least 1 seed, of a draw from 1 to {DRAW}")
    logging.disable(logging.CRITICAL)
    if given.seed is not None:
        outcome = replay(Scenario.of(given.seed, given.draw), decisions=True)
        print("\n".join([*told(outcome.scenario), *outcome.story, "", outcome.problem or "all holds"]))
        return bool(outcome.problem)
    every = (
        scenario
        for scenario in (Scenario.of(seed, given.draw) for seed in itertools.count(given.first))
        if scenario.apart >= given.apart and scenario.stored >= given.stored
    )
    found = (Scenario.of(*each) for each in FOUND if given.found)
    chosen = itertools.islice(itertools.chain(found, every), given.seeds)
    return until_failure(chosen) if given.until_failure else many(list(chosen))


def until_failure(scenarios: Iterable[Scenario]) -> int:
    """Play scenarios in this process until one fails; print their number, its seed, draw and problem, or just 0."""
    for played, outcome in enumerate(play_all(scenarios), 1):
        if outcome.problem:
            print(played, outcome.scenario.seed, outcome.scenario.draw, outcome.problem)
            return 1
    print(0)
    return 0


def many(scenarios: Sequence[Scenario]) -> int:
    """Play scenarios on all cores; print the failed ones, shrunk, and the command that replays each."""
    began, played, longest = time.monotonic(), 0, 0.0
    failed: list[Outcome] = []
    chunks = [scenarios[first : first + CHUNK] for first in range(0, len(scenarios), CHUNK)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        for outcomes in pool.imap_unordered(play_chunk, chunks):
            played += len(outcomes)
            longest = max([longest, *(outcome.seconds for outcome in outcomes)])
            for outcome in filter(lambda outcome: outcome.problem, outcomes):
                failed.append(outcome)
                print(f"\rseed {outcome.scenario.seed}: {outcome.problem}", file=sys.stderr)
            line = f"{played:,} of {len(scenarios):,} seeds, {len(failed)} failed"
            print(f"\r{line}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for outcome in sorted(failed, key=lambda each: each.scenario.seed)[:SHOWN]:
        small, seed, draw = shrunk(outcome.scenario), outcome.scenario.seed, outcome.scenario.draw
        again = f" DRAW={draw}" if draw != DRAW else ""
        print(f"seed {seed}: {outcome.problem}\n  play it: make simulate SEED={seed}{again}")
        print("\n".join(f"  {line}" for line in [*told(small), *replay(small).story[-STORY_LINES:]]))
    took = f"{played:,} seeds in {time.monotonic() - began:.0f} s"
    print(f"{took}: {len(failed)} failed; the longest run took {longest:.0f} s of virtual time")
    return bool(failed)


def play_chunk(scenarios: Sequence[Scenario]) -> list[Outcome]:
    """Play scenarios in this process; only failed ones keep their story."""
    logging.disable(logging.CRITICAL)
    return [each if each.problem else dataclasses.replace(each, story=[]) for each in play_all(scenarios)]


def replay(scenario: Scenario, *, decisions: bool = False) -> Outcome:
    """Play one scenario; with `decisions`, its story includes what workers log, such as each step and its reason."""
    (outcome,) = play_all([scenario], decisions=decisions)
    return outcome


def shrunk(scenario: Scenario) -> Scenario:
    """Remove faults, one after the other, as long as the run still fails."""
    for fault in scenario.faults:
        fewer = dataclasses.replace(scenario, faults=tuple(each for each in scenario.faults if each is not fault))
        if replay(fewer).problem:
            scenario = fewer
    return scenario


def told(scenario: Scenario) -> list[str]:
    """Describe a scenario in lines."""
    lines = [
        f"{scenario.shards} shards, {scenario.workers} workers, a checkpoint every {scenario.checkpoint_every} epochs",
        f"{scenario.options}",
        f"{scenario.weather}",
        *([f"with {', '.join(scenario.visitors)}"] if scenario.visitors else []),
        f"clocks drift by up to {scenario.drift}",
        *(["checkpoints are kept in a store, too"] if scenario.stored else []),
        *(["rows begin with other vectors"] if scenario.init else []),
        *(["every client has a key for a role"] if scenario.roles else []),
        f"at most {scenario.unwritten} automatic checkpoints are unwritten",
        *([f"rows in messages of at most {scenario.piece_bytes} bytes"] if scenario.piece_bytes else []),
    ]
    return [*lines, *(f"fault: {fault}" for fault in scenario.faults)]


if __name__ == "__main__":
    sys.exit(main())
