"""The notebooks of the examples run from top to bottom, and are stored with their outputs and figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from source import ROOT

FOLDER = ROOT / "examples" / "notebooks"
NEEDS = {"word_vectors": ("gensim",), "parameter_server": ("torch",)}
SHORTER = {
    "word_vectors": {"epochs=16": "epochs=2", '*.py\\"))': '*.py\\"))[::6]'},
    "parameter_server": {"BATCHES = 4, 2000": "BATCHES = 4, 200"},
}
"""What is put in place of what: training until something is learned would take most of the time."""
RUN = """
import json, sys
import nbclient, nbformat
book = nbformat.reads(sys.stdin.read(), 4)
nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute(cwd=sys.argv[1])
print(json.dumps(book.cells))
"""


def code_cells(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [cell for cell in cells if cell["cell_type"] == "code"]


def figures(cells: list[dict[str, Any]]) -> int:
    return sum("image/png" in output.get("data", {}) for cell in code_cells(cells) for output in cell["outputs"])


@pytest.mark.parametrize("name", NEEDS)
def test_a_notebook_runs_and_its_stored_outputs_are_whole(name: str, tmp_path: Path) -> None:
    for module in ("nbclient", "ipykernel", *NEEDS[name]):
        pytest.importorskip(module)
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    shorter = text
    for long, short in SHORTER[name].items():
        assert shorter.count(long) == 1
        shorter = shorter.replace(long, short)
    words = [sys.executable, "-c", RUN, str(tmp_path)]
    done = subprocess.run(words, input=shorter, capture_output=True, text=True, timeout=390, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    cells = json.loads(done.stdout)
    stored = json.loads(text)["cells"]
    assert figures(cells) == figures(stored) == 2
    shown = [len(cell["outputs"]) > 0 for cell in code_cells(stored)]
    assert shown == [len(cell["outputs"]) > 0 for cell in code_cells(cells)]
    assert list(tmp_path.iterdir()) == []


def test_every_notebook_is_tested_and_stored_small() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NEEDS)
    for path in FOLDER.glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not [cell for cell in cells if cell["cell_type"] == "markdown" and "\\n" in "".join(cell["source"])]
        text = path.read_text(encoding="utf-8")
        assert len(text) < 1 << 20
        assert "/home/" not in text
        assert '"output_type": "error"' not in text
