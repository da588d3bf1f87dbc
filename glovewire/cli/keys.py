"""Implement `glovewire keys`: make the keys with which a server and its clients authenticate each other."""

from pathlib import Path
from typing import Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.roles import USUAL, Client, Role


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--name", "names", multiple=True, metavar="NAME", help="Name of a client (default: its role); repeat for more."
)
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    help="What these clients may do: train (worker), watch (monitor) or everything (admin). Without --name and --role "
    "one client of each role is made; with --name the default is worker.",
)
@click.option("--add", is_flag=True, help="Add these clients to the keys already in DIR.")
def keys(folder: Path, names: tuple[str, ...], role: str | None, add: bool) -> dict[str, Any]:
    """Make keys in DIR: the server's, one for each client, and the list of clients that may connect.

    Give DIR to every command as --keys. Then connections are encrypted, the server lets in only those clients, and
    they speak only to that server. A worker may train and read; a monitor may read the stream, the status and the
    vectors; an admin may also take checkpoints and end the run. To revoke a key, remove its line from DIR/allowed.toml.
    """
    from glovewire.common.transport import curve_keys as keys

    clients = [Client(name, Role(role or Role.WORKER)) for name in names or ([role] if role else [])] or USUAL
    files = keys.add_clients(folder, clients) if add else keys.make_keys(folder, clients)
    for path in files:
        click.echo(path)
    return {
        "folder": str(folder),
        "clients": [client.name for client in clients],
        "roles": {client.name: client.role for client in clients},
        "files": [str(path) for path in files],
    }
