"""Make the run folder of a training, with its options in it, and lock it against other trainings."""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from glovewire.common.addresses import absolute, url_of
from glovewire.common.cli.config_file import to_toml, toml_value
from glovewire.common.errors import ArtifactError, GlovewireError, Interrupted, OutputError, ProcessDied
from glovewire.common.option import entries
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import input_errors, write_text_atomically

from .config import LocalConfig


@contextlib.contextmanager
def locked_run_folder(config: LocalConfig) -> Iterator[None]:
    """Create the run folder, or open the one to resume, and hold its lock while the block lasts.

    Creates nothing if the vectors of --init do not fit the options. Raises OutputError if a new run's folder already
    exists, or another training runs in the folder.
    """
    if config.resume:
        with _held(config.out):
            _note_epochs(config)
            yield
        return
    if config.init is not None:
        from glovewire.server.checkpoints import initial_state as start

        start.vectors_of(config.init, config.options)
    if runs.is_run(config.out):
        raise runs.started_before(config.out)
    runs.prepare(config.out)
    with _held(config.out):
        runs.prepare(config.out)  # another training that began at the same time may be over by now
        try:
            write_text_atomically(config.out / runs.CONFIG, _resolved(config))
        except GlovewireError:
            with contextlib.suppress(OSError):
                config.out.rmdir()
            raise
        yield


@contextlib.contextmanager
def _held(run: Path) -> Iterator[None]:
    """Hold an exclusive lock on the folder `run`; OutputError if another training holds it.

    The lock is an flock on the folder itself: it leaves no file, child processes do not inherit it, and the system
    releases it when this process ends, even if killed.
    """
    with input_errors(f"run {run}", OutputError):
        handle = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # any other error: a file system without locks
            if isinstance(error, BlockingIOError):
                raise OutputError(f"run {run} is in use by another glovewire train") from error
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def errors_tell_what_is_left(run: Path) -> Iterator[None]:
    """Add to ProcessDied, Interrupted and OutputError what the training has left on disk: vectors or a checkpoint."""
    try:
        yield
    except (ProcessDied, Interrupted, OutputError) as error:
        from glovewire.server.checkpoints import files as checkpoint

        left = f"the vectors so far are in {run}" if (run / runs.VECTORS).exists() else "no vectors"
        with contextlib.suppress(ArtifactError):
            checkpoint.newest(run)
            left += ", and --resume continues from the newest checkpoint"
        raise type(error)(f"{error}; {left}") from error


LEFT_OUT = {"out", "launcher", "address", "resume", "keys", "progress", "verbose", "web"}
"""Options that do not affect the result of a run, only where it runs and what it shows."""


def _note_epochs(config: LocalConfig) -> None:
    """Update the epochs in `config.toml`, which --resume may have extended; does not create a missing file."""
    file = config.out / runs.CONFIG
    with contextlib.suppress(OSError, UnicodeDecodeError):
        before = file.read_text(encoding="utf-8")
        after = re.sub(r"(?m)^epochs = \d+$", f"epochs = {config.options.epochs}", before)
        if after != before:
            write_text_atomically(file, after)


def _resolved(config: LocalConfig) -> str:
    """Return the options that affect the result, as the text of a TOML file for `train --config`."""
    watch = tuple(path.resolve() for path in config.watch)
    resolved = replace(config, init=config.init and absolute(config.init), watch=watch)
    known = {"dataset": url_of(config.dataset) or config.dataset.resolve(), **entries(resolved)}
    values = {key: value for key, value in known.items() if key not in LEFT_OUT and value != ()}
    lost = [key for key, value in values.items() if not _is_unicode(value)]
    kept = {key: value for key, value in values.items() if key not in lost}
    return to_toml("train", kept) + "".join(f"# {key} was given, with a name that is not UTF-8\n" for key in lost)


def _is_unicode(value: object) -> bool:
    """Return whether TOML, which is UTF-8, can hold a value; a file name may be any bytes."""
    try:
        toml_value(value).encode()
    except UnicodeEncodeError:
        return False
    return True
