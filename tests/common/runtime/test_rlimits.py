"""Limits of the process under which nothing works: one line that names the remedy, at once."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from glovewire.common.errors import SystemLimit
from glovewire.common.runtime import rlimits

TREE = Path(__file__).parents[3]


@pytest.mark.parametrize(("limit", "remedy"), [("-n 16", "`ulimit -n 64`"), ("-v 400000", "`ulimit -v 1048576`")])
def test_too_few_files_or_too_little_memory_is_one_line(tmp_path: Path, limit: str, remedy: str) -> None:
    (tmp_path / "text.txt").write_text("a b a b\n")
    command = [
        sys.executable,
        "-m",
        "glovewire",
        "preprocess",
        str(tmp_path / "text.txt"),
        "--out",
        str(tmp_path / "d"),
    ]
    limited = ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash", *command]
    ended = subprocess.run(limited, capture_output=True, text=True, cwd=TREE, timeout=120, check=False)
    assert ended.returncode == 1, ended
    assert ended.stderr.startswith("error: this process may ")
    assert ended.stderr.count("\n") == 1
    assert remedy in ended.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("allowed", [resource.RLIM_INFINITY, 1 << 30, (1 << 30) - 1])
def test_a_limit_is_refused_only_where_it_is_too_low(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    rlimits.require_files()
    if allowed in (resource.RLIM_INFINITY, rlimits.MIN_ADDRESS_SPACE):
        rlimits.require_address_space()
    else:
        with pytest.raises(SystemLimit, match="only 1,073,741,823 bytes"):
            rlimits.require_address_space()
