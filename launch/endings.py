"""What ends a command from outside its own work, in one line: Ctrl-C, and files that cannot be."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from common.settings import printable

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
