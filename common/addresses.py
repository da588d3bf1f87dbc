"""Parse socket addresses. No I/O."""

import ipaddress

from .errors import UsageError


def check_address(address: str) -> str:
    """Return `address` if it has the form tcp://HOST:PORT or ipc://PATH; UsageError otherwise."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme == "ipc" and rest:
        return address
    if scheme != "tcp" or not host or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise UsageError(f"{address!r} is not an address: write tcp://HOST:PORT")
    return address


def port_of(address: str) -> int:
    """Return the port of a tcp:// address, 0 for any other kind."""
    return int(address.rpartition(":")[2]) if address.startswith("tcp://") else 0


def with_port(address: str, port: int) -> str:
    """Return a tcp:// address with its port replaced."""
    return f"{address.rpartition(':')[0]}:{port}"


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach `address`; a name other than localhost may resolve to any machine."""
    if address.startswith(("ipc://", "inproc://")):
        return True
    host = address.partition("://")[2].rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
