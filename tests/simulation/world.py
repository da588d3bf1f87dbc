"""A deterministic scheduler: processes run one at a time in virtual time, and a seed decides everything random.

A process is a greenlet that runs the program's own code until it waits, in `World.sleep` or `World.wait`. Then the
time jumps to the next event. Nothing here reads a real clock or a real source of random numbers.
"""

from __future__ import annotations

import contextlib
import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

Action = Callable[[], object]


class Killed(GreenletExit):
    """Ends a process where it waits, as SIGKILL does."""


class Overdue(AssertionError):
    """The run has not ended before its deadline."""


class Broken(AssertionError):
    """An invariant is violated: raised by an oracle, at the step that violated it."""


@dataclass
class LocalClock:
    """The clock of one process: it starts at an arbitrary time, runs at its own rate, and may jump ahead."""

    offset: float = 0.0
    rate: float = 1.0
    jumped: float = 0.0
    """Virtual time of the last jump."""


@dataclass
class Process:
    """A process of the cluster: what it does, and what became of it."""

    name: str
    task: greenlet
    clock: LocalClock
    number: int
    started: float
    owner: Process | None = None
    """For a thread: the process that started it, and that it is killed and stopped with."""
    threads: list[Process] = field(default_factory=list)
    daemon: bool = False
    """For a thread: whether it ends with its process."""
    killed: bool = False
    result: Any = None
    error: BaseException | None = None
    awaited: int = 0
    """Number of its current wait; a wake-up for an earlier wait is ignored."""
    stopped_until: float = 0.0

    @property
    def alive(self) -> bool:
        """Return whether the process has not ended."""
        return not self.task.dead


