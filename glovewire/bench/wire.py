"""Measure pulls and pushes between a real server and a real worker for `glovewire bench wire`.

A server process on loopback TCP holds a table; this process is the server's only worker and uses the client and store
of training. Every pushed row is counted, and the table is compared with the counts at the end.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from glovewire.common.runtime.memory import freeze_loaded_objects, keep_freed_memory

from .config import NULL_ROWS, WireConfig
from .measurements import CaseStatistics, surroundings
from .wire_driver import NULL_STEPS, Case, WireDriver
from .wire_server import wire_server

WARM_UP_S = 0.3


def bench(config: WireConfig, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure every case of `config`; `report` gets a line per repeat."""
    keep_freed_memory()  # as servers and workers do
    freeze_loaded_objects()
    before = surroundings()
    with tempfile.TemporaryDirectory(prefix="glovewire-bench-") as folder:
        plain, encrypted = (
            wire_server(Path(folder, name), config.rows, config.options, encrypted=name == "encrypted")
            for name in ("plain", "encrypted")
        )
        with plain as (store, server), encrypted as others:
            most = max(config.sizes)
            drivers = [WireDriver(*ends, config.rows, most, config.seed) for ends in ((store, server), others)]
            cases, steps = _measure(config, drivers, report)
            lost = sum(driver.rows_not_as_pushed() for driver in drivers)
    row_bytes = store.width * 4
    results = [{**vars(case), **each.figures(row_bytes)} for case, each in sorted(cases.items())]
    sent, failed = (
        sum(getattr(each, name) for each in (*cases.values(), *steps.values())) for name in ("sent", "failed")
    )
    return {
        "surroundings": before,
        "table": {"rows": config.rows, "dim": config.dim, "floats_per_row": store.width, "bytes_per_row": row_bytes},
        "repeats": config.repeats,
        "seconds_per_figure": config.seconds,
        "results": results,
        **{name: {"rows": NULL_ROWS, **each.figures(row_bytes)} for name, each in steps.items()},
        "success": (sent - failed) / sent,
        "rows_not_as_pushed": lost,
    }


def _measure(
    config: WireConfig, drivers: list[WireDriver], report: Callable[[str], None]
) -> tuple[dict[Case, CaseStatistics], dict[str, CaseStatistics]]:
    """Measure all cases on the plain connection; on the encrypted one, only ranges with the largest window."""
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
    found = {case: CaseStatistics() for case in cases}
    steps = {name: CaseStatistics() for name in NULL_STEPS}
    for driver in drivers:
        driver.run(driver.starter(Case("pull", "random", NULL_ROWS, 1)), 1, min(WARM_UP_S, config.seconds))
    for repeat in range(config.repeats):
        for case in cases:
            driver = drivers[case.encrypted]
            found[case].add(case.size, driver.run(driver.starter(case), case.window, config.seconds))
        for name, each in steps.items():
            each.add(NULL_ROWS, drivers[False].null_steps(config.seconds, name))
        report(f"repeat {repeat + 1} of {config.repeats} is done")
    return found, steps


def table(result: dict[str, Any]) -> str:
    """Return the result of `bench` as text: a row for each case, then a summary."""
    lines = ["operation  rows/message  window   M rows/s (min to max)       GB/s   p50 us   p99 us"]
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
    lines.append("CURVE: ranges over an encrypted connection to a second server")
    lines.append(
        f"rows of {about['floats_per_row']} float32, {about['dim']} of them the vector; "
        f"success {result['success']:.2%}; {result['rows_not_as_pushed']} rows not as pushed"
    )
    return "\n".join([*lines, "", *summary(result)])


def summary(result: dict[str, Any]) -> list[str]:
    """Return a line per operation with the fastest plain case, the fastest encrypted rate, and the shortest wait."""
    lines = ["in short, medians"]
    for operation in dict.fromkeys(one["operation"] for one in result["results"]):
        cases = [one for one in result["results"] if one["operation"] == operation]
        plain = [one for one in cases if not one["encrypted"]]
        best, quick = max(plain, key=_bytes_per_second), min(plain, key=lambda one: one["p50_us"]["median"])
        text = (
            f"  {operation}  {_bytes_per_second(best) / 1e9:.2f} GB/s at most "
            f"({best['size']:,} {_rows(best)} a message, {best['window']} in flight)"
        )
        if encrypted := [one for one in cases if one["encrypted"]]:
            text += f", {max(map(_bytes_per_second, encrypted)) / 1e9:.2f} encrypted"
        wait = quick["p50_us"]["median"]
        lines.append(f"{text}; an answer takes {wait:.0f} us at least ({quick['size']:,} {_rows(quick)})")
    return lines


def _bytes_per_second(one: dict[str, Any]) -> float:
    return float(one["bytes_per_second"]["median"])


def _rows(one: dict[str, Any]) -> str:
    return "random rows" if one["place"] == "random" else "rows of a range"
