"""Write the report of `glovewire study staleness`: for each setting a verdict, a table and plots."""

import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from .plots import ages, curves, three

THREE, CURVES, AGES = "three", "curves", "staleness"


def time_to(run: dict[str, Any], goal: float) -> tuple[float, int] | None:
    """Return seconds and gradients until a run first reached the loss `goal`, interpolated; None if it did not."""
    samples = list(zip(run["t"], run["gradients"], run["loss"], strict=True))
    if samples[0][2] <= goal:
        return samples[0][:2]
    for (t, done, loss), (t_next, done_next, loss_next) in pairwise(samples):
        if loss_next <= goal:
            part = (loss - goal) / (loss - loss_next)
            return t + part * (t_next - t), round(done + part * (done_next - done))
    return None


def report(result: dict[str, Any], out: Path) -> str:
    """Return the report as Markdown and draw its plots into `out`."""
    where, options = result["surroundings"], result["options"]
    dimensions = f"{options['dim']} dimensions, " if options["objective"] == "glove" else ""
    lines = [
        "# Staleness: modes and policies compared by time",
        "",
        f"{result['workload']}; {result['clock']}; "
        f"{options['optimizer']}, {dimensions}{options['epochs']} epochs or {result['seconds']:g} s; "
        f"{where['cores']} cores ({where['processor']}).",
        "",
        "Every method was tried at the same learning rates with the first seed; the best rate at which no seed "
        f"diverges was repeated with {result['seeds']} seeds in all, and those runs are shown. The control is plain "
        "asynchronous training at the largest rate divided by the number of workers. The loss is that of the same "
        f"{result['unit']} for all. The goal, unless given, is the loss of plain asynchronous training after two "
        "thirds of its run.",
        "",
        "Policies (`--staleness`) scale a gradient whose rows have changed since they were pulled. Modes are the "
        "values of `--consistency`.",
    ]
    for setting in result["settings"]:
        lines += ["", *_section(setting, result, out)]
    return "\n".join(lines) + "\n"


def _section(setting: dict[str, Any], result: dict[str, Any], out: Path) -> list[str]:
    unit, name = result["unit"], setting["folder"]
    heading = f"{setting['workers']} workers, batches of {setting['batch_size']} {unit}, latency {setting['latency']}"
    caption = f"{result['workload']}   ·   {result['clock']}\n{heading}"
    seeds = "one seed" if result["seeds"] == 1 else f"median and range of {result['seeds']} seeds"
    of_seeds = f"{caption}   ·   {seeds}"
    best = quickest_policy(setting)
    methods = {method["method"]: method for method in setting["methods"]}
    mode = next((title for title, method in methods.items() if method["mode"] == title != "async"), None)
    trio = [methods[title] for title in (mode, "async", best) if title]
    three(trio, setting["goal"], [_seconds(setting, each) for each in trio], of_seeds, out / f"{name}-{THREE}")
    curves(setting, of_seeds, unit, out / f"{name}-{CURVES}")
    ages(setting, caption, out / f"{name}-{AGES}")
    plain = _seconds(setting, methods["async"])
    tried = list(methods["async"]["tried"])
    return [
        f"## {heading}",
        "",
        verdict(setting, best, plain),
        "",
        f"![the three]({name}-{THREE}.png)",
        "",
        f"| method | rate | runs that reached {setting['goal']:g} | seconds to goal, median (range) | against async | "
        f"{unit} to goal | final loss, median |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(_row(setting, method, plain) for method in setting["methods"]),
        "",
        f"![every method]({name}-{CURVES}.png)",
        "",
        "| final loss with the first seed at rate | " + " | ".join(tried) + " |",
        "|---|" + "---:|" * len(tried),
        *(
            f"| {method['method']} | " + " | ".join(method["tried"][rate] for rate in tried) + " |"
            for method in setting["methods"]
            if all(rate in method["tried"] for rate in tried)
        ),
        "",
        f"![staleness]({name}-{AGES}.png)",
    ]


def quickest_policy(setting: dict[str, Any]) -> str | None:
    """Return the policy with the shortest median time to the goal, or the lowest loss if none reached the goal."""
    ways = [row for row in setting["methods"] if row["policy"] != "none"]

    def order(row: dict[str, Any]) -> tuple[bool, float, float]:
        there = _seconds(setting, row)
        last = statistics.median(run["loss"][-1] for run in row["runs"])
        return there is None, there or 0.0, last

    return str(min(ways, key=order)["method"]) if ways else None


def verdict(setting: dict[str, Any], best: str | None, plain: float | None) -> str:
    """Return one or two sentences that compare the policy `best` with the fastest method without a policy."""
    there = {row["method"]: _seconds(setting, row) for row in setting["methods"]}
    mine = there.get(best or "")
    if mine is None:
        return "No staleness policy reached the goal with every seed."
    without = [row["method"] for row in setting["methods"] if row["policy"] == "none"]
    others = {title: seconds for title in without if (seconds := there[title]) is not None}
    if not others:
        return f"`{best}` reached the goal after {mine:.2f} s; no method without a policy did with every seed."
    first = min(others, key=lambda title: others[title])
    if not others[first]:
        return f"The goal, {setting['goal']:g}, was reached before any training, so it compares nothing."
    which = "" if plain is None or first == "async" else f" Plain asynchronous training took {plain:.2f} s."
    share = 100 * (1 - mine / others[first])
    return (
        f"The fastest policy, `{best}`, reached the goal after {mine:.2f} s; the fastest method without one, {first}, "
        f"after {others[first]:.2f} s: {abs(share):.0f} % {'sooner' if share > 0 else 'later'} with the policy.{which}"
    )


def _reached(setting: dict[str, Any], method: dict[str, Any]) -> list[tuple[float, int]]:
    """Return (seconds, gradients) to the goal for each run of a method that reached the goal."""
    found = (time_to(run, setting["goal"]) for run in method["runs"])
    return [each for each in found if each is not None]


def _seconds(setting: dict[str, Any], method: dict[str, Any]) -> float | None:
    """Return a method's median seconds to the goal; None unless all its runs reached the goal."""
    reached = _reached(setting, method)
    return statistics.median(t for t, _ in reached) if len(reached) == len(method["runs"]) else None


def _row(setting: dict[str, Any], method: dict[str, Any], plain: float | None) -> str:
    reached, median = _reached(setting, method), _seconds(setting, method)
    last = statistics.median(run["loss"][-1] for run in method["runs"])
    seconds = entries = beside = "never"
    if reached:
        times = [t for t, _ in reached]
        seconds = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        entries = f"{statistics.median(done for _, done in reached) * setting['batch_size']:,.0f}"
        beside = f"{100 * (median / plain - 1):+.0f} %" if median is not None and plain else ""
    diverged = sum(run["ended"] == "diverged" for run in method["runs"])
    shown = f"{last:.4f}" if not diverged else f"{diverged} diverged"
    return (
        f"| {method['method']} | {method['rate']:g} | {len(reached)} of {len(method['runs'])} | {seconds} | {beside} | "
        f"{entries} | {shown} |"
    )
