"""Parse socket addresses, and URLs of stores. No I/O."""

import ipaddress
import re
from pathlib import Path

from .errors import UsageError

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)", re.DOTALL)


def check_address(address: str) -> str:
    """Return `address` if it has the form tcp://HOST:PORT or ipc://PATH; UsageError otherwise."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme == "ipc" and rest:
        return address
    if scheme != "tcp" or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) >= 1 << 16:
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


# ---- places: local paths or URLs


def url_of(place: Path | str) -> str:
    """Return the URL that `place` was made from (a Path merges its slashes), or "" if `place` is a local path."""
    found = _URL.fullmatch(str(place))
    if found is None:
        return ""
    return f"{found[1]}://{'/' if found[1] in ('file', 'local') else ''}{found[2]}"


def check_place(place: Path | str) -> None:
    """Raise UsageError if `place` is a URL with a password or a signature in it; the error does not repeat it."""
    url = url_of(place)
    name = url.partition("://")[2].partition("/")[0]
    if re.search(r":.*@", name) or re.search(r"\?[^/]*=", url):
        kind = url.partition(":")[0]
        raise UsageError(
            f"a {kind}:// URL must hold no password, key or signature: set them in the environment (docs/stores.md)"
        )


def check_url(text: str) -> None:
    """Raise UsageError unless `text` is a URL without credentials."""
    check_place(text)
    if not url_of(text):
        raise UsageError(f"{text!r} is not a URL: write s3://BUCKET/FOLDER, or file:///FOLDER")


def absolute(place: Path) -> Path:
    """Return `place` as it is if it is a URL, else as an absolute path."""
    return place if url_of(place) else place.resolve()
