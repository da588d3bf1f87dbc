"""Define what a key identifies: the name of a client and its role. No I/O."""

from enum import StrEnum
from typing import NamedTuple


class Role(StrEnum):
    """What the owner of a key may do; `server.core.rights` has the table."""

    WORKER = "worker"
    MONITOR = "monitor"
    ADMIN = "admin"


SEPARATOR = "."
"""Between a key's name, which has no dots, and the rest of a session's name: no two keys have a name in common."""


class Client(NamedTuple):
    """A client that has proven that it owns a key: the key's name and its role."""

    name: str
    role: Role

    def owns(self, name: str) -> bool:
        """Return whether a session of this client may have the name `name`: that of the key, or one derived from it."""
        return name == self.name or name.startswith(self.name + SEPARATOR)


def derived(key: str, name: str) -> str:
    """Return `name` prefixed with its key's name and a dot, unless it has that prefix: `anna`, `2` -> `anna.2`."""
    return name if Client(key, Role.WORKER).owns(name) else f"{key}{SEPARATOR}{name}"


USUAL = tuple(Client(role.value, role) for role in Role)
"""The clients for which `glovewire keys` makes keys unless others are named."""
