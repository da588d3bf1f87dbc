"""Train word vectors: `glovewire.train`, its progress reports, and the run that it leaves on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glovewire.common.cli.config_file import saved_value
from glovewire.common.endings import Ending
from glovewire.common.errors import ArtifactError, UsageError
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import MANIFEST, Manifest
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.stores import staged
from glovewire.common.text import amount, shown_loss

from ..vectors.keyed_vectors import KeyedVectors, load
from . import background
from .notebook import Bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOSS, _QUALITY = "loss", "quality"


@dataclass(frozen=True)
class Progress:
    """Progress that callbacks receive: `epoch` of `epochs` are done; `loss` is the mean over the matrix.

    `bias_only_loss` is the loss with all vectors at zero, `entries` the number trained so far, and `scores` the last
    score on each test set of `watch`, in percent.
    """

    run: Path
    epoch: int
    epochs: int
    entries: int
    loss: float
    bias_only_loss: float
    entries_per_second: float
    seconds: float
    scores: Mapping[str, float] = field(default_factory=dict)


Callback = Callable[[Progress], object]


def train(
    dataset: Dataset | str | PathLike[str],
    out: str | PathLike[str],
    *,
    workers: int | None = None,
    servers: int = 1,
    callbacks: Iterable[Callback] | Callback = (),
    progress: bool | None = None,
    **options: Any,
) -> Run:
    """Train the word vectors of a dataset in the new folder `out`, and return the run.

    Starts `servers` server shards and `workers` workers (default: one per processor core) as background processes,
    which end with this one. `options` are those of `glovewire train`: dim, epochs, objective, learning_rate, tied, ...
    Each of `callbacks` is called, in this thread, with a `Progress` about ten times a second and at the end; if one
    returns True, the training ends and keeps its vectors. An exception in a callback, like Ctrl-C, ends it too; then
    `Run(out).resume()` can continue it. `progress` says whether to show progress (None: only in notebooks).

    >>> texts = ["the cat sits on the mat", "the dog sits on the rug"] * 10
    >>> dataset = glovewire.preprocess(texts, "data/pets")
    >>> seen = []
    >>> run = glovewire.train(dataset, "runs/pets", dim=8, epochs=3, workers=1, callbacks=seen.append)
    >>> run
    Run('runs/pets': 3 epochs, loss ...)
    >>> run.vectors
    KeyedVectors(7 words, 8 dimensions, ... n-grams)
    >>> seen[-1].epoch, seen[-1].epochs
    (3, 3)
    """
    where, place = Path(out), dataset.path if isinstance(dataset, Dataset) else Path(dataset)
    out = staged(where)
    epochs, keys = options.get("epochs"), options.get("keys")
    every = [callbacks] if callable(callbacks) else list(callbacks)
    follower = _Follower(out, every, epochs or 0, None if keys is None else Path(keys))
    with Bar(f"train {out.name}", progress) as bar:

        def each(_: Path) -> None:
            for state in follower.news():
                bar.update(*_spoken(state))

        given = {"workers": workers, "servers": servers, "progress": bar.on_stderr, **options, "epochs": None}
        arguments = [str(place), "--out", str(where)]
        if epochs is not None:  # as a flag, because only a flag extends a resumed run
            arguments += ["--epochs", str(epochs)]
        facts = background.run("train", arguments, given, each, show=bar.on_stderr)
    return Run(out, facts=facts)


class Run:
    """A training on disk, in the folder `path`: `Run("runs/pydoc")` opens one.

    >>> run = getfixture("run")
    >>> run
    Run('...': 2 epochs, loss ...)
    """

    def __init__(self, path: str | PathLike[str], *, facts: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        if not runs.is_run(self.path):
            raise ArtifactError(f"{self.path} is not the folder of a training")
        self._facts = facts

    def __repr__(self) -> str:
        facts = self.facts
        if "epochs" not in facts or "loss" not in facts:
            return f"Run({str(self.path)!r}: not finished)"
        return f"Run({str(self.path)!r}: {facts['epochs']} epochs, loss {shown_loss(facts['loss'])})"

    @property
    def facts(self) -> dict[str, Any]:
        """Return the facts that the run recorded at its end: epochs, loss, seconds, ...; empty until it has finished.

        >>> getfixture("run").facts["epochs"]
        2
        """
        if self._facts is None and (self.path / MANIFEST).exists():
            self._facts = Manifest.read(self.path).facts
        return dict(self._facts or {})

    @cached_property
    def vectors(self) -> KeyedVectors:
        """Return the vectors, the most frequent word first; for an unfinished run, those of its newest checkpoint.

        >>> getfixture("run").vectors.vector_size
        8
        """
        return load(self.path)

    def metrics(self, topic: str = _LOSS) -> list[dict[str, Any]]:
        """Return the losses of all workers together over time, or (`topic="quality"`) the scores; pandas takes both.

        A loss has `t` (seconds), `epoch`, `entries` (trained), `loss`, `bias_only_loss`, `mean_loss` (over the whole
        matrix), `norm` and `entries_per_second`; a score has `t`, `entries`, `test` and `score` (percent).

        >>> losses = getfixture("run").metrics()
        >>> losses[-1]["epoch"], losses[-1]["loss"] < losses[0]["bias_only_loss"]
        (2, True)
        """
        if topic not in (_LOSS, _QUALITY):
            raise UsageError(f"there are no metrics {topic!r}: use {_LOSS!r} or {_QUALITY!r}")
        file = self.path / runs.METRICS
        lines = file.read_bytes() if file.exists() else b""
        return [sample for kind, sample in _samples(lines) if kind == topic]

    def plot(self) -> Figure:
        """Return a figure of the loss over time and over entries; a notebook shows it.

        >>> len(getfixture("run").plot().axes)
        2
        """
        from glovewire.monitor.history.records import read_metrics
        from glovewire.monitor.sinks.plot import draw

        figure = draw(read_metrics(self.path))
        vars(figure)["_repr_png_"] = partial(_as_png, figure)  # lets a notebook show it without pyplot
        return figure

    def resume(
        self,
        *,
        epochs: int | None = None,
        dataset: Dataset | str | PathLike[str] | None = None,
        callbacks: Iterable[Callback] | Callback = (),
        progress: bool | None = None,
        **options: Any,
    ) -> Run:
        """Continue an interrupted training from its newest checkpoint, and return the run.

        With more `epochs` than before, a finished run is trained further. `dataset` is needed if the dataset
        has been moved since. `options` are those of `glovewire train --resume`.

        >>> getfixture("run").resume(epochs=4)
        Run('...': 4 epochs, loss ...)
        """
        from ..vectors.checkpoint_vectors import dataset_of

        place = dataset if dataset is not None else dataset_of(self.path)
        if place is None:
            raise UsageError(f"{self.path / runs.CONFIG} names no dataset: give the one that the run was trained on")
        return train(place, self.path, callbacks=callbacks, progress=progress, resume=True, epochs=epochs, **options)


def _as_png(figure: Figure) -> bytes:
    stream = BytesIO()
    figure.savefig(stream, format="png", dpi=80)
    return stream.getvalue()


# ---- following a running training


class _Follower:
    """Reads the losses and scores that the servers append to a run's metrics, and passes them to callbacks."""

    def __init__(self, run: Path, callbacks: list[Callback], epochs: int, keys: Path | None) -> None:
        self._run, self._callbacks, self._epochs, self._keys = run, callbacks, epochs, keys
        self._file = run / runs.METRICS
        self._at = self._file.stat().st_size if self._file.exists() else 0
        self._scores: dict[str, float] = {}
        self._asked_to_end = False

    def news(self) -> list[Progress]:
        """Return the progress since the last call, after passing it to every callback."""
        found = []
        for topic, sample in _samples(self._appended()):
            if topic == _QUALITY:
                self._scores = self._scores | {str(sample["test"]): float(sample["score"])}
            else:
                found.append(self._progress(sample))
        for state in found:
            wanted = [callback(state) is True for callback in self._callbacks]
            if any(wanted) and not self._asked_to_end:
                self._asked_to_end = True
                _finish(self._run, self._keys)
        return found

    def _appended(self) -> bytes:
        """Return the whole lines that were appended since the last call."""
        if not self._file.exists():
            return b""
        with self._file.open("rb") as stream:
            stream.seek(self._at)
            lines = stream.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole

    def _progress(self, record: dict[str, Any]) -> Progress:
        self._epochs = self._epochs or saved_value(self._run / runs.CONFIG, "epochs", int) or 0
        return Progress(
            self._run,
            int(record["epoch"]),
            max(self._epochs, int(record["epoch"])),
            int(record["entries"]),
            float(record["mean_loss"]),
            float(record["mean_bias_only_loss"]),
            float(record["entries_per_second"]),
            float(record["t"]),
            self._scores,
        )


