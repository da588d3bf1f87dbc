"""Measure training for `glovewire bench train`: speed, cost per role, other stores and Stanford's GloVe.

All stores and the peer train in turns on the same matrix, with the same dimensions and threads, so that ratios are
valid even if the machine's speed changes.
"""

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glovewire.common.errors import ProcessDied, UsageError
from glovewire.common.storage.dataset import Dataset

from ..launch.config import LocalConfig
from ..launch.processes import Children
from .config import TrainBenchConfig
from .measured_run import RunOutcome, run_measured
from .measurements import spread, surroundings

ROLES = ("server", "worker")
PEER, RATE = "peer", "entries_per_second"
PEER_EXIT_S = 3600.0

Figures = dict[str, Any]


def bench(config: TrainBenchConfig, report: Callable[[str], None]) -> dict[str, Any]:
    """Train `repeats` times on each store, in turns with the peer; `report` gets a line per repeat.

    A failed training lowers `success` and excludes its repeat; ProcessDied if no repeat succeeds.
    """
    dataset = Dataset.open(config.dataset)
    before = surroundings()
    with tempfile.TemporaryDirectory(prefix="glovewire-bench-") as folder:
        stores = dict.fromkeys((config.store, *config.beside))
        trainings = {store: _training(config, store, Path(folder)) for store in stores}
        if config.peer is not None:
            trainings[PEER] = StanfordTraining(config, dataset, Path(folder)).train
        repeats, failed = _in_turns(config.repeats, trainings, report)
    return {
        "surroundings": before,
        "dataset": {"name": config.dataset.name, "words": len(dataset.words), "entries": dataset.total_entries},
        "options": config.options.as_message(),
        "store": config.store,
        "workers": config.workers,
        "servers": config.servers if config.store == "server" else 0,
        "repeats": config.repeats,
        "success": 1 - failed / (config.repeats * len(trainings)),
        **_summary([one[config.store] for one in repeats]),
        "beside": {store: _beside(config.store, store, repeats) for store in config.beside},
        **_peer(config, repeats),
    }


def _training(config: TrainBenchConfig, store: str, folder: Path) -> Callable[[], Figures]:
    """Return a function that trains once on a store; the local store is always a single process."""
    how = LocalConfig(
        dataset=config.dataset,
        out=folder / store,
        store=store,
        workers=1 if store == "local" else config.workers,
        servers=config.servers if store == "server" else 1,
        progress=False,
        options=config.options,
    )

    def train() -> Figures:
        try:
            with Children(folder / "logs") as children:
                return _figures(run_measured(how, children, store))
        finally:
            shutil.rmtree(folder / store, ignore_errors=True)

    return train


def _in_turns(
    repeats: int, trainings: dict[str, Callable[[], Figures]], report: Callable[[str], None]
) -> tuple[list[dict[str, Figures]], int]:
    """Return the figures of each repeat that succeeded, and the number of failed trainings; ProcessDied if all did."""
    complete: list[dict[str, Figures]] = []
    failed = 0
    for repeat in range(1, repeats + 1):
        found: dict[str, Figures] = {}
        for name, train in trainings.items():
            try:
                found[name] = train()
            except ProcessDied as error:
                failed += 1
                if repeat == repeats and not complete:
                    raise
                report(f"repeat {repeat} of {repeats}: {name} failed: {error}")
        if len(found) == len(trainings):
            complete.append(found)
            rates = (f"{name} {one[RATE] / 1e6:.4g}" for name, one in found.items())
            report(f"repeat {repeat} of {repeats}: M entries/s {', '.join(rates)}")
    return complete, failed


def _figures(outcome: RunOutcome) -> Figures:
    """Return the figures of one training; those of a role are named `role.figure`."""
    facts = outcome.facts or {}
    millions = max(facts["entries"], 1) / 1e6
    found: Figures = {
        "seconds": facts["seconds"],
        "entries_per_second": facts["entries_per_second"],
        "bytes_pushed_per_entry": facts["bytes_sent"] / max(facts["entries"], 1),
        "bytes_pulled_per_entry": facts["bytes_received"] / max(facts["entries"], 1),
        "loss": facts["loss"],
        "bias_only_loss": facts["bias_only_loss"],
    }
    for role in ROLES:
        if any(process.role == role for process in outcome.processes):
            pss, private = outcome.peak_bytes(role)
            found[f"{role}.cpu_s_per_million_entries"] = outcome.cpu_seconds(role) / millions
            found[f"{role}.peak_pss_mb"], found[f"{role}.peak_private_mb"] = pss / 1e6, private / 1e6
    return found


def _summary(repeats: list[Figures]) -> dict[str, Any]:
    """Return medians and ranges over the repeats, with the figures of a role under its name."""
    result: dict[str, Any] = {}
    for name in repeats[0]:
        role, dot, figure = name.partition(".")
        place = result.setdefault(role, {}) if dot else result
        place[figure if dot else name] = spread(one[name] for one in repeats if name in one)
    return result


