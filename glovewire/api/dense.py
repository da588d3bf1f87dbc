"""Serve dense models from a program or notebook of your own: `glovewire.serve`."""

import weakref
from contextlib import AbstractContextManager, ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

from glovewire.common.array_types import Array
from glovewire.common.cli.command import suggest
from glovewire.common.errors import require
from glovewire.common.model.options import TrainingOptions
from glovewire.common.option import options_of
from glovewire.common.storage.run_folder import load_tensors

from ..launch.serving import serving


class Server(AbstractContextManager["Server"]):
    """Running server shards of a dense model: workers connect to `addresses`, monitors to `streams`.

    As a context manager, ends the run on exit, as `close` does. `glovewire.serve` makes one.
    """

    def __init__(self, run: Path, shards: int, **options: Any) -> None:
        self.run = run
        with ExitStack() as stack:
            place = stack.enter_context(serving(run, shards, **options))
            self.addresses, self.streams = place.addresses, place.streams
            self._closing = weakref.finalize(self, stack.pop_all().close)  # at the latest when this process ends

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"serving {', '.join(self.addresses)}" if self._closing.alive else "ended"
        return f"Server({str(self.run)!r}: {state})"

    def close(self) -> None:
        """End the run: the servers write the tensors and exit; idempotent."""
        self._closing()

    def tensors(self) -> dict[str, Array]:
        """Return the final tensors by name; ArtifactError unless the run has ended.

        >>> with glovewire.serve("runs/none", learning_rate=0.1, optimizer="sgd") as server:
        ...     with glovewire.Client(server.addresses) as ps:
        ...         ps.create({"weight": [1.0, 2.0]})
        >>> server.tensors()
        {'weight': array([1., 2.])}
        """
        return load_tensors(self.run)[0]


def serve(
    run: str | PathLike[str],
    shards: int = 1,
    *,
    workers: int = 1,
    keys: str | PathLike[str] | None = None,
    **options: Any,
) -> Server:
    """Start `shards` servers for a dense model on this machine; they write its tensors to the new folder `run`.

    `options` are those of `glovewire server --objective tensors`: optimizer, learning_rate, consistency, steps, ...;
    also `checkpoint_every` (updates) and `lease_s`. Synchronous modes begin once `workers` have joined. The servers are
    processes of their own and end with this one; a killed server is restarted. Raises UsageError and OutputError.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 32)
    >>> with glovewire.serve("runs/line", learning_rate=0.5, optimizer="sgd", steps=50) as server:
    ...     with glovewire.Client(server.addresses) as ps:
    ...         ps.create({"slope": 0.0})
    ...         for now in ps.steps():
    ...             error = now["slope"] * x - 3 * x
    ...             ps.push({"slope": 2 * (error * x).mean()}, loss=float((error**2).mean()), examples=len(x))
    >>> print(server.tensors()["slope"].round(3))
    3.0
    """
    training = [each.name for each, _ in options_of(TrainingOptions) if each.name != "objective"]
    known = [*training, "checkpoint_every", "lease_s"]
    require([f"no option is called {name!r}{suggest(name, known)}" for name in options if name not in known])
    return Server(Path(run), shards, workers=workers, keys=None if keys is None else Path(keys), **options)