def _samples(lines: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (topic, sample) for whole lines of metrics: the scores, and the losses of all workers together."""
    for line in lines.split(b"\n")[:-1]:
        try:
            sample = json.loads(line)
        except ValueError:  # cut off by a crash
            continue
        topic = sample.get("topic", _LOSS) if isinstance(sample, dict) else ""
        if topic == _QUALITY or (topic == _LOSS and sample.get("worker") == "all"):
            yield topic, sample


def _spoken(state: Progress) -> tuple[float, str]:
    """Return the fraction that is done, and a line of text that describes the progress."""
    scores = "".join(f"  {name} {score:.1f}" for name, score in state.scores.items())
    text = (
        f"epoch {state.epoch}/{state.epochs}  loss {state.loss:.4f} (bias only {state.bias_only_loss:.4f})  "
        f"{amount(state.entries_per_second)} entries/s  {state.seconds:.0f} s{scores}"
    )
    return state.epoch / max(state.epochs, 1), text


def _finish(run: Path, keys: Path | None) -> None:
    """End the training in `run` on all its servers, which keep the vectors; `keys` must have an admin's."""
    from glovewire.common.protocol.messages import Finish
    from glovewire.common.roles import Role
    from glovewire.common.transport.client import RequestClient
    from glovewire.common.transport.curve_keys import load_client_keys
    from glovewire.monitor.run_addresses import shards_of

    addresses = [each.address for each in shards_of(run)]
    if not addresses:
        raise UsageError("a callback can end a training only with store='server'")
    ours = None if keys is None else load_client_keys(keys, Role.ADMIN)
    with RequestClient(addresses, "admin", keys=ours) as client:
        for shard in range(len(addresses)):
            client.ask(shard, Finish(Ending.ASKED))
