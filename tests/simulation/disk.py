"""A disk of the run folder: every call that changes it is a step, before which a process can be killed.

Processes see a real folder. A model of it records what a power failure would leave: a file keeps its content once it
was synced, and its name once the folder of that name was synced; such content and names are called certain. The calls
are intercepted where Python hands them to the system (`os`, `open`), so the program's code runs unchanged.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any
from unittest import mock

from world import Killed, Process, World

from glovewire.server.telemetry import metrics_file

DISK_FAULTS = (
    "kill while writing", "power failure", "disk full", "disk fails", "damage checkpoint", "damage beginning"
)  # fmt: skip
FIRST_PID = 5_000_000
"""No real process has an id from this one on."""
FAILS, SELDOM = 0.2, 0.03
"""The share of calls that fail on a failing disk; SELDOM on a dying disk and, since draw 11, on every second one."""


@dataclass
class File:
    """The certain content of a file, and the last content of a file without a name."""

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


def _found(path: Path) -> Folder:
    """Return the folder `path` with everything below it, all of it certain."""
    names: dict[str, Node] = {
        each.name: _found(each) if each.is_dir() else File(each.read_bytes()) for each in sorted(path.iterdir())
    }
    return Folder(names, dict(names))


class Disk:
    """The disk under `root`, an empty folder. A call takes `step_s`; with `one_pid`, all processes have the same id.

    `kill_at` says after how many more calls a process is killed. Several disks differ in their `name`. If a disk is
    `silent`, queries about files fail, too, while it fails.
    """

    def __init__(
        self,
        world: World,
        root: Path,
        step_s: float = 0.0,
        *,
        one_pid: bool = False,
        silent: bool = False,
        name: str = "",
    ) -> None:
        self.world, self.root, self.step_s = world, str(root), step_s
        self.below, self._backup = f"{root}/", f"{root}-backup"
        self.full_until = self.fails_until = 0.0
        self._fails = FAILS
        self.kill_at: dict[str, int] = {}
        self.off = False
        """Whether calls go straight to the system, while a fault changes the disk."""
        self._one_pid, self._silent = one_pid, silent
        self._random = random.Random(f"disk {world.seed}{name}")
        self._top = Folder()
        self._streams: list[Stream] = []

    # ---- faults

    def fail(self, seconds: float, *, seldom: bool) -> None:
        """Let calls fail for a time; `seldom` has no effect on a disk that is not silent."""
        self.fails_until, self._fails = self.world.now + seconds, SELDOM if seldom and self._silent else FAILS

    def lose_power(self) -> None:
        """Keep what was synced. Of the rest, keep the first few changes of each folder, and any part of a file."""
        self.off = True
        contents = self._contents()
        shutil.rmtree(self.root)
        os.mkdir(self.root)
        self._top = self._restored(self._top, self.root, contents)
        self.off = False

    def lose_all(self) -> None:
        """Keep nothing: an empty disk takes its place."""
        self.off = True
        shutil.rmtree(self.root)
        os.mkdir(self.root)
        self._top = Folder()
        self.off = False

    def back_up(self) -> None:
        """Copy everything that processes see now, for `go_back`."""
        self.off = True
        shutil.rmtree(self._backup, ignore_errors=True)
        shutil.copytree(self.root, self._backup)
        self.off = False

    @property
    def has_backup(self) -> bool:
        """Return whether there is a copy that `go_back` has not put back."""
        return os.path.isdir(self._backup)

    def go_back(self) -> None:
        """Replace the disk by the copy that `back_up` made."""
        self.off = True
        shutil.rmtree(self.root)
        os.rename(self._backup, self.root)
        self._top = _found(Path(self.root))
        self.off = False

    def damage(self, path: Path) -> None:
        """Change the last byte of a file behind the back of the processes."""
        self.off = True
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        node = self._node(str(path))
        assert isinstance(node, File)
        node.synced = path.read_bytes()
        self.off = False

    def _contents(self) -> dict[int, bytes]:
        """Return the content of every file that has a name, by the id of its node."""
        found: dict[int, bytes] = {}

        def look(folder: Folder, path: str) -> None:
            for name, node in folder.names.items():
                if isinstance(node, Folder):
                    look(node, f"{path}/{name}")
                else:
                    found[id(node)] = _content(f"{path}/{name}")

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

    # ---- calls, each with a path below the root

    def _step(self, what: str, path: str, *, writes: bool = True) -> None:
        """Let time pass before a call, in which its process may be killed; then raise what a faulty disk does."""
        world = self.world
        process = world.current
        if process is None:
            return
        if process.killed:
            raise Killed
        if self.kill_at and (owner := process.owner or process).name in self.kill_at:
            self.kill_at[owner.name] -= 1
            if self.kill_at[owner.name] <= 0:
                del self.kill_at[owner.name]
                world.tell(f"is killed before {what} {path.removeprefix(self.root)}")
                world.after(0.0, lambda: world.kill(owner))
        world.wait(self.step_s)
        if writes and world.now < self.full_until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._fail(path)

    def _fail(self, path: str) -> None:
        if self.world.now < self.fails_until and self._random.random() < self._fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def look(self, path: str) -> None:
        """Fail like the disk before a query about a file or folder, which changes nothing."""
        process = self.world.current
        if self._silent and process is not None and not process.killed:
            self._fail(path)

    def _place(self, path: str) -> tuple[Folder, str]:
        """Return the folder and the name of a path."""
        *above, name = path.removeprefix(self.below).split("/")
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

    def _unnamed(self, path: str) -> None:
        """Keep the content of a file that loses a name."""
        folder, name = self._place(path)
        node = folder.names.get(name)
        if isinstance(node, File):
            node.last = _content(path)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """See os."""
        self._step("mkdir", path)
        _REAL.mkdir(path, mode)
        if path != self.root:
            folder, name = self._place(path)
            folder.change({name: Folder()})

    def rmdir(self, path: str) -> None:
        """See os."""
        self._step("rmdir", path, writes=False)
        _REAL.rmdir(path)
        folder, name = self._place(path)
        folder.change({name: None})

    def unlink(self, path: str) -> None:
        """See os."""
        if os.path.lexists(path):
            self._step("unlink", path, writes=False)
            self._unnamed(path)
        _REAL.unlink(path)
        folder, name = self._place(path)
        folder.change({name: None})

    def rename(self, source: str, target: str) -> None:
        """See os."""
        self._step("rename to", target)
        self._unnamed(target)
        _REAL.rename(source, target)
        before, old = self._place(source)
        folder, name = self._place(target)
        assert before is folder, "a rename from one folder to another"
        folder.change({old: None, name: folder.names[old]})

    def link(self, source: str, target: str) -> None:
        """See os."""
        self._step("link", target)
        _REAL.link(source, target)
        folder, name = self._place(target)
        folder.change({name: self._node(source)})

    def open(self, path: str, flags: int, mode: int = 0o777) -> tuple[int, Node]:
        """See os; also return the node."""
        new = bool(flags & os.O_CREAT and not os.path.lexists(path))
        self._step("create" if new else "open", path, writes=new)
        handle = _REAL.open(path, flags, mode)
        if new:
            folder, name = self._place(path)
            if name not in folder.names:
                folder.change({name: File()})
        return handle, self._node(path)

    def fsync(self, handle: int, node: Node) -> None:
        """See os."""
        self._step("fsync", "of a folder" if isinstance(node, Folder) else "of a file")
        if isinstance(node, Folder):
            node.sync()
        else:
            node.synced = os.pread(handle, os.fstat(handle).st_size, 0)

    def stream(self, path: str, mode: str = "r", *args: Any, **more: Any) -> Any:
        """See `open`."""
        if "w" not in mode and "a" not in mode:
            self._step("read", path, writes=False)
            return _REAL.stream(path, mode, *args, **more)
        assert mode == "wb", f"a file is opened with {mode}"
        return io.BufferedWriter(Stream(path, mode, disk=self, opener=more.get("opener")))

    def close_streams(self) -> None:
        """Close what killed processes were writing."""
        for stream in self._streams:
            stream.close()

    def getpid(self, process: Process) -> int:
        """Return the id of a process of this machine."""
        return FIRST_PID if self._one_pid else FIRST_PID + (process.owner or process).number

    def kill(self, pid: int) -> None:
        """Raise ProcessLookupError unless there is a process with this id."""
        if self._one_pid or not self.world.processes[pid - FIRST_PID].alive:
            raise ProcessLookupError


def _content(path: str) -> bytes:
    handle = _REAL.open(path, os.O_RDONLY)
    try:
        return os.read(handle, os.fstat(handle).st_size)
    finally:
        _REAL.close(handle)


_REAL = SimpleNamespace(
    mkdir=os.mkdir, rmdir=os.rmdir, unlink=os.unlink, rename=os.rename, link=os.link, scandir=os.scandir,
    open=os.open, close=os.close, fsync=os.fsync, getpid=os.getpid, kill=os.kill, stat=os.stat, listdir=os.listdir,
    stream=builtins.open, appended=metrics_file.FileIO,
)  # fmt: skip
"""The calls that are intercepted."""


class Calls:
    """Stands for the system calls to `disks`; calls with other paths are passed to the system."""

    def __init__(self, disks: Sequence[Disk]) -> None:
        self._disks = disks
        self._open: dict[int, tuple[Disk, Node]] = {}

    def _disk_of(self, path: object) -> tuple[Disk | None, str]:
        """Return the disk that a path is on, None if it is on none, and the path as a string."""
        text = path if isinstance(path, str) else str(path) if isinstance(path, PurePath) else ""
        for disk in self._disks:
            if text.startswith(disk.below) or text == disk.root:
                return (None if disk.off else disk), text
        return None, text

    def _of_path(self, name: str) -> Callable[..., Any]:
        """Return a call whose first argument is a path."""
        real = getattr(_REAL, name)

        def call(path: Any, *args: Any, **more: Any) -> Any:
            disk, text = self._disk_of(path)
            return real(path, *args, **more) if disk is None else getattr(disk, name)(text, *args, **more)

        return call

    def _looking(self, name: str) -> Callable[..., Any]:
        """Return a call that queries a path, and changes nothing."""
        real = getattr(_REAL, name)

        def call(path: Any = ".", *args: Any, **more: Any) -> Any:
            for disk in self._disks:
                if disk.fails_until > disk.world.now and (found := self._disk_of(path))[0] is disk:
                    disk.look(found[1])
            return real(path, *args, **more)

        return call

    def _of_two(self, name: str) -> Callable[..., None]:
        """Return a call whose first two arguments are paths."""
        real = getattr(_REAL, name)

        def call(source: Any, target: Any, **more: Any) -> None:
            disk, text = self._disk_of(target)
            if disk is None:
                real(source, target, **more)
            else:
                getattr(disk, name)(os.fspath(source), text)

        return call

    def _os_open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        disk, text = self._disk_of(path)
        if disk is None:
            handle: int = _REAL.open(path, flags, mode, **more)
            self._open.pop(handle, None)
            return handle
        handle, node = disk.open(text, flags, mode)
        self._open[handle] = disk, node
        return handle

    def _close(self, handle: int) -> None:
        self._open.pop(handle, None)
        _REAL.close(handle)

    def _fsync(self, handle: int) -> None:
        disk, node = self._open.get(handle, (None, None))
        if disk is None or node is None:
            _REAL.fsync(handle)
        else:
            disk.fsync(handle, node)

    def _scandir(self, path: Any = ".") -> Any:
        if self._disk_of(path)[0] is None:
            return _REAL.scandir(path)
        with _REAL.scandir(path) as found:
            return contextlib.nullcontext(iter(sorted(found, key=lambda entry: entry.name)))

    def _appended(self, path: Any, mode: str, opener: Callable[[str, int], int]) -> io.FileIO:
        disk, text = self._disk_of(path)
        if disk is None:
            other: io.FileIO = _REAL.appended(path, mode, opener=opener)
            return other
        return Stream(text, mode, disk=disk, opener=opener)

    def _getpid(self) -> int:
        disk = self._disks[0]
        process = disk.world.current
        return int(_REAL.getpid()) if process is None else disk.getpid(process)

    def _kill(self, pid: int, number: int) -> None:
        if pid < FIRST_PID:
            _REAL.kill(pid, number)
        else:
            self._disks[0].kill(pid)

    @contextlib.contextmanager
    def intercepted(self) -> Iterator[None]:
        """Intercept the calls of this program that concern the disks, and those for process ids."""
        calls = {name: self._of_path(name) for name in ("mkdir", "rmdir", "unlink")}
        calls |= {name: self._of_two(name) for name in ("rename", "link")}
        calls |= {name: self._looking(name) for name in ("stat", "listdir")}
        calls |= {
            "open": self._os_open, "close": self._close, "fsync": self._fsync, "scandir": self._scandir,
            "getpid": self._getpid, "kill": self._kill,
        }  # fmt: skip
        with contextlib.ExitStack() as stack:
            for name, call in calls.items():
                stack.enter_context(mock.patch.object(os, name, call))
            for module in (builtins, io):
                stack.enter_context(mock.patch.object(module, "open", self._of_path("stream")))
            stack.enter_context(mock.patch.object(shutil, "_use_fd_functions", False))
            stack.enter_context(mock.patch.object(metrics_file, "FileIO", self._appended))
            try:
                yield
            finally:
                for disk in self._disks:
                    disk.close_streams()


class Stream(io.FileIO):
    """A file open for writing: each write is a step."""

    def __init__(self, path: str, mode: str, *, disk: Disk, opener: Callable[[str, int], int] | None) -> None:
        self._disk, self._path = disk, path
        super().__init__(path, mode, opener=opener or _opened)
        disk._streams.append(self)

    def write(self, data: Any) -> int:
        """Write, perhaps only a part of the data if the disk is full."""
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
        """Truncate the file."""
        self._disk._step("truncate", self._path, writes=False)
        return super().truncate(size)


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags, 0o666)
