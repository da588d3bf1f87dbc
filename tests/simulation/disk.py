"""A disk of the run folder: every call that changes it is a step, before which a process can be killed.

What processes see is a real folder. Beside it stands what would be left after a power failure: a file is certain to
keep its content once it was synced, and its name once the folder of that name was synced. The calls are intercepted
where Python hands them to the system (`os`, `open`), so the program's code runs unchanged.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from world import Killed, World

from glovewire.server.telemetry import metrics_file

DISK_FAULTS = ("kill while writing", "power failure", "disk full", "disk fails")
FIRST_PID = 5_000_000
"""No real process has such an id."""
FAILS = 0.2
"""Of a failing disk, the share of calls that fail."""


@dataclass
class File:
    """The content of a file that is certain, and the last one of a file without a name."""

    synced: bytes = b""
    last: bytes = b""


@dataclass
class Folder:
    """The names in a folder: those that processes see, those that are certain, and the changes in between."""

    names: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)
    changes: list[dict[str, Node | None]] = field(default_factory=list)

    def change(self, names: dict[str, Node | None]) -> None:
        """Add, replace and remove names, all at once."""
        self.changes.append(names)
        _apply(self.names, names)

    def sync(self) -> None:
        """Make every name certain."""
        self.synced, self.changes = dict(self.names), []


Node = File | Folder


def _apply(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """The disk under `root`, an empty folder: `step_s` is what a call takes, `one_pid` gives processes the same id.

    `kill_at` holds the processes that are killed after so many more calls. Of several disks each has a `name`.
    """

    def __init__(self, world: World, root: Path, step_s: float = 0.0, *, one_pid: bool = False, name: str = "") -> None:
        self.world, self.root, self.step_s = world, str(root), step_s
        self._below = f"{root}/"
        self.full_until = self.fails_until = 0.0
        self.kill_at: dict[str, int] = {}
        self.steps = 0
        self._one_pid, self._off = one_pid, False
        self._random = random.Random(f"disk {world.seed}{name}")
        self._top = Folder()
        self._open: dict[int, Node] = {}
        self._streams: list[Stream] = []
        self._real: dict[str, Callable[..., Any]] = {}

    # ---- faults

    def lose_power(self) -> None:
        """Keep what was synced; of the rest, keep in each folder the first few changes, and in files anything."""
        self._off = True
        contents = self._contents()
        shutil.rmtree(self.root)
        os.mkdir(self.root)
        self._top = self._restored(self._top, self.root, contents)
        self._open.clear()
        self._off = False

    def lose_all(self) -> None:
        """Keep nothing: an empty disk takes its place."""
        self._off = True
        shutil.rmtree(self.root)
        os.mkdir(self.root)
        self._top = Folder()
        self._open.clear()
        self._off = False

    def _contents(self) -> dict[int, bytes]:
        """Return the content of every file that has a name, by the id of its node."""
        found: dict[int, bytes] = {}

        def look(folder: Folder, path: str) -> None:
            for name, node in folder.names.items():
                if isinstance(node, Folder):
                    look(node, f"{path}/{name}")
                else:
                    found[id(node)] = self._read(f"{path}/{name}")

        look(self._top, self.root)
        return found

    def _restored(self, folder: Folder, path: str, contents: dict[int, bytes]) -> Folder:
        names = dict(folder.synced)
        for change in folder.changes[: self._random.randint(0, len(folder.changes))]:
            _apply(names, change)
        for name, node in names.items():
            if isinstance(node, Folder):
                os.mkdir(f"{path}/{name}")
                names[name] = self._restored(node, f"{path}/{name}", contents)
            else:
                content = self._left_of(node, contents.get(id(node), node.last))
                Path(f"{path}/{name}").write_bytes(content)
                names[name] = File(content)
        return Folder(names, dict(names))

    def _left_of(self, file: File, content: bytes) -> bytes:
        """Return what is left of a file that was written: all, what was synced, a part, or a part and zeros."""
        if content == file.synced:
            return content
        part = content[: self._random.randint(0, len(content))]
        return self._random.choice([content, file.synced, part, part.ljust(len(content), b"\0")])

    # ---- calls

    def _step(self, what: str, path: str, *, writes: bool = True) -> None:
        """Let time pass before a call, in which its process may be killed; then fail, if the disk does."""
        process = self.world.current
        if process is None:
            return
        if process.killed:
            raise Killed
        self.steps += 1
        owner = process.owner or process
        if owner.name in self.kill_at:
            self.kill_at[owner.name] -= 1
            if self.kill_at[owner.name] <= 0:
                del self.kill_at[owner.name]
                self.world.tell(f"is killed before {what} {path.removeprefix(self.root)}")
                self.world.after(0.0, lambda: self.world.kill(owner))
        self.world.wait(self.step_s)
        if writes and self.world.now < self.full_until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self.world.now < self.fails_until and self._random.random() < FAILS:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _ours(self, path: object) -> str:
        """Return a path below the root as a string, "" for any other."""
        if self._off or not isinstance(path, str | os.PathLike):
            return ""
        text = os.fspath(path)
        return text if isinstance(text, str) and (text.startswith(self._below) or text == self.root) else ""

    def _place(self, path: str) -> tuple[Folder, str]:
        """Return the folder and the name of a path."""
        *above, name = path.removeprefix(self._below).split("/")
        folder = self._top
        for part in above:
            below = folder.names[part]
            assert isinstance(below, Folder)
            folder = below
        return folder, name

    def _node(self, path: str) -> Node:
        if path == self.root:
            return self._top
        folder, name = self._place(path)
        return folder.names[name]

    def _read(self, path: str) -> bytes:
        handle = self._real["open"](path, os.O_RDONLY)
        try:
            return os.read(handle, os.fstat(handle).st_size)
        finally:
            self._real["close"](handle)

    def _unnamed(self, path: str) -> None:
        """Keep the content of a file that loses a name."""
        folder, name = self._place(path)
        node = folder.names.get(name)
        if isinstance(node, File):
            node.last = self._read(path)

    def _mkdir(self, path: Any, mode: int = 0o777, **more: Any) -> None:
        if at := self._ours(path):
            self._step("mkdir", at)
        self._real["mkdir"](path, mode, **more)
        if at and at != self.root:
            folder, name = self._place(at)
            folder.change({name: Folder()})

    def _rmdir(self, path: Any, **more: Any) -> None:
        if at := self._ours(path):
            self._step("rmdir", at, writes=False)
        self._real["rmdir"](path, **more)
        if at:
            folder, name = self._place(at)
            folder.change({name: None})

    def _unlink(self, path: Any, **more: Any) -> None:
        if (at := self._ours(path)) and os.path.lexists(at):
            self._step("unlink", at, writes=False)
            self._unnamed(at)
        self._real["unlink"](path, **more)
        if at:
            folder, name = self._place(at)
            folder.change({name: None})

    def _rename(self, source: Any, target: Any, **more: Any) -> None:
        if at := self._ours(target):
            self._step("rename to", at)
            self._unnamed(at)
        self._real["rename"](source, target, **more)
        if at:
            before, old = self._place(self._ours(source))
            folder, name = self._place(at)
            assert before is folder, "a rename from one folder to another"
            folder.change({old: None, name: folder.names[old]})

    def _link(self, source: Any, target: Any, **more: Any) -> None:
        if at := self._ours(target):
            self._step("link", at)
        self._real["link"](source, target, **more)
        if at:
            folder, name = self._place(at)
            folder.change({name: self._node(self._ours(source))})

    def _os_open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        at = self._ours(path)
        new = bool(at and flags & os.O_CREAT and not os.path.lexists(at))
        if at:
            self._step("create" if new else "open", at, writes=new)
        handle: int = self._real["open"](path, flags, mode, **more)
        self._open.pop(handle, None)
        if at:
            if new:
                folder, name = self._place(at)
                if name not in folder.names:
                    folder.change({name: File()})
            self._open[handle] = self._node(at)
        return handle

    def _close(self, handle: int) -> None:
        self._open.pop(handle, None)
        self._real["close"](handle)

    def _fsync(self, handle: int) -> None:
        node = self._open.get(handle)
        if node is None:
            self._real["fsync"](handle)
            return
        self._step("fsync", "of a folder" if isinstance(node, Folder) else "of a file")
        if isinstance(node, Folder):
            node.sync()
        else:
            node.synced = os.pread(handle, os.fstat(handle).st_size, 0)

    def _open_stream(self, file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        at = self._ours(file)
        if not at:
            return self._real["stream"](file, mode, *args, **more)
        if "w" not in mode and "a" not in mode:
            self._step("read", at, writes=False)
            return self._real["stream"](file, mode, *args, **more)
        assert mode == "wb", f"a file is opened with {mode}"
        return io.BufferedWriter(Stream(at, mode, disk=self, opener=more.get("opener")))

    def _scandir(self, path: Any = ".") -> Any:
        if not self._ours(path):
            return self._real["scandir"](path)
        with self._real["scandir"](path) as found:
            return contextlib.nullcontext(iter(sorted(found, key=lambda entry: entry.name)))

    def _getpid(self) -> int:
        process = self.world.current
        if process is None:
            return int(self._real["getpid"]())
        if self._one_pid:
            return FIRST_PID
        return FIRST_PID + (process.owner or process).number

    def _kill(self, pid: int, number: int) -> None:
        if pid < FIRST_PID:
            self._real["kill"](pid, number)
        elif self._one_pid or not self.world.processes[pid - FIRST_PID].alive:
            raise ProcessLookupError

    @contextlib.contextmanager
    def intercepting(self) -> Iterator[None]:
        """Take the calls of this program that are about the disk, and the ids of its processes."""
        calls = {
            "mkdir": self._mkdir, "rmdir": self._rmdir, "unlink": self._unlink, "rename": self._rename,
            "link": self._link, "open": self._os_open, "close": self._close, "fsync": self._fsync,
            "scandir": self._scandir, "getpid": self._getpid, "kill": self._kill,
        }  # fmt: skip
        self._real = {name: getattr(os, name) for name in calls}
        self._real |= {"stream": builtins.open, "appended": metrics_file.FileIO}
        with contextlib.ExitStack() as stack:
            for name, call in calls.items():
                stack.enter_context(mock.patch.object(os, name, call))
            for module in (builtins, io):
                stack.enter_context(mock.patch.object(module, "open", self._open_stream))
            stack.enter_context(mock.patch.object(shutil, "_use_fd_functions", False))
            stack.enter_context(mock.patch.object(metrics_file, "FileIO", self._appended))
            try:
                yield
            finally:
                for stream in self._streams:  # of killed processes
                    stream.close()

    def _appended(self, path: Any, mode: str, opener: Callable[[str, int], int]) -> io.FileIO:
        if not self._ours(path):
            other: io.FileIO = self._real["appended"](path, mode, opener=opener)
            return other
        return Stream(os.fspath(path), mode, disk=self, opener=opener)


class Stream(io.FileIO):
    """A file that is written: each write is a step."""

    def __init__(self, path: str, mode: str, *, disk: Disk, opener: Callable[[str, int], int] | None) -> None:
        self._disk, self._path = disk, path
        super().__init__(path, mode, opener=opener or _opened)
        disk._streams.append(self)

    def write(self, data: Any) -> int:
        """Write, perhaps only a part if the disk is full."""
        disk = self._disk
        try:
            disk._step("write to", self._path)
        except OSError as error:
            part = disk._random.randint(0, len(data))
            if error.errno == errno.ENOSPC and part and disk._random.random() < 0.5:
                return super().write(bytes(data)[:part])
            raise
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        """Cut the file off."""
        self._disk._step("truncate", self._path, writes=False)
        return super().truncate(size)


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags, 0o666)
