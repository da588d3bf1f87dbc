"""What Ctrl-C and SIGTERM do to a training or a measurement on this machine: all of its processes end, in order."""

from __future__ import annotations

from functools import partial

import click

from common.interrupts import signals_raise

signals_end_all = partial(signals_raise, ": every process of the run was ended")
"""`signals_raise` around what ends every process of the run on its way out."""


class Interruptible(click.Group):
    """A group whose commands end what they have started when Ctrl-C or SIGTERM comes, remove it, and say so."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; its function gets `signals_end_all` around it, so that it is the command that tells."""
        assert cmd.callback is not None
        cmd.callback = signals_end_all()(cmd.callback)
        super().add_command(cmd, name)
