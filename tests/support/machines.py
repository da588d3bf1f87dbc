"""Two simulated machines made of Linux namespaces, with separate network addresses and separate folders.

Needs root, iproute2 and unshare. The only link is between the two, and it is not visible outside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

MOUNT = 'for folder in $0; do mount -t tmpfs private "$folder" || exit; done; exec "$@"'


def missing() -> str:
    """The reason why this process cannot make machines, "" if it can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    tools = [tool for tool in ("ip", "unshare", "mount") if shutil.which(tool) is None]
    if tools:
        return f"needs {' and '.join(tools)} (Debian: iproute2, util-linux)"
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True)
    return f"this machine allows no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Machines:
    """Context manager of machines 1 and 2, at `addresses`; machine 2 has its own, empty `hidden` folders."""

    addresses = ("10.78.0.1", "10.78.0.2")

    def __init__(self, hidden: Sequence[Path]) -> None:
        self._hidden = " ".join(map(str, hidden))
        self._names = [f"gw-{os.getpid()}-{number}" for number in (1, 2)]

    def __enter__(self) -> Self:
        first, second = self._names
        for name in self._names:
            self._ip("netns", "add", name)
        self._ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for name, address in zip(self._names, self.addresses, strict=True):
            self._ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def on(self, number: int, *words: str) -> list[str]:
        """The command that runs `words` on a machine, in the same process."""
        inside = ["ip", "netns", "exec", self._names[number - 1]]
        alone = ["unshare", "--mount", "sh", "-c", MOUNT, self._hidden] if number == 2 else []
        return [*inside, *alone, *words]

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)
