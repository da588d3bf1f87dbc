"""Preprocessing refuses bad input in one clear line, before or during the run, and leaves nothing behind."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glovewire.common.errors import CorpusError, OutputError, UsageError
from glovewire.common.option import parse_size
from glovewire.preprocess.cli import preprocess
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.parallel import disk_space
from glovewire.preprocess.pipeline import run

MEMORY = 1 << 30


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat\n" * 9, encoding="utf-8")
    return path


def config(corpus: Path, out: Path) -> PreprocessConfig:
    return PreprocessConfig(corpus=(str(corpus),), out=out, processes=2, memory=MEMORY)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\n\n \n", "is empty"),
        (b"good line\nbad \xff line\n", "line 2 is not UTF-8 text"),
        (b"one\ntwo\nth\0ree\n", "line 3 holds a NUL byte"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not"),
        (b"one\ntwo\nthree\n", "no two words"),
        (b"word " * (6 << 20), "is longer than"),
    ],
)
def test_input_that_is_not_text_leaves_nothing(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    with pytest.raises(CorpusError, match=message) as raised:
        run(config(path, tmp_path / "out"))
    assert "\n" not in str(raised.value)
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]


def test_an_output_that_exists_or_cannot_be_made(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        run(config(corpus, tmp_path / "taken"))
    with pytest.raises(OutputError, match="is not a folder"):
        run(config(corpus, corpus / "inside"))
    assert (tmp_path / "taken" / "file").read_text() == "mine"


def test_too_small_a_disk_is_refused_before_work(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OutputError, match=r"about [0-9.]+ MiB of disk in .*, which has 0\.0 MiB free"):
        run(config(corpus, tmp_path / "out"))
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"window": 16, "vocab_size": 0},
            "vocab-size must be between 1 and 4,000,000, not 0; window must be between 1 and 15, not 16",
        ),
        ({"memory": 1 << 20}, "--memory must be at least"),
        ({"partitions": 0}, "partitions must be between 1 and 4,096"),
        ({"corpus": ()}, "name a CORPUS"),
        ({"tokenizer": "regex:(a"}, r"--tokenizer regex: '\(a' is not a regular expression: missing \)"),
        pytest.param(
            {"tokenizer": "bpe:none.json"},
            r"none.json is not a file of the tokenizers library",
            marks=pytest.mark.skipif(find_spec("tokenizers") is None, reason="needs the extra 'bpe'"),
        ),
        ({"tokenizer": "words"}, "must be nltk, whitespace, regex:PATTERN or bpe:FILE"),
        ({"sentences": "on"}, "sentences must be one of punkt, off"),
        ({"corpus": ("-",), "resume": True}, "--resume cannot read standard input again"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PreprocessConfig(**{"corpus": ("pydoc",), "out": Path("out"), **options})


def test_counts_of_stanford_take_no_options_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--from-stanford", "cooc.bin", "vocab.txt", "--out", str(tmp_path / "out"), "--left-only", "--tile", "16"]
    words += ["--partitions", "2", "--seed", "1", "--memory", "1GB", "--processes", "2"]
    found = CliRunner().invoke(preprocess, words)
    assert (found.exit_code, "cooc.bin cannot be read" in found.stderr) == (1, True), found.output
    monkeypatch.setenv("GLOVEWIRE_PREPROCESS_PHRASES", "1")
    refused = CliRunner().invoke(preprocess, [*words, "--window", "4", "--keep-case"])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.output
    assert "--from-stanford takes no --window, --lowercase, --phrases: " in refused.stderr
    assert not list(tmp_path.iterdir())


def test_amounts_of_memory() -> None:
    assert [parse_size(text) for text in ("1GB", "512m", "1.5g", "4096", "2KiB")] == [
        1 << 30,
        512 << 20,
        3 << 29,
        4096,
        2048,
    ]
    for text in ("much", "9" * 400, "9" * 5000):
        result = CliRunner().invoke(preprocess, ["pydoc", "--out", "x", "--memory", text])
        assert result.exit_code == 2
        assert f"{text!r} is not a number of bytes" in result.output


@pytest.mark.parametrize("words", [["", "--out", "OUT"], ["CORPUS", "", "--out", "OUT"], ["CORPUS", "--out", ""]])
def test_an_empty_path_is_not_the_current_folder(
    tmp_path: Path, corpus: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = {"CORPUS": str(corpus), "OUT": str(tmp_path / "out")}
    refused = CliRunner().invoke(preprocess, [named.get(word, word) for word in words])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.output
    assert "an empty path" in refused.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]


def test_an_empty_path_in_a_file_is_refused_too(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "it.toml").write_text('[preprocess]\nout = ""\n')
    refused = CliRunner().invoke(preprocess, [str(corpus), "--config", str(tmp_path / "it.toml")])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.output
    assert "an empty path" in refused.stderr
