"""Describe a dataset, a run or another artifact as plain values, and verify its checksums."""

import json
import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common.addresses import url_of
from glovewire.common.cli.config_file import saved_value
from glovewire.common.endings import Ending
from glovewire.common.errors import ArtifactError, UsageError
from glovewire.common.storage import dataset as datasets
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import MANIFEST, Manifest
from glovewire.common.storage.stores import local

from .read import read_vectors

_ROWS_AT_ONCE = 8192


def describe(path: Path, *, verify: bool = True) -> dict[str, Any]:
    """Return a description of the artifact in `path`; its items are in the order in which they are shown.

    With `verify`, compares every checksum and sets `verified`. Raises ArtifactError if the artifact is missing or
    damaged, or if `path` is not an artifact.
    """
    with local(path, verify=verify) as place:
        described = _describe(place, verify=verify)
        return described | ({"path": url_of(path)} if url_of(path) else {})


def _describe(path: Path, *, verify: bool) -> dict[str, Any]:
    if os.path.isfile(path):
        return _file(path)
    if runs.is_run(path) and not (path / MANIFEST).exists():
        return {"path": str(path), "kind": "run", "state": "in training, or stopped before the end"} | _progress(path)
    kind = Manifest.read(path).kind
    if kind == datasets.KIND:
        return _dataset(path, verify=verify)
    if kind == runs.KIND:
        return _run(path, verify=verify)
    return _other(path, kind, verify=verify)


def _head(path: Path, kind: str, manifest: Manifest, *, verified: bool) -> dict[str, Any]:
    _require_counts(path, manifest.facts)
    files = {name: int(entry["bytes"]) for name, entry in manifest.files.items()}
    head = {"path": str(path), "kind": kind, "schema": manifest.schema, "checksum": manifest.checksum}
    return head | {"verified": verified, "bytes": sum(files.values()), "files": files}


def _file(path: Path) -> dict[str, Any]:
    loaded = read_vectors(path)
    ngrams = {} if loaded.subwords is None else {"ngrams": len(loaded.subwords.buckets)}
    head = {"path": str(path), "kind": "vectors of another program", "words": len(loaded.words), "dim": loaded.dim}
    return head | {"mean_norm": _mean_norm(loaded)} | ngrams | {"bytes_of_file": path.stat().st_size}


def _dataset(path: Path, *, verify: bool) -> dict[str, Any]:
    opened = datasets.Dataset.open(path, verify=verify)
    words, facts = len(opened.words), dict(opened.manifest.facts)
    sizes = np.diff(opened.tiles[opened.layout.first_tile])
    known = {
        "vocabulary": words,
        "tokens": facts.get("tokens", int(opened.counts.sum())),
        "tokens_in_vocabulary": int(opened.counts.sum()),
        "entries": opened.total_entries,
        "stored_entries": len(opened.entries),
        "density": opened.total_entries / words**2 if words else 0.0,
        "sum": _sum(opened),
        "symmetric": opened.layout.symmetric,
        "partitions": opened.layout.partitions,
        "blocks": len(opened.layout.blocks),
        "block_entries": {"min": int(sizes.min()), "median": int(np.median(sizes)), "max": int(sizes.max())},
    }
    head = _head(path, datasets.KIND, opened.manifest, verified=verify)
    return head | known | {"facts": _without(facts, {**known, "bounds": ()})}


def _sum(opened: datasets.Dataset) -> float:
    """Return the sum of all values of the full matrix, in float64."""
    total = 0.0
    for a, b in opened.layout.blocks:
        stored, _ = opened.block(a, b)
        total += float(stored["x"].sum(dtype=np.float64)) * (2 if opened.layout.symmetric else 1)
        if opened.layout.symmetric and a == b:
            total -= float(stored["x"][stored["i"] == stored["j"]].sum(dtype=np.float64))
    return total


def _run(path: Path, *, verify: bool) -> dict[str, Any]:
    loaded = runs.load_vectors(path, verify=verify)
    manifest = Manifest.load(path, runs.KIND, runs.SCHEMA, verify=False)
    known = {
        "state": _state(path, loaded.facts),
        "words": len(loaded.words),
        "dim": loaded.dim,
        "mean_norm": _mean_norm(loaded),
    }
    facts = _without(loaded.facts, known)
    return _head(path, "run", manifest, verified=verify) | known | _progress(path) | {"facts": facts}


def _state(path: Path, facts: Mapping[str, Any]) -> str:
    """Return how the run ended: `finished`, or `stopped after 3 of 10 epochs`."""
    if facts.get("ending", Ending.COMPLETE) == Ending.COMPLETE:
        return "finished"
    with suppress(UsageError):  # the configuration is not part of the artifact
        if epochs := saved_value(path / runs.CONFIG, "epochs", int):
            return f"stopped after {facts.get('epochs')} of {epochs} epochs"
    return "stopped before the end"


def _mean_norm(loaded: runs.Vectors) -> float:
    """Return the mean Euclidean norm of the vectors, which stays near its initial value if nothing was learned."""
    starts = range(0, len(loaded.words), _ROWS_AT_ONCE)
    total = sum(float(np.linalg.norm(loaded.vectors[s : s + _ROWS_AT_ONCE], axis=1).sum()) for s in starts)
    return total / max(1, len(loaded.words))


def _progress(path: Path) -> dict[str, Any]:
    checkpoints = path / runs.CHECKPOINTS
    names = sorted(p.name for p in checkpoints.iterdir() if not p.name.startswith(".")) if checkpoints.is_dir() else []
    last = _last_sample(path / runs.METRICS)
    return {"checkpoints": names} | ({"last_sample": last} if last else {})


def _last_sample(metrics: Path) -> dict[str, Any]:
    """Return the object in the last complete line of the metrics, {} if there is none; skips a truncated last line."""
    if not metrics.is_file():
        return {}
    with metrics.open("rb") as stream:
        ends = deque(stream, maxlen=2)
    for line in reversed(ends):
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError):
            continue
    return {}


def _other(path: Path, kind: str, *, verify: bool) -> dict[str, Any]:
    schema = json.loads((path / MANIFEST).read_bytes())["schema"]
    if type(schema) is not int:
        raise ArtifactError(f"{path / MANIFEST} names no schema version")
    manifest = Manifest.load(path, kind, schema, verify=verify)
    return _head(path, kind, manifest, verified=verify) | {"facts": dict(manifest.facts)}


def _require_counts(path: Path, facts: Mapping[str, Any]) -> None:
    """Raise ArtifactError if `tokens` or a fact `bytes_...` is not a non-negative integer."""
    for name, value in facts.items():
        counts = name == "tokens" or name.startswith("bytes_")
        if counts and not (type(value) is int and 0 <= value < 1 << 63):
            raise ArtifactError(f"{path / MANIFEST} is damaged: {name!r} is {str(value)[:40]!r}, not a whole number")


def _without(facts: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in shown}
