"""Decide which role may send which request. No I/O.

The table is also in docs/security.md; a test compares the two.
"""

from typing import NamedTuple

from glovewire.common.errors import NotPermitted
from glovewire.common.protocol import messages as m
from glovewire.common.roles import SEPARATOR, Client, Role

ALL = frozenset(Role)
TRAINERS = frozenset((Role.WORKER, Role.ADMIN))
ADMINS = frozenset((Role.ADMIN,))


class Right(NamedTuple):
    """What a request does, and the roles that may send it."""

    action: str
    roles: frozenset[Role]


RIGHTS: dict[type[m.Message], Right] = {
    m.Hello: Right("join as an observer", ALL),
    m.Heartbeat: Right("keep its session alive", ALL),
    m.Leave: Right("close its session", ALL),
    m.Pull: Right("pull rows", ALL),
    m.GetStatus: Right("read the status", ALL),
    m.GetHistory: Right("read the history of the stream", ALL),
    m.GetWords: Right("read the words", ALL),
    m.GetData: Right("read the dataset", TRAINERS),
    m.Lease: Right("take leases", TRAINERS),
    m.Push: Right("push rows", TRAINERS),
    m.Report: Right("report losses", TRAINERS),
    m.Score: Right("publish scores", TRAINERS),
    m.Proceed: Right("let a waiting run continue", TRAINERS),
    m.Create: Right("create tensors", TRAINERS),
    m.Checkpoint: Right("ask for checkpoints", ADMINS),
    m.Finish: Right("end the run", ADMINS),
}
"""A request that is not in the table may not be sent by any key."""
JOIN = Right("join as a worker", TRAINERS)
"""The right to a Hello of a worker."""
ATTACH = Right("ask for the tensors", ALL)
"""The right to a Create that declares no tensors."""


NO_ROLE = Right("send this", frozenset())


def right_to(message: m.Message) -> Right:
    """Return the right that a request needs."""
    if isinstance(message, m.Hello) and message.role != "observer":
        return JOIN
    if isinstance(message, m.Create) and message.spec is None:
        return ATTACH
    return RIGHTS.get(type(message), NO_ROLE)


def require(client: Client, message: m.Message) -> None:
    """Raise NotPermitted unless `client` may send `message`, under the name that it gives if that is a Hello."""
    right = right_to(message)
    if client.role not in right.roles:
        roles = " or ".join(role for role in Role if role in right.roles)
        raise NotPermitted(
            f"the key {client.name!r} is for the role {client.role}, which may not {right.action}: "
            f"use a key for the role {roles} (`glovewire keys DIR --add --role {roles.partition(' ')[0]} --name NAME`)"
        )
    if isinstance(message, m.Hello) and not client.owns(message.name):
        raise NotPermitted(
            f"the key {client.name!r} may not take the name {message.name[:64]!r}: "
            f"take {client.name}, or a name that begins with {client.name}{SEPARATOR}"
        )
