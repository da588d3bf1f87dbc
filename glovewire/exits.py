"""Report Ctrl-C, a lack of memory and file errors in one line, after the command has ended all of its processes."""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

import click

from glovewire.common.runtime.signals import signals_raise
from glovewire.common.text import printable

OUTSIDE = {
    errno.ENOSPC: "cannot be written: no space left on the disk",
    errno.EDQUOT: "cannot be written: the disk quota is used up",
    errno.EFBIG: "cannot be written: it would exceed the limit on file size",
    errno.EMFILE: "cannot be opened: this process is at its limit of open files and connections; raise `ulimit -n`",
    errno.ENAMETOOLONG: "cannot be a file: the name is too long",
}
"""Operating-system errors that end any command, with the text that reports each."""


class Ended(click.ClickException):
    """Error for an interruption or a failed file operation; click shows it and exits with status 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Write one line to stderr, as for every other error."""
        click.echo(f"error: {self.message}", file=file, err=file is None)


class CtrlC(Ended):
    """Error for Ctrl-C in a command that has nothing to clean up; exits with status 130."""

    exit_code = 128 + signal.SIGINT


@contextmanager
def one_line_endings() -> Iterator[None]:
    """Turn Ctrl-C, a lack of memory and file errors, such as stdout on a full disk, into Ended.

    A closed pipe is left to click, which exits without a message.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise CtrlC("interrupted by SIGINT") from None
    except MemoryError as error:
        raise Ended(f"out of memory: {printable(str(error) or 'no more can be allocated')}") from error
    except OSError as error:
        if error.errno not in OUTSIDE:
            raise
        _drop_output()
        unnamed = "a connection" if error.errno == errno.EMFILE else "output"
        what = unnamed if error.filename is None else error.filename
        raise Ended(f"{printable(str(what))} {OUTSIDE[error.errno]}") from error


def _drop_output() -> None:
    """Discard unwritten output; otherwise Python would try to write it again at exit and print its own message."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


signals_end_all = partial(signals_raise, ": every process of the run was ended")
"""`signals_raise` for a block that ends every process of the run when it is left."""


class Interruptible(click.Group):
    """Group of commands that end their processes, remove their files and report the signal at SIGINT or SIGTERM."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, by default under its name without the group's (`bench-wire` is `wire` in the group `bench`).

        Its function is wrapped in `signals_end_all`, inside the wrapper that turns errors into one line.
        """
        assert cmd.callback is not None
        assert cmd.name is not None
        cmd.callback = signals_end_all()(cmd.callback)
        super().add_command(cmd, name or cmd.name.removeprefix(f"{self.name}-"))
