"""Run a glovewire command in a background process for a caller in Python; return its result or raise its error.

The caller's signals, threads and output are left alone. If the caller is interrupted, the process and all its children
shut down cleanly; if the caller dies, even by SIGKILL, Linux ends them too.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from glovewire.common.cli.config_file import to_toml
from glovewire.common.errors import ProcessDied, from_wire
from glovewire.common.option import spoken

from ..launch.processes import environment

POLL_S = 0.1
PATIENCE_S = 60.0
"""Time for an interrupted command to shut down cleanly: workers complete their rounds, servers write what they have."""


def run(
    command: str,
    arguments: Sequence[str],
    options: Mapping[str, Any],
    each: Callable[[Path], None],
    *,
    show: bool,
) -> dict[str, Any]:
    """Run `glovewire COMMAND ARGUMENTS` with `options`, by field name (None: not given), and return its result.

    Calls `each`, with the path of the command's log, every 0.1 s; an exception that it raises ends the command. With
    `show`, the command writes to this process's stderr. Raises the command's own error; ProcessDied if it was killed.
    """
    with TemporaryDirectory(prefix="glovewire-") as folder:
        file, out, log = (Path(folder) / name for name in ("options.toml", "out", "log"))
        given = {spoken(name): value for name, value in options.items() if value is not None}
        file.write_text(to_toml(command, given), encoding="utf-8", errors="surrogateescape")
        words = [sys.executable, "-m", "glovewire.api.child", command, *arguments]
        with out.open("wb") as stdout, log.open("wb") as stderr:
            process = subprocess.Popen(
                [*words, "--config", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=None if show else stderr,
                env=environment(command),
                start_new_session=True,  # Ctrl-C in a terminal reaches only the caller
            )
        try:
            while process.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
                each(log)
        finally:
            _end(process)
        return _result(process, out, log, file)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Shut the process down cleanly if it still runs; a second interruption kills it, and Linux ends its children."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def _result(process: subprocess.Popen[bytes], out: Path, log: Path, file: Path) -> dict[str, Any]:
    last = out.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
    try:
        found: dict[str, Any] = json.loads("".join(last))
    except ValueError:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = next((line for line in reversed(lines) if line.strip()), f"exit status {process.returncode}")
        raise ProcessDied(f"the background process ended unexpectedly: {said}") from None
    if "code" in found:
        raise from_wire(found["code"], found["text"].replace(f"{file}: ", ""))
    result: dict[str, Any] = found["result"] or {}
    return result
