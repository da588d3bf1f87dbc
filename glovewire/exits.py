"""What ends a command from outside its own work, in one line: Ctrl-C, and files that cannot be."""

from __future__ import annotations

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
"""Faults of files that are no fault of the program wherever they come up, and what to say of them."""


class Ended(click.ClickException):
    """A command was ended from outside; click shows it and exits with 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """One line on stderr, as for every other error."""
        click.echo(f"error: {self.message}", file=file, err=file is None)


class CtrlC(Ended):
    """Ctrl-C ended a command that had nothing to put in order."""

    exit_code = 128 + signal.SIGINT

    def __init__(self) -> None:
        super().__init__("interrupted by SIGINT")


@contextmanager
def one_line_endings() -> Iterator[None]:
    """Turn Ctrl-C and faults of files, such as a stdout on a full disk, into Ended.

    That stdout's reader has gone away is left to click, which ends in silence.
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
    """What stdout could not take goes nowhere, else Python tries again at its end, and says so in its own way."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


# ---- What Ctrl-C and SIGTERM do to a training or a measurement on this machine: all of its processes end, in order.

signals_end_all = partial(signals_raise, ": every process of the run was ended")
"""`signals_raise` around what ends every process of the run on its way out."""


class Interruptible(click.Group):
    """A group whose commands end what they have started when Ctrl-C or SIGTERM comes, remove it, and say so."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; its function gets `signals_end_all` around it, so that it is the command that tells."""
        assert cmd.callback is not None
        cmd.callback = signals_end_all()(cmd.callback)
        super().add_command(cmd, name)
