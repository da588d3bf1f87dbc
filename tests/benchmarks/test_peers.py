"""The comparisons with gensim and Ray in benchmarks/peers: their inputs and figures; no speed is judged here."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from source import ROOT

from glovewire.bench.convnet import Throughput, random_batches
from glovewire.bench.dense import MODES, summary, table
from glovewire.common.storage.dataset import Dataset
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.pipeline import run as preprocess

PEERS = ROOT / "benchmarks" / "peers"


def peer(name: str) -> ModuleType:
    """Import a script of benchmarks/peers."""
    spec = importlib.util.spec_from_file_location(name, PEERS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PEERS / f"{name}.py"), *map(str, words)], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("name", ["gensim", "fasttext"])
def test_a_peer_is_trained_on_the_words_of_the_dataset(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name, reason=f"the package {name} is not installed")
    lines = ["Kings rule; queens rule too.", "Dogs bark -- the king's dogs bark!", "x\xe9 queens bark"] * 40
    text, other = tmp_path / "text.txt", tmp_path / "other.txt"
    text.write_text("\n".join(lines), encoding="utf-8")
    other.write_text("Dogs bark.\n", encoding="utf-8")
    (tmp_path / "pairs.txt").write_text("kings queens 9\ndogs bark 5\nrule bark 1\n")
    preprocess(PreprocessConfig(corpus=(str(text),), out=tmp_path / "data", vocab_size=9))
    dataset, skip_gram = Dataset.open(tmp_path / "data"), peer("skip_gram")
    assert skip_gram.write_tokens(dataset, text, tmp_path / "tokens") == dataset.counts.sum()
    written = (tmp_path / "tokens").read_text(encoding="utf-8").split()
    assert Counter(written) == dict(zip(dataset.words, dataset.counts.tolist(), strict=True))
    how = ("--peer", name, "--dim", 8, "--workers", 1, "--similarity", tmp_path / "pairs.txt", "--", "--epochs", 2)
    done = run("skip_gram", tmp_path / "data", text, *how)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["times_as_fast_as_peer"] > 0
    for side in ("ours", name):
        assert result[side].keys() >= {"seconds", "processor_seconds", "scores"}
        assert result[side]["scores"].keys() == {"pairs"}
    head, *rows = skip_gram.table(result).splitlines()
    assert head.split() == ["seconds", "pairs"]
    assert [row.split()[0] for row in rows] == ["ours", name, "ours"]
    assert len({len(row) for row in (head, *rows[:2])}) == 1
    refused = run("skip_gram", tmp_path / "data", other, *how)
    assert refused.returncode == 2
    assert "is not the text that" in refused.stderr


def test_a_dataset_of_the_first_lines_has_their_tokens_alone(tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "tokens"
    text.write_text("one two\n\nthree two\nfour two\n")
    preprocess(PreprocessConfig(corpus=(str(text),), out=tmp_path / "data", lines=3))
    assert peer("skip_gram").write_tokens(Dataset.open(tmp_path / "data"), text, out) == 4
    assert out.read_text().split() == ["one", "two", "three", "two"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("skip_gram", "nowhere", "text"), "nowhere does not exist"),
        (("unseen", "nowhere", "text"), "nowhere does not exist"),
        (("ray_convnet", "--workers", 0), "workers must be at least 1, not 0"),
    ],
)
def test_a_plain_mistake_is_told_in_a_line(words: tuple[str, ...], complaint: str) -> None:
    refused = run(*words)
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False), refused.stderr
    assert complaint in refused.stderr.splitlines()[-1]


def test_the_ratio_to_ray_leaves_out_the_gradients() -> None:
    """With gradients of 1 ms, of which `sync` takes two: 3 ms against 10 leave 1 against 8."""
    ours, theirs = Throughput(300.0, 3.0), Throughput(100.0, 10.0)
    sides = (("glovewire", ours), ("ray", theirs))
    throughputs = {f"{side} {mode}": [each] for mode in MODES for side, each in sides}
    ray_convnet = peer("ray_convnet")
    found = summary(throughputs, [1.0], workers=2, cores=2)
    found["ratio"] = ray_convnet.ratios(throughputs, [1.0], workers=2)
    times = {
        name: (ratio["updates_per_second"]["median"], ratio["cpu_besides_gradient"]["median"])
        for name, ratio in found["ratio"].items()
    }
    assert times == {"ray sync": (3.0, 8.0), "ray async": (3.0, 4.5)}
    assert table(found).startswith("glovewire sync     300 updates/s (300 to 300), 3.00 ms of processor time each")
    last = "3.0 times ray async in updates, 4.5 times in processor time besides the gradient"
    assert ray_convnet.ratio_lines(found)[-1] == last


def test_images_prepared_one_by_one_equal_those_in_memory() -> None:
    """Both ways give the same tensors; only the work that they take differs."""
    torch = pytest.importorskip("torch")
    every = next(random_batches(3, 20_000))[0]  # drawn from 10,000 images, so it lacks few of those below
    made, labels = next(peer("ray_convnet").loaded_batches(3, 8))
    assert (made.shape, labels.dtype) == ((8, 1, 28, 28), torch.int64)
    found = [(every - image).abs().flatten(1).amax(1).min() < 1e-6 for image in made]
    assert sum(found) >= 3, found
