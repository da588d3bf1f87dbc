"""Train word vectors on a small corpus in one line: `glovewire.GloVe(...).fit(texts)`."""

from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from glovewire.common.errors import UsageError
from glovewire.common.option import options_of
from glovewire.preprocess.config import PreprocessConfig

from ..vectors.keyed_vectors import KeyedVectors
from .corpora import Corpus, preprocess
from .training import Callback, train


class GloVe:
    """Word vectors of a corpus: `fit` trains them, `wv` holds them.

    `vector_size`, `window` and `min_count` have gensim's names and defaults; `epochs`, `workers` and `seed` only its
    names. `objective` is `glove` or `sgns` (skip-gram); `options` are further options of `preprocess` and `train`.
    `out` is a folder that keeps dataset and run; without it nothing is left on disk.

    >>> texts = ["the cat sits on the mat", "the dog sits on the rug"] * 10
    >>> model = glovewire.GloVe(vector_size=8, min_count=2, epochs=3, workers=1).fit(texts)
    >>> model.wv
    KeyedVectors(7 words, 8 dimensions, ... n-grams)
    >>> len(model.wv.most_similar("cat", topn=2))
    2
    """

    def __init__(
        self,
        vector_size: int = 100,
        *,
        objective: str = "glove",
        window: int = 5,
        min_count: int = 5,
        epochs: int | None = None,
        workers: int | None = None,
        seed: int = 0,
        out: str | PathLike[str] | None = None,
        callbacks: tuple[Callback, ...] = (),
        progress: bool | None = None,
        **options: Any,
    ) -> None:
        given: dict[str, Any] = {"window": window, "min_count": min_count, "seed": seed, **options}
        counting = {known.name for known, _ in options_of(PreprocessConfig)}
        counts_on_ray, trains_on_ray = (options.get(name) == "ray" for name in ("engine", "launcher"))
        both = {"seed", "address"} if counts_on_ray and trains_on_ray else {"seed"}
        if trains_on_ray and not counts_on_ray:
            counting.remove("address")
        self._counting = {name: value for name, value in given.items() if name in counting}
        self._training = {name: value for name, value in given.items() if name in both or name not in counting}
        self._training |= {"dim": vector_size, "objective": objective, "epochs": epochs, "workers": workers}
        self._out, self._callbacks, self._progress = out, callbacks, progress
        self._wv: KeyedVectors | None = None

    def fit(self, texts: Corpus) -> Self:
        """Count and train the words of `texts`, in any form that `glovewire.preprocess` accepts; return this model.

        >>> model = glovewire.GloVe(vector_size=8, min_count=1, epochs=2, workers=1, out="made")
        >>> model.fit([["New", "York"], ["New", "Delhi"]] * 5).wv.index_to_key[0]
        'New'
        """
        with TemporaryDirectory(prefix="glovewire-") if self._out is None else nullcontext(self._out) as out:
            dataset = preprocess(texts, Path(out, "dataset"), progress=self._progress, **self._counting)
            run = train(dataset, Path(out, "run"), callbacks=self._callbacks, progress=self._progress, **self._training)
            self._wv = run.vectors
        return self

    @property
    def wv(self) -> KeyedVectors:
        """Return the vectors; UsageError before `fit`."""
        if self._wv is None:
            raise UsageError("there are no vectors yet: call fit(texts)")
        return self._wv
