"""Run the fault matrix, every fault on every role in every mode, and print it as a Markdown table.

    PYTHONPATH=.:tests/support python benchmarks/faults.py [--only "dropped, worker"] [--seconds 1500] [--patience 3]

Each cell is a training of two shards, two workers and a monitor over loopback TCP (tests/support/matrix.py). A row is
printed as soon as it is complete, and a line for each cell goes to stderr. Cells with a wrong outcome are explained at
the end; exit status 1 if there are any. Cells that are not reached within `--seconds` are marked as not run.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from handmade import random_dataset
from matrix import Outcome, play, undisturbed
from relay import Fault
from small_disk import may_mount
from stage import MODES, Cell, Role

EXCLUSIVE = "blocks/exclusive"
RATES = {Fault.DROP: (0.01, 0.2, 0.4)}
SHORT = {0.4: 1}
"""Epochs for each rate at which every second message must be retransmitted."""


def main() -> int:
    """Run all cells and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the rows that contain this, as in 'dropped, worker'")
    parser.add_argument("--seconds", type=float, default=1500.0)
    parser.add_argument(
        "--patience", type=float, default=3.0, help="how many times slower than unloaded this machine may be"
    )
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    with tempfile.TemporaryDirectory(prefix="glovewire-faults-") as name:
        folder = Path(name)
        chosen = list(cells(args.only, disks=may_mount(folder)))
        if not chosen:
            parser.error(f"--only {args.only!r} is in no row that this machine can play")
        random_dataset(folder / "data", size=40)
        outcomes = run_cells(folder, chosen, end, args.patience)
        bad = [outcome for outcome in print_table(outcomes) if outcome.problems]
    for outcome in bad:
        cell = outcome.cell
        print(f"\n{cell.fault.value}, {cell.rate:g}, {cell.role.value}, {cell.mode}: {'; '.join(outcome.problems)}")
    return 1 if bad else 0


def run_cells(folder: Path, chosen: list[Cell], end: float, patience: float) -> Iterator[Outcome]:
    """Run one cell after the other until the time `end`."""
    expected: dict[int, bytes] = {}
    for number, cell in enumerate(chosen):
        if time.monotonic() > end:
            yield Outcome(cell, end="not run", problems=["no time left"])
            continue
        if cell.length not in expected:
            expected[cell.length] = undisturbed(folder, cell.length)
        outcome = play(cell, folder, expected[cell.length], f"run-{number}", patience)
        facts = (f"{cell.rate:g}", cell.role.value, cell.mode, f"{outcome.seconds:.1f} s", outcome.end, outcome.pushes)
        print(cell.fault.value, *facts, *outcome.problems, sep=" | ", file=sys.stderr, flush=True)
        yield outcome


def cells(only: str, *, disks: bool) -> Iterator[Cell]:
    """Yield every cell that is possible on this machine."""
    for fault in Fault:
        if fault is Fault.NONE or (fault is Fault.DISK and not disks):
            continue
        for role in (role for role in Role if only.lower() in f"{fault.value}, {role.value}".lower()):
            for rate in RATES.get(fault, (0.2,)):
                for mode in MODES:
                    cell = Cell(fault, role, mode, rate, epochs=SHORT.get(rate, 0))
                    if cell.possible and (rate == 0.2 or (role is Role.SHARD and mode == EXCLUSIVE)):
                        yield cell


def print_table(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Print a table with faults and roles down and modes across, row by row; pass the outcomes on."""
    print(f"| fault | at | {' | '.join(MODES)} |", "|---|---|" + "---|" * len(MODES), sep="\n", flush=True)
    for (what, role), of_row in itertools.groupby(outcomes, row):
        found = {}
        for outcome in of_row:
            found[outcome.cell.mode] = cell_text(outcome)
            yield outcome
        print(f"| {' | '.join([what, role, *(found.get(mode, '') for mode in MODES)])} |", flush=True)


def row(outcome: Outcome) -> tuple[str, str]:
    """Return the first two columns of an outcome's row."""
    cell = outcome.cell
    return cell.fault.value + (f", {cell.rate:.0%}" if cell.fault in RATES else ""), cell.role.value


def cell_text(outcome: Outcome) -> str:
    """Return the text of a cell."""
    if outcome.problems:
        return f"**{outcome.end}**"
    bytes_ = ", same bytes" if outcome.same_bytes else ""
    return f"{outcome.end}{bytes_}, {outcome.seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
