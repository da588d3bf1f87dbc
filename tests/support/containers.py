"""A run of docker-compose.yml with the real engine: started, queried, disturbed and taken down; waits have deadlines.

Works with Compose v2 (`docker compose`) and with docker-compose 1.29.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import processes
from processes import free_port

ROOT = Path(__file__).parents[2]
START_S = 120.0
ENDS_S = 240.0  # a run of eight containers may share two cores with another test
LOOK_EVERY_S = 1.0
"""Each check runs commands of the engine, and often a program in a container: without a pause it would fill a core."""

until = partial(processes.until, every_s=LOOK_EVERY_S)


def run(*words: str, environment: dict[str, str] | None = None, seconds: float = 60.0) -> str:
    """The output of a command of the engine; if the command fails, so does the test, with all of its output."""
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=seconds,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(words)} [{done.returncode}]\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@cache
def engine() -> list[str]:
    """The words that begin a Compose command; empty without a running engine or without Compose."""
    for words in (["docker", "compose"], ["docker-compose"]):
        try:
            run(*words, "version", seconds=20)
            run("docker", "info", seconds=20)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            continue
        return words
    return []


@dataclass
class Composed:
    """One Compose project; as a context manager, it removes containers, network and volumes at its end."""

    project: str
    settings: dict[str, str]
    port: int = field(default_factory=free_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.compose("down", "--volumes", "--timeout", "1")

    def compose(self, *words: str, seconds: float = START_S) -> str:
        environment = {**self.settings, "COMPOSE_PROJECT_NAME": self.project, "PORT": str(self.port)}
        return run(*engine(), *words, environment=environment, seconds=seconds)

    def containers(self) -> dict[str, dict[str, Any]]:
        """The engine's description of every container, by service and number: `worker-2`, `server-0-1`."""
        ids = run("docker", "ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={self.project}")
        found = json.loads(run("docker", "inspect", *ids.split())) if ids.split() else []
        labels = [each["Config"]["Labels"] for each in found]
        names = [
            f"{each['com.docker.compose.service']}-{each['com.docker.compose.container-number']}" for each in labels
        ]
        return dict(zip(names, found, strict=True))

    def healthy(self, name: str, restarts: int = 0) -> bool:
        """Whether a container runs, is healthy, and has been restarted `restarts` times."""
        one = self.containers()[name]
        state = one["State"]
        return one["RestartCount"] == restarts and state["Running"] and state["Health"]["Status"] == "healthy"

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill the first process of a container from outside, as the kernel does when memory is short."""
        os.kill(int(self.containers()[name]["State"]["Pid"]), number)

    def wipe(self, volume: str) -> None:
        """Remove everything in a volume."""
        mounted = ("--volume", f"{self.project}_{volume}:/own", "--user", "root", "--entrypoint", "find")
        run("docker", "run", "--rm", *mounted, "glovewire", "/own", "-mindepth", "1", "-delete")

    def inside(self, name: str, *words: str) -> str:
        """The output of a command in a container."""
        return run("docker", "exec", self.containers()[name]["Id"], *words)

    def epoch(self, shard: str = "server-0-1") -> int:
        """Epochs done according to shard 0; -1 if it does not answer."""
        try:
            said = self.inside(shard, "glovewire", "stats", "tcp://127.0.0.1:5555", "--json")
        except AssertionError:
            return -1
        return int(json.loads(said.splitlines()[-1])["shards"][0]["epoch"])

    def network(self, action: str, name: str) -> None:
        """`disconnect` a container from the network of the run, or `connect` it again."""
        run("docker", "network", action, f"{self.project}_glovewire", self.containers()[name]["Id"])

    def ends(self, seconds: float = ENDS_S) -> dict[str, int]:
        """Wait until no container runs; return their exit codes."""

        def codes() -> dict[str, int] | None:
            states = {name: one["State"] for name, one in self.containers().items()}
            over = all(state["Status"] == "exited" for state in states.values())
            return {name: state["ExitCode"] for name, state in states.items()} if over else None

        found: dict[str, int] = until(codes, lambda: f"every container of {self.project} ends\n{self.story()}", seconds)
        return found

    def story(self) -> str:
        """The last lines that every container logged."""
        return self.compose("logs", "--tail", "20")
