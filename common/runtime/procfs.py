"""Read processor time, descendants and command lines of processes from /proc. Linux only."""

from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Return the seconds of processor time of a process's living threads; 0 if the process has ended."""
    total = 0
    for task in _tasks(pid):
        words = read_text(task / "schedstat").split()
        total += int(words[0]) if words else 0
    return total / 1e9


def descendants(pid: int) -> list[int]:
    """Return the ids of all living descendants of a process."""
    found = [int(word) for task in _tasks(pid) for word in read_text(task / "children").split()]
    return found + [below for child in found for below in descendants(child)]


def command_line(pid: int) -> list[str]:
    """Return the command-line arguments of a process, [] if it has ended."""
    return [word for word in read_text(Path(f"/proc/{pid}/cmdline")).split("\0") if word]


def read_text(path: Path) -> str:
    """Return the text of a file in /proc, "" if its process has ended."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended
        return []
