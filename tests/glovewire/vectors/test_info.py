"""`info` tells a dataset, a run and a checkpoint as they are, and names damage in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from handmade import random_dataset
from permissions import closed

from glovewire.common.errors import ArtifactError
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import MANIFEST, writing_artifact
from glovewire.vectors import cli
from glovewire.vectors.export import export
from glovewire.vectors.info import describe
from glovewire.vectors.read import read_vectors
from glovewire.vectors.show import quantity, size


def ask(path: Path, *options: str) -> tuple[str, dict[str, Any]]:
    outcome = CliRunner().invoke(cli.info, [str(path), *options, "--json"])
    assert outcome.exit_code == 0, outcome.output
    text, _, last = outcome.stdout.rstrip("\n").rpartition("\n")
    return text, json.loads(last)


@pytest.mark.parametrize("symmetric", [True, False])
def test_dataset(tmp_path: Path, symmetric: bool) -> None:
    opened, dense = random_dataset(tmp_path / "data", symmetric=symmetric)
    text, found = ask(opened.path)
    assert found["kind"] == "dataset"
    assert found["vocabulary"] == 25
    assert found["entries"] == np.count_nonzero(dense)
    assert found["density"] == pytest.approx(np.count_nonzero(dense) / 625)
    assert found["sum"] == pytest.approx(dense.sum(dtype=np.float64), rel=1e-6)
    assert found["tokens_in_vocabulary"] == opened.counts.sum()
    sizes = [b - a for a, b in (opened.block_range(*block) for block in opened.layout.blocks)]
    assert found["block_entries"] == {"min": min(sizes), "median": int(np.median(sizes)), "max": max(sizes)}
    assert found["facts"] == {"tile": 4, "window": 5}
    assert found["verified"] is True
    assert found["checksum"] == opened.checksum
    assert "checksums" in text
    assert "entries.npy" in text
    assert len({line.index("  ") <= 30 for line in text.splitlines()}) == 1


def test_run_in_training_and_finished(tmp_path: Path) -> None:
    run = runs.prepare(tmp_path / "run")
    (run / runs.METRICS).write_text('{"loss": 2, "epoch": 1}\n{"loss": 1.5, "epoch": 2}\n{"loss": ')
    (run / runs.CHECKPOINTS / "000002").mkdir(parents=True)
    text, found = ask(run)
    assert "in training" in text
    assert "last sample" in text
    assert found["last_sample"] == {"loss": 1.5, "epoch": 2}
    assert found["checkpoints"] == ["000002"]
    runs.write_vectors(run, ["a", "b"], np.array([[3, 4], [0, 5]]), {"seed": 1, "bytes_sent": 2000, "row_ages": {}})
    text, found = ask(run)
    assert found["state"] == "finished"
    assert (found["words"], found["dim"], found["mean_norm"]) == (2, 2, pytest.approx(5))
    assert found["facts"] == {"seed": 1, "bytes_sent": 2000, "row_ages": {}}
    assert "verified" in text
    assert "2.0 kB" in text
    assert not any(label in text for label in ("row ages", "last sample"))


@pytest.mark.parametrize(
    ("config", "ending", "state"),
    [
        ("[train]\nepochs = 3000\n", "stopped", "stopped after 70 of 3000 epochs"),
        ("[train]\nepochs = 3000\n", "complete", "finished"),
        ("[train]\ndim = 4\n", "asked", "stopped before the end"),
        ("no toml", "stopped", "stopped before the end"),
    ],
)
def test_a_run_that_was_cut_short_says_so(tmp_path: Path, config: str, ending: str, state: str) -> None:
    run = runs.prepare(tmp_path / "run")
    (run / runs.CONFIG).write_text(config)
    runs.write_vectors(run, ["a", "b"], np.eye(2), {"epochs": 70, "ending": ending})
    text, found = ask(run)
    assert found["state"] == state
    assert state in text


def test_anything_else_shows_its_facts_and_files(tmp_path: Path) -> None:
    with writing_artifact(tmp_path / "c", "checkpoint", 3, {"epoch": 4, "rows": 20_000}) as scratch:
        (scratch / "rows.npy").write_bytes(b"x" * 2500)
    text, found = ask(tmp_path / "c")
    assert (found["kind"], found["schema"], found["files"]) == ("checkpoint", 3, {"rows.npy": 2500})
    assert "20,000" in text
    assert "2.5 kB" in text


def test_checksums_can_be_left_out(tmp_path: Path) -> None:
    opened, _ = random_dataset(tmp_path / "data")
    counts = opened.path / "counts.npy"
    data = bytearray(counts.read_bytes())
    data[-8] ^= 1
    counts.write_bytes(data)
    outcome = CliRunner().invoke(cli.info, [str(opened.path)])
    assert outcome.exit_code == 1
    assert "counts.npy does not match its checksum" in outcome.stderr
    text, found = ask(opened.path, "--no-verify")
    assert found["verified"] is False
    assert "not compared" in text


@pytest.mark.parametrize("name", ["missing", "file", "folder"])
def test_what_is_no_artifact_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    outcome = CliRunner().invoke(cli.info, [str(tmp_path / name)])
    assert outcome.exit_code == 1
    assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.parametrize("within", [".", "epoch-1.shard-0-of-1"], ids=["a folder", "a checkpoint"])
@pytest.mark.parametrize(
    "asked",
    [describe, read_vectors, lambda path: export(path, "npz", Path("-"))],
    ids=["info", "vectors", "export"],
)
def test_what_is_in_a_folder_that_may_not_be_searched_is_one_error(
    tmp_path: Path, asked: Callable[[Path], object], within: str
) -> None:
    """Seen to fail: a PermissionError with its traceback."""
    run = tmp_path / "closed" / runs.CHECKPOINTS
    (run / within).mkdir(parents=True)
    with pytest.raises(ArtifactError, match="Permission denied"), closed(run.parent):
        asked(run / within)


@pytest.mark.parametrize("kind", ["dataset", "run", "checkpoint"])
@pytest.mark.parametrize("value", ["x", None, 1.5, True, -1, [1], pytest.param(10**400, id="huge")])
def test_a_fact_that_is_no_number_is_damage(tmp_path: Path, kind: str, value: object) -> None:
    path, name = tmp_path / "it", "tokens" if kind == "dataset" else "bytes_received"
    if kind == "dataset":
        random_dataset(path)
    elif kind == "run":
        runs.write_vectors(runs.prepare(path), ["a", "b"], np.eye(2))
    else:
        with writing_artifact(path, kind, 1, {}):
            pass
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["facts"][name] = value
    (path / MANIFEST).write_text(json.dumps(manifest))
    outcome = CliRunner().invoke(cli.info, [str(path)])
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (1, 1), outcome.output
    assert outcome.stderr.startswith(f"error: {path / MANIFEST} is damaged: '{name}' is ")


def test_numbers_read_well() -> None:
    shown = [quantity(v) for v in (54_100_000, 0.05283, 443_210_987.25, True, None, {"min": 1, "max": 2000}, [], "x")]
    assert shown == ["54,100,000", "0.05283", "443,210,987.2", "yes", "-", "min: 1, max: 2,000", "-", "x"]
    assert [size(n) for n in (0, 999, 1000, 398_000_000, 5 * 10**15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "398.0 MB",
        "5000.0 TB",
    ]


def test_importing_the_commands_is_light() -> None:
    code = (
        "import sys, glovewire.vectors.cli; print([m for m in ('numpy', 'scipy', 'rich', 'zmq') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


def test_two_norms_of_a_run_are_told_apart(tmp_path: Path) -> None:
    runs.write_vectors(tmp_path, ["a", "b"], np.array([[3, 4], [0, 5]]), {"mean_vector_norm": 2.5})
    shown, _ = ask(tmp_path)
    assert re.search(r"^mean norm of the vectors, as written +5$", shown, re.MULTILINE)
    assert re.search(r"^mean norm at the end +2\.5$", shown, re.MULTILINE)
