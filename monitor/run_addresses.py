"""Find the addresses of a run in its folder, where every server leaves its `ready` line."""

import re
from pathlib import Path

from glovewire.common.errors import UsageError
from glovewire.common.ready import Ready
from glovewire.common.storage.artifacts import MANIFEST
from glovewire.common.storage.run_folder import METRICS

LOGS, READY = "logs", re.compile(r"server-(\d+)\.address")
EVERYWHERE, HERE = "tcp://0.0.0.0:", "tcp://127.0.0.1:"


def found_addresses(given: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return (publish addresses, finished runs) for addresses and run folders, in their order.

    Raises UsageError for a name that is neither, and for a folder in which no server has started.
    """
    addresses: list[str] = []
    finished: list[Path] = []
    for each in given:
        if (run := Path(each)).is_dir():
            found = _addresses_of(run)
            addresses += found
            finished += [] if found else [run]
        elif ":" in each:
            addresses.append(each)
        else:
            raise UsageError(f"{each} is neither a run folder nor an address such as tcp://127.0.0.1:5556")
    if addresses and finished:
        raise UsageError(
            f"{finished[0]} has finished, and cannot be shown together with a running training: give --replay alone"
        )
    return tuple(addresses), tuple(finished)


def shards_of(run: Path) -> list[Ready]:
    """Return the `ready` lines of the servers last started in a run, by shard; none if none was started."""
    files = {int(match[1]): file for file in run.glob(f"{LOGS}/*.address") if (match := READY.fullmatch(file.name))}
    texts = [file.read_text(encoding="utf-8", errors="replace") for _, file in sorted(files.items())]
    shards = [Ready.parse(text.splitlines()[0]) for text in texts if text.startswith("ready ")]
    return [each for each in shards if each.shard < shards[0].shards]


def _addresses_of(run: Path) -> list[str]:
    """Return the publish address of every shard of a run in training, none for a finished run."""
    manifest = run / MANIFEST
    if manifest.is_file() and (run / METRICS).is_file():
        since = manifest.stat().st_mtime
        if all(file.stat().st_mtime < since for file in run.glob(f"{LOGS}/server-*.address")):
            return []
    shards = shards_of(run)
    if not shards:
        raise UsageError(f"{run} names no server: is a training running in it? (a finished run: --replay {run})")
    return [each.stream.replace(EVERYWHERE, HERE) for each in shards]
