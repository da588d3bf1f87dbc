"""Define what a study trains by minibatches: initial rows, batches, gradients, a fixed sample, and a worker's process.

`emulation` trains a Problem with processes, `simulation` in virtual time.
"""

import dataclasses
import gzip
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Array, Rows
from glovewire.common.errors import ArtifactError, MissingExtra
from glovewire.common.model.options import BATCH_MODES, Mode, TrainingOptions
from glovewire.common.model.random_streams import Purpose, stream
from glovewire.common.model.row_layout import RowLayout, state_columns
from glovewire.common.model.tensor_layout import ROW, TABLE
from glovewire.common.storage.dataset import Dataset
from glovewire.common.text import printable
from glovewire.worker.config import WorkerConfig
from glovewire.worker.dense.client import Client
from glovewire.worker.kernels import objectives
from glovewire.worker.service import work
from glovewire.worker.simulated_latency import latencies
from glovewire.worker.training.minibatch_trainer import Gradients, Minibatch, MinibatchSampler, glove_gradients

SAMPLE = 20_000
NO_WORKER = 1 << 40
"""Number of a random stream that no worker uses, for the fixed sample and initial weights."""
DIGITS, NETWORK = "digits", "network"
HIDDEN = 64
CLASSES = 10


class Problem(Protocol):
    """A learning problem: `examples` per epoch, `unit` (what an example is called), `sample` (the batch for the loss).

    The `rows` of a batch are the numbers of the table rows that it needs, distinct and in ascending order. A server
    keeps them in its `table` of `table_rows` rows; `folder` is the dataset that it serves, None for a dense network.
    """

    name: str
    unit: str
    examples: int
    sample: Any
    table: str
    table_rows: int
    folder: Path | None

    def initial(self, options: TrainingOptions) -> tuple[Rows, int]:
        """Return the initial table, including optimizer state, and the number of parameter columns."""

    def batches(self, options: TrainingOptions, worker: int) -> Callable[[], Any]:
        """Return a function that draws the next batch of a worker."""

    def gradients(self, batch: Any, rows: Rows, options: TrainingOptions) -> Gradients:
        """Return the gradients of a batch, one per row of `rows`."""

    def served(self, options: TrainingOptions, workers: int) -> TrainingOptions:
        """Return the training options for a server; compile what its workers need, before they are forked."""

    def work(self, options: TrainingOptions, address: str, number: int, latency: str) -> None:
        """Train as worker `number` of the server at `address` until the run is over."""


def problem(data: Path) -> "GloveProblem | ImageProblem":
    """Load images if `data` is `digits` or a folder of idx files, else a dataset of `glovewire preprocess`."""
    if data == Path(DIGITS) and not data.exists():
        return ImageProblem(DIGITS, *_digits())
    if any(data.glob(f"{IMAGES}*")):
        images, labels = (read_idx(data, what) for what in (IMAGES, LABELS))
        return ImageProblem(printable(data.name), images / np.float32(255), labels)
    return GloveProblem(data)


class GloveProblem:
    """GloVe by minibatches of a co-occurrence matrix, with the code of `glovewire worker`."""

    unit, table = "entries", "rows"

    def __init__(self, data: Path) -> None:
        self.dataset = Dataset.open(data)
        self.folder: Path | None = self.dataset.path
        self.table_rows = self.dataset.layout.rows
        self.examples, words = self.dataset.total_entries, len(self.dataset.words)
        self.name = f"GloVe on {printable(data.name)}, {words:,} words, {self.examples / 1e6:.2f} million entries"
        self.sample = MinibatchSampler(self.dataset, SAMPLE, 0, NO_WORKER).next()

    def initial(self, options: TrainingOptions) -> tuple[Rows, int]:
        """See Problem."""
        layout = RowLayout.of(options)
        return layout.initial(0, self.table_rows, options), layout.parameters

    def batches(self, options: TrainingOptions, worker: int) -> Callable[[], Minibatch]:
        """See Problem."""
        return MinibatchSampler(self.dataset, options.batch_size, options.seed, worker).next

    gradients = staticmethod(glove_gradients)

    def served(self, options: TrainingOptions, workers: int) -> TrainingOptions:
        """See Problem."""
        del workers
        objectives.warm()
        return options

    def work(self, options: TrainingOptions, address: str, number: int, latency: str) -> None:
        """See Problem."""
        del options  # the server tells them
        work(WorkerConfig(dataset=self.folder, servers=(address,), name=f"w{number}", verify=False, latency=latency))


@dataclass(frozen=True, eq=False)
class ImageBatch:
    """Numbers of the images, and of the rows needed: always all rows of the network."""

    images: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


