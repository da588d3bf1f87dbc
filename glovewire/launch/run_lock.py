"""The run folder of a training, for whoever starts its processes: made with its options, and kept from others.

Servers that somebody starts by hand see to their folder themselves (`server.checkpoints.generations`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from glovewire.common.cli.command import to_toml, toml_value
from glovewire.common.errors import ArtifactError, GlovewireError, Interrupted, OutputError, ProcessDied
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import write_text_atomically

if TYPE_CHECKING:
    from .local import LocalConfig


@contextlib.contextmanager
def begun(config: LocalConfig) -> Iterator[None]:
    """Have the run folder for oneself while the block lasts: new and with its options, or as it is to be resumed.

    Nothing is made where the servers would refuse the options. Raises OutputError when the folder exists already, or
    another training goes on in it.
    """
    if config.resume:
        with _held(config.out):
            yield
        return
    if config.init is not None:
        from glovewire.server.checkpoints import initial_state as start

        start.vectors_of(config.init, config.options)
    runs.prepare(config.out)
    with _held(config.out):
        runs.prepare(config.out)  # of two that begin at the same time, the other one may be over by now
        try:
            write_text_atomically(config.out / runs.CONFIG, _resolved(config))
        except GlovewireError:
            with contextlib.suppress(OSError):
                config.out.rmdir()
            raise
        yield


@contextlib.contextmanager
def _held(run: Path) -> Iterator[None]:
    """Keep every other training out of the folder `run`; OutputError while there is one.

    The lock is the system's and on the folder itself: no file is left, children do not inherit it, and it is gone
    with this process, however that ends.
    """
    try:
        handle = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise OutputError(f"run {run} cannot be read: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # any other: a file system without locks, on which nobody can be kept out
            if isinstance(error, BlockingIOError):
                raise OutputError(f"run {run} is in use by another glovewire train") from error
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def errors_say_what_is_left(run: Path) -> Iterator[None]:
    """The error of a training that did not come to its end also says what there is of it."""
    try:
        yield
    except (ProcessDied, Interrupted) as error:
        from glovewire.server.checkpoints import files as checkpoint

        left = f"the vectors so far are in {run}" if (run / runs.VECTORS).exists() else "no vectors"
        with contextlib.suppress(ArtifactError):
            checkpoint.newest(run)
            left += ", and --resume goes on from the newest checkpoint"
        raise type(error)(f"{error}; {left}") from error


def _resolved(config: LocalConfig) -> str:
    """What `train --config` takes back: all that shapes the training, but neither keys nor where processes run."""
    values = {
        "workers": config.workers,
        "servers": config.servers,
        "store": config.store,
        "checkpoint-every": config.checkpoint_every,
        "keep-checkpoints": config.keep_checkpoints,
        "init": config.init and config.init.resolve(),
        "watch": [path.resolve() for path in config.watch],
        "latency": config.latency,
    }
    given = {key: value for key, value in values.items() if value not in (None, [], ())}
    return to_toml("train", config.options) + "".join(_line(key, value) for key, value in given.items())


def _line(key: str, value: object) -> str:
    """A line of TOML, which holds no file name that is not UTF-8."""
    line = f"{key} = {toml_value(value)}\n"
    try:
        line.encode()
    except UnicodeEncodeError:
        return f"# {key} was given, with a name that is not UTF-8\n"
    return line
