"""Implement `glovewire keys`: make the keys with which a server and its clients authenticate each other."""

from pathlib import Path
from typing import Any

import click

from glovewire.common.cli.command import Command


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--name", "names", multiple=True, default=["worker"], metavar="NAME", help="A client; repeat for more.")
@click.option("--add", is_flag=True, help="Add these clients to the keys that are in DIR already.")
def keys(folder: Path, names: tuple[str, ...], add: bool) -> dict[str, Any]:
    """Make keys in DIR: the server's, one for each client, and the list of clients that may connect.

    Give DIR to every command as --keys. Then connections are encrypted, the server lets in only those clients, and
    they speak only to that server.
    """
    from glovewire.common.transport import curve_keys as keys

    files = keys.add_clients(folder, names) if add else keys.make_keys(folder, names)
    for path in files:
        click.echo(path)
    return {"folder": str(folder), "clients": list(names), "files": [str(path) for path in files]}