class ImageProblem:
    """Classify images into ten classes with one hidden layer and a softmax, in numpy; the loss is cross-entropy.

    `images` have shape (n, ...), scaled to 0..1; `labels` (n,), 0 to 9. The network is one vector of `size` elements,
    laid out in rows as `common.model.tensor_layout` lays out a single tensor. Workers use the dense client, as a user's
    own program would.
    """

    unit, table = "images", TABLE
    folder: Path | None = None

    def __init__(self, name: str, images: Array, labels: Array) -> None:
        self._x, self._labels = images.reshape(len(images), -1).astype(np.float32), labels.astype(np.int64)
        self.examples, pixels = self._x.shape
        self.name = f"a network with {HIDDEN} hidden units on {name}, {self.examples:,} images"
        self._shapes = ((pixels, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
        self.size = sum(int(np.prod(shape)) for shape in self._shapes)
        self.rows = np.arange(-(-self.size // ROW))
        self.table_rows = len(self.rows)
        self.sample = ImageBatch(np.arange(min(self.examples, SAMPLE // 10)), self.rows)

    def initial(self, options: TrainingOptions) -> tuple[Rows, int]:
        """See Problem."""
        rows = np.zeros((len(self.rows), ROW + state_columns(options.optimizer, ROW)), np.float32)
        if options.optimizer == "adagrad":
            rows[:, ROW:] = options.initial_accumulator
        rows[:, :ROW].flat[: self.size] = self.network(options.seed)
        return rows, ROW

    def batches(self, options: TrainingOptions, worker: int) -> Callable[[], ImageBatch]:
        """See Problem."""
        draw = stream(options.seed, Purpose.BATCHES, worker)
        return lambda: ImageBatch(draw.integers(0, self.examples, options.batch_size), self.rows)

    def gradients(self, batch: ImageBatch, rows: Rows, options: TrainingOptions) -> Gradients:
        """See Problem."""
        del options
        found = np.zeros((len(self.rows), ROW), np.float32)
        found.flat[: self.size], loss = self.slope(rows[:, :ROW].reshape(-1)[: self.size], batch.images)
        return Gradients(found, len(batch.images), loss * len(batch.images))

    def served(self, options: TrainingOptions, workers: int) -> TrainingOptions:
        """See Problem. Sets `steps` so that the gradients of all steps cover every epoch's examples."""
        gradients = -(-self.examples * options.epochs // options.batch_size)
        return dataclasses.replace(options, steps=-(-gradients // _together(options, workers)))

    def work(self, options: TrainingOptions, address: str, number: int, latency: str) -> None:
        """See Problem."""
        with Client([address], f"w{number}") as server:
            server.create({NETWORK: self.network(options.seed)})
            batches = self.batches(options, number)
            delays = latencies(latency, options.seed, number)
            for now in server.steps():
                gradient, loss = self.slope(now[NETWORK], batches().images)
                time.sleep(delays())
                server.push({NETWORK: gradient}, loss=loss, examples=options.batch_size)

    def network(self, seed: int) -> Rows:
        """Return the initial network, shape (size,): weights by He et al. 2015, biases 0."""
        draw = stream(seed, Purpose.ROWS, NO_WORKER)
        parts = [draw.normal(0, np.sqrt(2 / s[0]), s) if len(s) == 2 else np.zeros(s) for s in self._shapes]
        return np.concatenate([part.ravel() for part in parts]).astype(np.float32)

    def slope(self, network: Array, images: npt.NDArray[np.int64]) -> tuple[Array, float]:
        """Return the gradient of the mean loss on the numbered images, shape (size,), and that loss."""
        ends = np.cumsum([np.prod(shape) for shape in self._shapes])[:-1]
        parts = zip(np.split(network, ends), self._shapes, strict=True)
        w1, b1, w2, b2 = (part.reshape(shape) for part, shape in parts)
        x, each = self._x[images], np.arange(len(images))
        hidden = np.maximum(x @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        right = (each, self._labels[images])
        loss = float(-np.log(np.maximum(likely[right], np.finfo(np.float32).tiny)).mean())
        likely[right] -= 1
        likely /= len(images)
        back = (likely @ w2.T) * (hidden > 0)
        return np.concatenate([(x.T @ back).ravel(), back.sum(0), (hidden.T @ likely).ravel(), likely.sum(0)]), loss


def _together(options: TrainingOptions, workers: int) -> int:
    """Return how many gradients the server combines into one update of the table."""
    mode = Mode.parse(options.consistency, BATCH_MODES)
    if mode.kind == "sync":
        return max(workers - options.backup, 1)
    return max(workers // int(mode.number), 1) if mode.kind == "softsync" else 1


def _digits() -> tuple[Array, Array]:
    """Return scikit-learn's 8 x 8 images of digits, scaled to 0..1, and their labels, 0 to 9."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtra("the images called digits need scikit-learn: pip install 'glovewire[examples]'") from error
    images, labels = load_digits(return_X_y=True)
    return images / 16, labels


# ---- idx files, the format of MNIST: a magic number, the sizes, then bytes; gzipped (`NAME.gz`) or not

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def read_idx(folder: Path, name: str) -> npt.NDArray[np.uint8]:
    """Read the array in an idx file; ArtifactError if it is missing or malformed."""
    packed, plain = folder / f"{name}.gz", folder / name
    try:
        raw = gzip.decompress(packed.read_bytes()) if packed.exists() else plain.read_bytes()
        sizes = np.frombuffer(raw, ">i4", raw[3], 4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(sizes)
    except (OSError, EOFError, zlib.error, ValueError, IndexError) as error:
        raise ArtifactError(f"{folder} has no images in {name}: {error}") from error
