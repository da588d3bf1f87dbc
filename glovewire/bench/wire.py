"""`glovewire bench wire`: how fast rows travel between a worker and a server that are both real.

A server process on loopback TCP holds a table; this process is its only worker and uses the same client and store as
training does. Every row pushed is counted and compared with the table at the end: a figure for rows that did not
arrive would be worthless.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from glovewire.common.runtime.memory import freeze_loaded_objects, keep_freed_memory

from .config import NULL_ROWS, WireConfig
from .measurements import Tally, surroundings
from .wire_driver import NULL_STEPS, Case, Wire
from .wire_server import served

WARM_S = 0.3


def bench(config: WireConfig, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything that `config` names; `tell` hears a line for each repeat."""
    keep_freed_memory()  # as server and workers do
    freeze_loaded_objects()
    before = surroundings()
    with tempfile.TemporaryDirectory(prefix="glovewire-bench-") as folder:
        plain, secret = (
            served(Path(folder, name), config.rows, config.options, encrypted=name == "secret")
            for name in ("plain", "secret")
        )
        with plain as (store, server), secret as others:
            most = max(config.sizes)
            wires = [Wire(*ends, config.rows, most, config.seed) for ends in ((store, server), others)]
            tallies, steps = _measure(config, wires, tell)
            lost = sum(wire.rows_not_as_pushed() for wire in wires)
    row_bytes = store.width * 4
    results = [{**vars(case), **tally.figures(row_bytes)} for case, tally in sorted(tallies.items())]
    every = (*tallies.values(), *steps.values())
    sent, failed = sum(tally.sent for tally in every), sum(tally.failed for tally in every)
    return {
        "surroundings": before,
        "table": {"rows": config.rows, "dim": config.dim, "floats_per_row": store.width, "bytes_per_row": row_bytes},
        "repeats": config.repeats,
        "seconds_per_figure": config.seconds,
        "results": results,
        **{name: {"rows": NULL_ROWS, **tally.figures(row_bytes)} for name, tally in steps.items()},
        "success": (sent - failed) / sent,
        "rows_not_as_pushed": lost,
    }


def _measure(
    config: WireConfig, wires: list[Wire], tell: Callable[[str], None]
) -> tuple[dict[Case, Tally], dict[str, Tally]]:
    """Every case over the plain wire, and those of ranges with the most messages in flight over the encrypted one."""
    cases = [
        Case(operation, place, size, window)
        for operation in ("pull", "push")
        for place in ("random", "range")
        for size in config.sizes
        for window in config.windows
    ]
    cases += [
        replace(case, encrypted=True) for case in cases if case.place == "range" and case.window == max(config.windows)
    ]
    tallies: dict[Case, Tally] = defaultdict(Tally)
    steps = {name: Tally() for name in NULL_STEPS}
    for wire in wires:
        wire.run(wire.starter(Case("pull", "random", NULL_ROWS, 1)), 1, min(WARM_S, config.seconds))
    for repeat in range(config.repeats):
        for case in cases:
            wire = wires[case.encrypted]
            tallies[case].add(case.size, wire.run(wire.starter(case), case.window, config.seconds))
        for name, tally in steps.items():
            tally.add(NULL_ROWS, wires[False].null_steps(config.seconds, name))
        tell(f"repeat {repeat + 1} of {config.repeats} is done")
    return dict(tallies), steps


def table(result: dict[str, Any]) -> str:
    """The result as text for people."""
    lines = ["operation  rows/message  window   M rows/s (least to most)    GB/s   p50 us   p99 us"]
    for one in result["results"]:
        rate, name = one["rows_per_second"], f"{one['operation']} {'CURVE' if one['encrypted'] else one['place']}"
        lines.append(
            f"{name:<12}{one['size']:>11}{one['window']:>8}{rate['median'] / 1e6:>11.3f}"
            f" ({rate['min'] / 1e6:.3f} to {rate['max'] / 1e6:.3f}){one['bytes_per_second']['median'] / 1e9:>8.2f}"
            f"{one['p50_us']['median']:>9.0f}{one['p99_us']['median']:>9.0f}"
        )
    for name, what in NULL_STEPS.items():
        one = result[name]
        lines.append(
            f"null step (pull {NULL_ROWS} + push {NULL_ROWS} rows, {what}): p50 {one['p50_us']['median']:.0f} us "
            f"({one['p50_us']['min']:.0f} to {one['p50_us']['max']:.0f}), p99 {one['p99_us']['median']:.0f} us"
        )
    about = result["table"]
    lines.append("CURVE: ranges over an encrypted connection, to a server of its own")
    lines.append(
        f"rows of {about['floats_per_row']} float32 ({about['dim']} of them the vector); "
        f"success {result['success']:.2%}; {result['rows_not_as_pushed']} rows not as pushed"
    )
    return "\n".join(lines)