@dataclass
class World:
    """Virtual time, the events to come, and the story so far."""

    seed: int
    now: float = 1000.0
    drift: float = 0.0
    story: list[str] = field(default_factory=list)
    events: list[tuple[float, int, Action]] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    clocks: dict[str, LocalClock] = field(default_factory=dict)
    broken: Broken | None = None
    latest: float = 0.0
    """When the run becomes overdue."""
    changes: int = 0
    """Number of events so far that may end `run`: starts and ends of processes, and messages."""
    _number: int = 0
    _current: Process | None = None

    def __post_init__(self) -> None:
        self._hub = getcurrent()

    def chance(self, question: str) -> random.Random:
        """Return the random stream of one question; no other question changes it."""
        return random.Random(f"{self.seed} {question}")

    @property
    def time(self) -> float:
        """Return the time on the clock of the running process."""
        assert self._current is not None, "only a process has a clock"
        clock = self._current.clock
        return clock.offset + clock.rate * self.now

    def tell(self, text: str) -> None:
        """Add a line to the story."""
        who = self._current.name if self._current else "world"
        self.story.append(f"{self.now - 1000.0:10.4f}  {who:9} {text}")

    def at(self, time: float, action: Action) -> None:
        """Schedule an action at a time; actions at the same time run in the order in which they were scheduled."""
        self._number += 1
        heapq.heappush(self.events, (max(time, self.now), self._number, action))

    def after(self, seconds: float, action: Action) -> None:
        """Schedule an action after a number of seconds."""
        self.at(self.now + seconds, action)

    def _clock(self, name: str) -> LocalClock:
        """Return the clock of the processes with a name; it keeps its time when they are restarted."""
        if name not in self.clocks:
            chance = self.chance(f"clock of {name}")
            begins = chance.random() * 1e5 if self.drift else 0.0
            self.clocks[name] = LocalClock(begins, 1.0 + self.drift * (2.0 * chance.random() - 1.0))
        return self.clocks[name]

    def start(self, name: str, task: Callable[[], Any]) -> Process:
        """Start a process, which runs from the next event on."""
        process = Process(name, greenlet(lambda: None), self._clock(name), len(self.processes), self.now)

        def run() -> None:
            try:
                process.result = task()
                if process.owner is None:
                    self.tell("ends")
            except Killed:
                pass
            except Broken as error:
                self.broken = self.broken or error
            except Exception as error:  # noqa: BLE001
                process.error = error
                self.tell(f"fails: {type(error).__name__}: {error}")
            finally:
                self.changes += 1
                for thread in process.threads:
                    if thread.daemon:
                        self.after(0.0, partial(self.kill, thread))

        process.task = greenlet(run, parent=self._hub)
        self.processes.append(process)
        self.changes += 1
        self.after(0.0, partial(self._switch, process, process.awaited))
        return process

    def start_thread(self, task: Callable[[], Any], *, daemon: bool = False) -> Process:
        """Start a thread of the process that runs."""
        owner = self.running
        thread = self.start(owner.name, task)
        thread.owner, thread.daemon = owner, daemon
        owner.threads.append(thread)
        return thread

    def kill(self, process: Process) -> None:
        """End a process and its threads at once; called between their steps."""
        for thread in process.threads:
            self.kill(thread)
        if process.alive:
            process.awaited += 1
            process.killed = True
            if process.owner is None:
                self.tell(f"kills {process.name}")
            before, self._current = self._current, process
            self.changes += 1
            process.task.throw(Killed)
            self._current = before

    def stop(self, process: Process, seconds: float) -> None:
        """Suspend a process for a time, as SIGSTOP does."""
        self.tell(f"stops {process.name} for {seconds:.2f} s")
        for each in (process, *process.threads):
            each.stopped_until = self.now + seconds

    def jump(self, process: Process, seconds: float) -> None:
        """Move the clock of a process ahead."""
        self.tell(f"the clock of {process.name} jumps by {seconds:.2f} s")
        process.clock.offset += seconds
        process.clock.jumped = self.now

    def ran_since(self, process: Process, time: float) -> bool:
        """Return whether a process has run since a time, without a stop and without a jump of its clock."""
        return process.alive and max(process.started, process.stopped_until, process.clock.jumped) < time

    # ---- for the code that runs in a process

    def sleep(self, seconds: float) -> None:
        """Let a number of seconds pass."""
        self.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Wait for at most `seconds` of the process's own clock; the action that `waker` returned ends the wait."""
        process = self.running
        if process.killed:  # its clean-up waits, and no killed process cleans up
            raise Killed
        process.awaited += 1
        until = self.now + seconds / process.clock.rate
        if until <= self.latest and (not self.events or self.events[0][0] > until) and process.stopped_until <= until:
            self.now = until  # nothing happens before that
            return
        number = process.awaited
        self.at(until, partial(self._switch, process, number))
        self._hub.switch()

    def waker(self) -> Action:
        """Return an action that ends the next wait of the running process."""
        process = self.running
        number = process.awaited + 1
        return lambda: self.after(0.0, partial(self._switch, process, number))

    @property
    def current(self) -> Process | None:
        """Return the running process, None between two steps."""
        return self._current

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """Let an oracle look at the state in the middle of a step; no process counts as running meanwhile."""
        before, self._current = self._current, None
        try:
            yield
        finally:
            self._current = before

    @property
    def running(self) -> Process:
        """Return the running process."""
        assert self._current is not None, "only a process waits"
        return self._current

    def _switch(self, process: Process, number: int) -> None:
        if process.task.dead or process.awaited != number:
            return
        if process.stopped_until > self.now:
            self.at(process.stopped_until, partial(self._switch, process, number))
            return
        self._current = process
        process.task.switch()
        self._current = None

    # ---- for the test

    def run(self, until: Callable[[], object], latest: float) -> None:
        """Run events until `until()` is true; raise Overdue after `latest`, and the first Broken of any process."""
        self.latest, seen = latest, -1
        while True:
            if seen != self.changes:
                seen = self.changes
                if until():
                    return
            if self.broken is not None:
                raise self.broken
            if not self.events or self.events[0][0] > latest:
                raise Overdue(f"not over after {latest - 1000.0:.0f} s")
            self.now, _, action = heapq.heappop(self.events)
            action()

    def end(self) -> None:
        """End every process, so that nothing is left of this world."""
        for process in self.processes:
            self.kill(process)


class Clock:
    """Stands for the module `time` in the program's modules."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        """Return the time on the clock of the running process."""
        return self._world.time

    perf_counter = time = thread_time = monotonic

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._world.sleep(seconds)


class Secrets:
    """Stands for the module `secrets`: random numbers from the seed, a stream for each process name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._streams: dict[str, random.Random] = {}

    def randbits(self, bits: int) -> int:
        """Return a random number."""
        return self._stream.getrandbits(bits)

    def token_hex(self, count: int) -> str:
        """Return random bytes in hexadecimal digits."""
        return self._stream.randbytes(count).hex()

    @property
    def _stream(self) -> random.Random:
        name = self._world.running.name
        if name not in self._streams:
            self._streams[name] = self._world.chance(f"secrets of {name}")
        return self._streams[name]
