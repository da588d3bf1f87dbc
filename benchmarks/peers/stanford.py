"""Compare Glovewire with a Stanford GloVe that you have built: training, or preprocessing, in turns in one run.

    python benchmarks/peers/stanford.py train DATASET path/to/GloVe [--peer-epochs 1] [OPTIONS OF bench train]
    python benchmarks/peers/stanford.py preprocess CORPUS path/to/GloVe [OPTIONS OF bench preprocess]

Prints what `glovewire bench train` or `glovewire bench preprocess` prints, and the ratio; `--json` makes the last line
one JSON object.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from corpus_tokens import write_tokens

from glovewire.bench import preprocess as bench_preprocess
from glovewire.bench import train as bench_train
from glovewire.bench.config import PreprocessBenchConfig, TrainBenchConfig
from glovewire.bench.measurements import surroundings
from glovewire.bench.stanford import PEER, beside_peer, program, stanford_training
from glovewire.bench.train import RATE, shown
from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, takes
from glovewire.common.errors import ProcessDied
from glovewire.common.option import at_least, like, option
from glovewire.common.storage.dataset import Dataset
from glovewire.exits import Interruptible
from glovewire.preprocess.config import PreprocessConfig

TOOLS = ("vocab_count", "cooccur", "shuffle")


@click.group(cls=Interruptible, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main() -> None:
    """Compare Glovewire with a Stanford GloVe that you have built, in turns in one run."""


@dataclass(frozen=True, kw_only=True)
class StanfordTrainConfig(TrainBenchConfig):
    """Options of `train`: those of `glovewire bench train`, and the peer's."""

    workers: int = option(2, range=at_least(1), help="Worker processes; threads of the peer.")
    peer: Path = option(argument=True, metavar="GLOVE")
    peer_epochs: int = option(1, range=at_least(1), help="Epochs of each of the peer's trainings.")

    @property
    def is_one_process(self) -> bool:
        """Return False: the peer has as many threads as there are workers."""
        return False

    def conflicts(self) -> list[str]:
        """Return the conflicts between options."""
        problems = super().conflicts()
        if self.options.objective != "glove":
            problems.append(f"the peer trains GloVe, not --objective {self.options.objective}")
        return problems


@dataclass(frozen=True, kw_only=True)
class StanfordPreprocessConfig(PreprocessBenchConfig):
    """Options of `preprocess`: those of `glovewire bench preprocess`, and the peer."""

    memory: int = like(PreprocessBenchConfig, "memory", help="For all processes together; the peer gets as much.")
    runs: int = option(1, range=at_least(1), help="Runs of each; the fastest counts.")
    peer: Path = option(argument=True, metavar="GLOVE", path={"exists": True, "file_okay": False})


@click.command("stanford-train", cls=Command)
@takes(StanfordTrainConfig)
def train(given: Given[StanfordTrainConfig]) -> dict[str, Any]:
    """Measure training on DATASET beside the program `glove` in GLOVE or GLOVE/build, with as many threads.

    The peer trains on the same matrix with the same dimensions, x_max and alpha.
    """
    result = compare_training(given.config(), lambda line: click.echo(line, err=True))
    click.echo(bench_train.table(result))
    peer = result[PEER]
    click.echo(
        f"peer    {shown(peer[RATE], 1e-6)} M entries/s with {peer['threads']} threads; "
        f"Glovewire is {shown(result['times_as_fast_as_peer'])} times as fast"
    )
    return result


@click.command("stanford-preprocess", cls=Command)
@takes(StanfordPreprocessConfig)
def preprocess(given: Given[StanfordPreprocessConfig]) -> dict[str, Any]:
    """Measure preprocessing of CORPUS beside the tools in GLOVE or GLOVE/build.

    Every program runs in a process of its own, one after the other. The peer gets text that is tokenised already,
    while Glovewire begins with raw text.
    """
    result = compare_preprocessing(given.config())
    click.echo(bench_preprocess.table(result))
    click.echo(f"peer: {result['peer_best']:.2f} s on tokenised text; Glovewire takes {result['ratio']} of that")
    return result


main.add_command(train, "train")
main.add_command(preprocess, "preprocess")


def compare_training(config: StanfordTrainConfig, report: Callable[[str], None]) -> dict[str, Any]:
    """Train `repeats` times on each store and with the peer, in turns; `report` gets a line per repeat."""
    dataset, before, glove = Dataset.open(config.dataset), surroundings(), program(config.peer, "glove")
    with tempfile.TemporaryDirectory(prefix="glovewire-peer-") as name:
        folder = Path(name)
        how = {"threads": config.workers, "epochs": config.peer_epochs}
        peer = stanford_training(glove, dataset, folder, config.options, **how)
        trainings = {**bench_train.trainings(config, folder), PEER: peer}
        repeats, success = bench_train.in_turns(config.repeats, trainings, report)
    return {
        "surroundings": before,
        **bench_train.facts(config, dataset, repeats),
        "success": success,
        **beside_peer(repeats, config.store, **how),
    }


def compare_preprocessing(config: StanfordPreprocessConfig) -> dict[str, Any]:
    """Preprocess `runs` times with each program, in turns; `ratio` compares the fastest runs."""
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="glovewire-peer-") as name:
        folder = Path(name)
        tools = StanfordTools(config, folder)
        facts = bench_preprocess.facts(config)
        for n in range(config.runs):
            ours.append(bench_preprocess.preprocess(config.of_run(folder / f"dataset{n}")))
            theirs.append(tools.run())
    best, peer_best = (min(run["total"] for run in runs) for runs in (ours, theirs))
    bests = {"best": best, "peer_best": peer_best, "ratio": round(best / peer_best, 3)}
    return {**facts, "runs": ours, PEER: theirs, **bests}


class StanfordTools:
    """Runs Stanford's three tools on the tokenised text."""

    def __init__(self, config: StanfordPreprocessConfig, folder: Path) -> None:
        vocab_count, cooccur, shuffle = (str(program(config.peer, name)) for name in TOOLS)
        text, cooc = folder / "tokenised.txt", folder / "cooc"
        gigabytes = ["-memory", str(config.memory / (1 << 30)), "-verbose", "0"]
        count = ["-min-count", "1", "-max-vocab", str(config.vocab_size), "-verbose", "0"]
        near = ["-vocab-file", str(folder / "vocab"), "-window-size", str(config.window), "-symmetric", "1"]
        near += ["-overflow-file", str(folder / "overflow")]
        self._steps = [
            (TOOLS[0], [vocab_count, *count], text, folder / "vocab"),
            (TOOLS[1], [cooccur, *near, *gigabytes], text, cooc),
            (TOOLS[2], [shuffle, *gigabytes, "-temp-file", str(folder / "temp")], cooc, folder / "shuffled"),
        ]
        write_tokens(PreprocessConfig(corpus=(str(config.corpus),), out=text))

    def run(self) -> dict[str, float]:
        """Run all tools; return the seconds of each and their total."""
        seconds = {}
        for name, arguments, source, target in self._steps:
            with source.open("rb") as stdin, target.open("wb") as stdout:
                began = time.perf_counter()
                done = subprocess.run(arguments, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, check=False)
                seconds[name] = round(time.perf_counter() - began, 3)
            if done.returncode:
                raise ProcessDied(f"{name} ended with status {done.returncode}: {done.stderr.decode()[-200:].strip()}")
        return seconds | {"total": round(sum(seconds.values()), 3)}


if __name__ == "__main__":
    main()
