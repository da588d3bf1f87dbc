"""The program in docs/dense.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from source import ROOT


def test_the_line_is_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "dense.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert program
    monkeypatch.chdir(tmp_path)
    exec(compile(program[1], "dense.md", "exec"), {})
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d*", capsys.readouterr().out)]
    assert numbers == pytest.approx([1.0, -2.0, 0.5, 3.0], abs=0.05)
