"""Turn Ctrl-C and faults of files into one line of error, after a training has ended all of its processes."""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

import click

from glovewire.common.cli.command import printable
from glovewire.common.runtime.signals import signals_raise

OUTSIDE = {
    errno.ENOSPC: "cannot be written: no space left on the disk",
    errno.EDQUOT: "cannot be written: no space left of the quota on the disk",
    errno.EFBIG: "cannot be written: larger than files may be here",
    errno.ENAMETOOLONG: "cannot be a file: the name is too long",
}
"""Errors of the operating system that end any command with this text."""


class Ended(click.ClickException):
    """An interruption or a fault of a file; click shows it and exits with 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Write one line to stderr, as for every other error."""
        click.echo(f"error: {self.message}", file=file, err=file is None)


class CtrlC(Ended):
    """Ctrl-C in a command that has nothing to clean up."""

    exit_code = 128 + signal.SIGINT

    def __init__(self) -> None:
        super().__init__("interrupted by SIGINT")


@contextmanager
def one_line_endings() -> Iterator[None]:
    """Turn Ctrl-C and faults of files, such as a stdout on a full disk, into Ended.

    A closed pipe is left to click, which ends without a word.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise CtrlC from None
    except OSError as error:
        if error.errno not in OUTSIDE:
            raise
        _drop_output()
        what = "output" if error.filename is None else error.filename
        raise Ended(f"{printable(str(what))} {OUTSIDE[error.errno]}") from error


def _drop_output() -> None:
    """Discard unwritten output; otherwise Python tries to write it again at exit and prints a message of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


signals_end_all = partial(signals_raise, ": every process of the run was ended")
"""`signals_raise` for a block that ends every process of the run on its way out."""


class Interruptible(click.Group):
    """Group whose commands end their processes and remove their files at SIGINT or SIGTERM, and report it."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; `signals_end_all` goes around its function, inside what turns errors into one line."""
        assert cmd.callback is not None
        cmd.callback = signals_end_all()(cmd.callback)
        super().add_command(cmd, name)
