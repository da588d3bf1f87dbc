"""Glovewire: a parameter server over ZeroMQ that trains word vectors and dense models.

    import glovewire

    dataset = glovewire.preprocess("corpus.txt", "data/corpus")
    run = glovewire.train(dataset, "runs/corpus")
    run.vectors.most_similar("king")
    glovewire.load("glove.6B.300d.txt.gz").save("glove.npz")

Names are imported when they are first used, so that `import glovewire` is fast.
"""

from __future__ import annotations

import pkgutil
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glovewire.common import errors
    from glovewire.common.storage.dataset import Dataset
    from glovewire.worker.dense.client import Client

    from . import thinc as thinc
    from . import torch as torch
    from .api.corpora import preprocess
    from .api.dense import Server, serve
    from .api.glove import GloVe
    from .api.stream import subscribe
    from .api.training import Progress, Run, train
    from .vectors.keyed_vectors import KeyedVectors, load

    __version__: str

_PLACES = {
    "Client": "glovewire.worker.dense.client:Client",
    "Dataset": "glovewire.common.storage.dataset:Dataset",
    "GloVe": "glovewire.api.glove:GloVe",
    "KeyedVectors": "glovewire.vectors.keyed_vectors:KeyedVectors",
    "Progress": "glovewire.api.training:Progress",
    "Run": "glovewire.api.training:Run",
    "Server": "glovewire.api.dense:Server",
    "errors": "glovewire.common.errors",
    "load": "glovewire.vectors.keyed_vectors:load",
    "preprocess": "glovewire.preprocess",
    "serve": "glovewire.api.dense:serve",
    "subscribe": "glovewire.api.stream:subscribe",
    "thinc": "glovewire.thinc",
    "torch": "glovewire.torch",
    "train": "glovewire.api.training:train",
}
__all__ = [
    "Client", "Dataset", "GloVe", "KeyedVectors", "Progress", "Run", "Server", "__version__", "errors", "load",
    "preprocess", "serve", "subscribe", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("glovewire")
    if name in _PLACES:
        return pkgutil.resolve_name(_PLACES[name])
    raise AttributeError(f"module 'glovewire' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PLACES})


class _Callable(ModuleType):
    """The package `glovewire.preprocess`, which can also be called as the function of that name."""

    def __call__(self, corpus: Any, out: Any, *, progress: bool | None = None, **options: Any) -> Dataset:
        """Make a dataset from a corpus in the new folder `out`: see `glovewire.api.corpora.preprocess`."""
        from .api.corpora import preprocess

        return preprocess(corpus, out, progress=progress, **options)


class _Package(ModuleType):
    """This package; the import system sets sub-packages as its attributes."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "preprocess":
            value.__class__ = _Callable
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
