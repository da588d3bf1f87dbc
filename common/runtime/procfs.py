"""What a process of ours takes of this machine, read from /proc: processor time and memory. Linux only."""

from __future__ import annotations

from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Processor time of the living threads of a process so far, user and system, to the nanosecond; 0 if it is gone."""
    total = 0
    for task in _tasks(pid):
        words = _read(task / "schedstat").split()
        total += int(words[0]) if words else 0
    return total / 1e9


def memory_bytes(pid: int) -> tuple[int, int]:
    """Proportional (PSS) and private memory of a process: pages that several share count in parts; 0 if it is gone."""
    found = {}
    for line in _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            found[name] = int(rest.split()[0]) << 10
    return found.get("Pss", 0), found.get("Private_Clean", 0) + found.get("Private_Dirty", 0)


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return ""


def descendants(pid: int) -> list[int]:
    """Every living process below this one."""
    found = [int(word) for task in _tasks(pid) for word in _read(task / "children").split()]
    return found + [below for child in found for below in descendants(child)]


def command_line(pid: int) -> list[str]:
    """The words that a process was started with; none if it is gone."""
    return [word for word in _read(Path(f"/proc/{pid}/cmdline")).split("\0") if word]
