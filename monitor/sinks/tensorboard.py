"""Write samples as TensorBoard scalars over entries trained, and vectors for its projector. Needs tensorboardX."""

from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common.errors import require_extra
from glovewire.common.protocol.messages import LossSample, Message, QualitySample, WorkerSample
from glovewire.common.storage.artifacts import output_errors
from glovewire.common.storage.run_folder import load_vectors

from ..history.formatting import sanitize
from ..history.history import ALL_WORKERS, MAX_WORKERS

FLUSH_S = 5
TENSORS, LABELS = "words.bytes", "words.tsv"


class TensorBoard:
    """Writes into `folder`; OutputError when it cannot be written. Leaves out workers beyond the first MAX_WORKERS."""

    def __init__(self, folder: Path) -> None:
        require_extra("tensorboardX", "metrics", "--tensorboard")
        from tensorboardX import SummaryWriter

        with output_errors(folder, "folder"):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer: Any = SummaryWriter(str(folder), flush_secs=FLUSH_S)
        self._folder = folder
        self._entries = 0
        self._workers: set[str] = set()

    def add(self, message: Message) -> None:
        """Write the scalars of one sample; their step is the number of entries trained by all workers together."""
        match message:
            case LossSample(worker="all"):
                self._entries = message.entries
                self._write("loss/all", message.mean_loss)
                self._write("loss/bias_only", message.mean_bias_only_loss)
                self._write("vectors/norm", message.norm)
                self._write("entries_per_second/all", message.entries_per_second)
            case LossSample() if self._known(message.worker):
                self._write(f"loss/worker/{sanitize(message.worker)}", message.loss)
            case WorkerSample() if self._known(message.worker):
                self._write(f"entries_per_second/worker/{sanitize(message.worker)}", message.entries_per_second)
            case QualitySample():
                self._write(f"quality/{sanitize(message.test)}", message.score)

    def project(self, run: Path) -> None:
        """Write the vectors of a finished run and their words for TensorBoard's projector.

        Numbers are little-endian float32, labels one word per line. Raises OutputError when `folder` cannot be written.
        """
        found = load_vectors(run)
        words, vectors = found.words, found.vectors
        with output_errors(self._folder, "folder"):
            (self._folder / TENSORS).write_bytes(np.ascontiguousarray(vectors, "<f4").tobytes())
            (self._folder / LABELS).write_text("".join(f"{sanitize(word)}\n" for word in words), encoding="utf-8")
            shape = "".join(f"  tensor_shape: {size}\n" for size in vectors.shape)
            paths = f'  tensor_path: "{TENSORS}"\n  metadata_path: "{LABELS}"\n'
            config = f'embeddings {{\n  tensor_name: "words"\n{shape}{paths}}}\n'
            (self._folder / "projector_config.pbtxt").write_text(config, encoding="utf-8")

    def close(self) -> None:
        """Flush and close the files; may be called twice."""
        self._writer.close()

    def _write(self, tag: str, value: float) -> None:
        self._writer.add_scalar(tag, value, self._entries)

    def _known(self, worker: str) -> bool:
        if worker != ALL_WORKERS and len(self._workers) < MAX_WORKERS:
            self._workers.add(worker)
        return worker in self._workers
