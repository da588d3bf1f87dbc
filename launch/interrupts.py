"""Ctrl-C and SIGTERM, once, as an error that a training or a measurement on this machine ends with in order."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

import click

from common.errors import GlovewireError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(GlovewireError):
    """Somebody pressed Ctrl-C or sent SIGTERM."""

    code = "interrupted"


class Signalled(BaseException):
    """The same while it is on its way: no `except` for errors on the way may take it for one of them."""


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """SIGINT and SIGTERM raise Signalled in the block, once, and Interrupted behind it or behind a block around it."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    if all(handler is _interrupt for handler in before.values()):
        yield  # to put them back at its end would let a second signal cut the other block's way out short
        return
    for number in before:
        signal.signal(number, _interrupt)
    try:
        yield
    except Signalled as signalled:
        raise Interrupted(str(signalled)) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: FrameType | None) -> None:
    for each in SIGNALS:  # the way out is bounded in time; nothing may cut it short
        signal.signal(each, signal.SIG_IGN)
    raise Signalled(f"interrupted by {signal.Signals(number).name}: every process of the run was ended")


class Interruptible(click.Group):
    """A group whose commands end what they have started when Ctrl-C or SIGTERM comes, remove it, and say so."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; its function gets `signals_raise` around it, so that it is the command that tells."""
        assert cmd.callback is not None
        cmd.callback = signals_raise()(cmd.callback)
        super().add_command(cmd, name)