def _beside(store: str, other: str, repeats: list[dict[str, Figures]]) -> dict[str, Any]:
    """Return the figures of another store, and the speed of the first one relative to it."""
    ratios = spread(one[store][RATE] / one[other][RATE] for one in repeats)
    return {**_summary([one[other] for one in repeats]), f"{store}_is_times_as_fast": ratios}


def _peer(config: TrainBenchConfig, repeats: list[dict[str, Figures]]) -> dict[str, Any]:
    if config.peer is None:
        return {}
    rate = spread(one[PEER][RATE] for one in repeats)
    return {
        "peer": {"threads": config.workers, "epochs": config.peer_epochs, RATE: rate},
        "times_as_fast_as_peer": spread(one[config.store][RATE] / one[PEER][RATE] for one in repeats),
    }


class StanfordTraining:
    """Trains with Stanford's `glove` on the same matrix; the export of the matrix is not timed."""

    def __init__(self, config: TrainBenchConfig, dataset: Dataset, folder: Path) -> None:
        from ..vectors.export import export

        assert config.peer is not None
        self._config, self._entries, self._out = config, dataset.total_entries, folder / "peer-vectors"
        self._matrix = folder / "peer-matrix"
        self._program = _program(config.peer)
        export(config.dataset, "stanford", self._matrix)

    def train(self) -> Figures:
        """Train once; return the speed from the end of the preparations to the end of the last epoch."""
        options = self._config.options
        words = {
            "-input-file": self._matrix / "cooccurrence.bin", "-vocab-file": self._matrix / "vocab.txt",
            "-save-file": self._out, "-vector-size": options.dim, "-threads": self._config.workers,
            "-iter": self._config.peer_epochs, "-x-max": options.x_max, "-alpha": options.alpha, "-verbose": 2,
        }  # fmt: skip
        process = subprocess.Popen(
            [str(self._program), *(str(word) for pair in words.items() for word in pair)],
            cwd=self._matrix,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            began, ended, output = _times(process)
        finally:
            process.kill()
            process.communicate()
        if ended <= began or began == 0:
            raise ProcessDied(f"{self._program.name} ended with status {process.returncode}: {output[-200:].strip()}")
        return {RATE: self._entries * self._config.peer_epochs / (ended - began)}


def _times(process: subprocess.Popen[str]) -> tuple[float, float, str]:
    """Return when the preparations and the last epoch ended, according to the program's output, and the output."""
    assert process.stderr is not None
    began = ended = 0.0
    output = ""
    for line in process.stderr:
        output += line
        if re.search(r"\biter: *\d+", line):
            ended = time.perf_counter()
        elif re.search(r"done\.", line) and not ended:
            began = time.perf_counter()
    process.wait(PEER_EXIT_S)
    return began, ended, output


def _program(folder: Path) -> Path:
    for place in (folder / "glove", folder / "build" / "glove"):
        if place.is_file():
            return place.resolve()
    raise UsageError(f"{folder} has neither glove nor build/glove: build Stanford's GloVe there first")


def table(result: dict[str, Any]) -> str:
    """Return the result as text."""
    lines = _lines(result, result["store"])
    lines[0] += f", workers {result['workers']}, servers {result['servers']}, {result['options']['dim']} dimensions"
    for store, one in result["beside"].items():
        lines += _lines(one, store)
        ratio = one[f"{result['store']}_is_times_as_fast"]
        lines.append(f"store {result['store']} is {_shown(ratio)} times as fast as store {store}")
    if "peer" in result:
        peer = result["peer"]
        lines.append(
            f"peer    {_shown(peer[RATE], 1e-6)} M entries/s with {peer['threads']} threads; "
            f"Glovewire is {_shown(result['times_as_fast_as_peer'])} times as fast"
        )
    return "\n".join(lines)


def _lines(result: dict[str, Any], store: str) -> list[str]:
    lines = [
        f"{_shown(result[RATE], 1e-6)} M entries/s, store {store}",
        f"bytes per entry: pushed {_shown(result['bytes_pushed_per_entry'])}, pulled "
        f"{_shown(result['bytes_pulled_per_entry'])}; loss {_shown(result['loss'])}, "
        f"bias-only loss {_shown(result['bias_only_loss'])}",
    ]
    for role in ROLES:
        if role in result:
            one = result[role]
            lines.append(
                f"{role:<7} {_shown(one['cpu_s_per_million_entries'])} CPU s per million entries, peak memory of one "
                f"process {_shown(one['peak_pss_mb'])} MB (PSS), {_shown(one['peak_private_mb'])} MB private"
            )
    return lines


def _shown(figure: dict[str, float], scale: float = 1.0) -> str:
    low, high = figure["min"] * scale, figure["max"] * scale
    return f"{figure['median'] * scale:.4g} ({low:.4g} to {high:.4g})"
