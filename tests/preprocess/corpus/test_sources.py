"""Every kind of corpus, plain and compressed; anything else is refused in one clear line."""

import bz2
import gzip
import hashlib
import json
import lzma
import os
import socket
import time
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glovewire.common.errors import CorpusError, ProcessDied
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.corpus import sources as corpora
from glovewire.preprocess.corpus.readers import read_batches
from glovewire.preprocess.corpus.sources import Corpus, find_corpus
from glovewire.preprocess.corpus.splits import InputSplit

TEXTS = ["First line, plain.", "", "Zweite Zeile: «größer»", "  leading and trailing  ", "last 中文"]
LONGEST = 2 << 20


def corpus_of(*names: str | Path, **options: Any) -> Corpus:
    how = PreprocessConfig(corpus=tuple(map(str, names)), out=Path("unused"), processes=1, memory=272 << 20, **options)
    assert how.longest_line == LONGEST
    return find_corpus(how)


def lines_of(*names: str | Path, lines: int | None = None, column: str = "text", split: str = "train") -> list[str]:
    corpus = corpus_of(*names, lines=lines, text_column=column, split=split)
    pieces = list(corpus.splits())
    assert [piece.ordinal for piece in pieces] == list(range(len(pieces)))
    return [text for piece in pieces for text in split_lines(piece, column)]


def split_lines(piece: InputSplit, column: str) -> Iterator[str]:
    for batch in read_batches(piece, column, LONGEST):
        for start, stop in zip(batch.starts, batch.stops, strict=True):
            yield batch.text[start:stop].decode()


def jsonl(texts: list[str], column: str = "text") -> bytes:
    return b"\n".join(json.dumps({"id": 1, column: text}).encode() for text in texts) + b"\n\n"


def compress(path: Path, data: bytes) -> None:
    if path.suffix == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(data)
        return
    write = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    path.write_bytes(write(data))


def parquet(path: Path, columns: dict[str, Any], rows: int = 2) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=rows)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".bz2", ".zst"])
@pytest.mark.parametrize("split_bytes", [7, 1 << 20])
def test_text_files(tmp_path: Path, suffix: str, split_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.SPLIT_BYTES", split_bytes)
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.READ_BYTES", split_bytes)
    path = tmp_path / f"a.txt{suffix}"
    for data in ("\n".join(TEXTS), "\n".join(TEXTS) + "\n", "\ufeff" + "\n".join(TEXTS)):
        compress(path, data.encode())
        assert lines_of(path) == TEXTS
        for limit in range(1, 7):
            assert lines_of(path, lines=limit) == TEXTS[:limit]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("split_bytes", [50, 1 << 20])
def test_jsonl_files(tmp_path: Path, suffix: str, split_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.SPLIT_BYTES", split_bytes)
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.READ_BYTES", split_bytes)
    path = tmp_path / f"a.jsonl{suffix}"
    compress(path, jsonl([*TEXTS, "inner\nline"], "body"))
    assert lines_of(path, column="body") == [*TEXTS, "inner\nline"]
    assert lines_of(path, column="body", lines=3) == TEXTS[:3]


@pytest.mark.parametrize("split_bytes", [10, 1 << 20])
def test_blank_lines_of_jsonl_count_for_the_line_of_a_fault_and_not_as_texts(
    tmp_path: Path, split_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.SPLIT_BYTES", split_bytes)
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.READ_BYTES", split_bytes)
    path = tmp_path / "blank.jsonl"
    path.write_bytes(b'\n{"text": "a"}\n\n \n{"text": "b"}\n{"body": "c"}\n\n{"text": "d"}\n{"text": "e"}\n')
    assert lines_of(path, lines=2) == ["a", "b"]
    for lines in (3, 4, None):
        with pytest.raises(CorpusError, match=r"blank\.jsonl: line 6 has no text"):
            lines_of(path, lines=lines)
    path.write_bytes(path.read_bytes().replace(b"body", b"text"))
    for lines in range(1, 7):
        assert lines_of(path, lines=lines) == ["a", "b", "c", "d", "e"][:lines]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("split_bytes", [5000, 2 << 20])
@pytest.mark.parametrize("size", [LONGEST + 1, 3 * LONGEST])
def test_a_line_of_jsonl_that_is_too_long_is_named_by_its_number_in_the_file(
    tmp_path: Path, suffix: str, split_bytes: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.SPLIT_BYTES", split_bytes)
    path = tmp_path / f"long.jsonl{suffix}"
    compress(path, b'{"text": "a"}\n\n' * 500 + b'{"text": "' + b"b" * size + b'"}\n{"text": "c"}\n')
    with pytest.raises(CorpusError, match=r"long\.jsonl\S*: line 1001 is longer than 2 MiB.* give a larger --memory"):
        lines_of(path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_key_that_no_line_has_is_an_error_of_line_1_whichever_part_is_read_first(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.SPLIT_BYTES", 50)
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.READ_BYTES", 50)
    path = tmp_path / f"a.jsonl{suffix}"
    compress(path, b"\n".join(json.dumps({"id": n, "body": f"text {n}", "url": "x"}).encode() for n in range(20)))
    expected = r"a\.jsonl\S*: line 1 has no text in 'text' .*--text-column.*it has text in 'body', 'url'$"
    corpus = corpus_of(path)
    with pytest.raises(CorpusError, match=expected):
        list(chain.from_iterable(split_lines(piece, "text") for piece in reversed(list(corpus.splits()))))


def test_damage_of_a_compressed_file_is_told_after_the_last_good_line(tmp_path: Path) -> None:
    lines = b"".join(b"%d %s\n" % (n, hashlib.sha256(b"%d" % n).hexdigest().encode()) for n in range(2000))
    whole = gzip.compress(lines, 1)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(whole[: len(whole) // 2])
    good = zlib.decompressobj(wbits=31).decompress(path.read_bytes()).count(b"\n")
    with pytest.raises(CorpusError, match=r"is damaged after line (\d+): ") as raised:
        lines_of(path)
    told = int(str(raised.value).split("line ")[1].split(":")[0])
    assert good - 600 < told <= good, "what was read in one piece with the damage may be missing"
    assert good > 800


def test_parquet_files(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"id": range(6), "text": [*TEXTS, None]})
    assert lines_of(path) == [*TEXTS, ""]
    assert lines_of(path, lines=3) == TEXTS[:3]
    words = pa.array(TEXTS).dictionary_encode()
    assert lines_of(parquet(tmp_path / "b.parquet", {"text": words})) == TEXTS


def test_a_folder_in_the_layout_of_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "wikitext-2-raw-v1"
    folder.mkdir()
    for n in range(2):
        parquet(folder / f"train-{n:05d}-of-00002.parquet", {"text": [f" = Title {n} = \n", "\n"]})
    parquet(folder / "validation-00000-of-00001.parquet", {"text": ["held out \n"]})
    assert lines_of(tmp_path) == [" = Title 0 = \n", "\n", " = Title 1 = \n", "\n"]
    assert lines_of(tmp_path, split="validation") == ["held out \n"]
    with pytest.raises(CorpusError, match="split 'test'; it has train, validation"):
        lines_of(tmp_path, split="test")


def test_a_folder_of_files_with_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.txt").write_text("two\n")
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "a1.txt").write_text("")
    (tmp_path / ".hidden.txt").write_text("hidden\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0")
    compress(tmp_path / "c.jsonl.gz", jsonl(["three"]))
    assert lines_of(tmp_path) == ["one", "two", "three"]
    assert lines_of(tmp_path / "c.jsonl.gz", tmp_path / "a.txt") == ["three", "one"]
    assert lines_of(tmp_path, lines=2) == ["one", "two"]


def test_pydoc_is_distinct_paragraphs_of_prose(monkeypatch: pytest.MonkeyPatch) -> None:
    from glovewire.preprocess.corpus import pydoc_corpus

    files = sorted(Path(json.__file__).parent.glob("*.py"))
    monkeypatch.setattr(pydoc_corpus, "source_files", lambda: iter(files))
    monkeypatch.setattr(pydoc_corpus, "FILES_PER_TASK", 2)
    found = list(pydoc_corpus.paragraphs(2))
    assert len(found) == len(set(found)) > 500
    assert found == list(pydoc_corpus.paragraphs(1))
    assert any(text.startswith("JSON (JavaScript Object Notation)") for text in found)
    assert not any(">>>" in text or "\n" in text for text in found)


class Deadly:
    """A source file that ends the process that reads it."""

    def read_text(self, encoding: str) -> str:
        os._exit(3)


def test_pydoc_is_handed_on_while_files_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    from glovewire.preprocess.corpus import pydoc_corpus

    monkeypatch.setattr(pydoc_corpus, "source_files", lambda: iter([Path(json.__file__), Deadly()]))
    monkeypatch.setattr(pydoc_corpus, "FILES_PER_TASK", 1)
    found = []
    with pytest.raises(ProcessDied):
        found.extend(iter(pydoc_corpus.paragraphs(1)))
    assert any(text.startswith("JSON (JavaScript Object Notation)") for text in found)


def faulty(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """Return damaged corpora by name, each with the message that it must give."""
    gz = gzip.compress(b"some words here\n" * 5000)
    files: dict[str, tuple[bytes, str]] = {
        "cut.txt.gz": (gz[:-200], "cut.txt.gz is damaged"),
        "flipped.txt.gz": (gz[:100] + bytes([gz[100] ^ 255]) + gz[101:], "flipped.txt.gz is damaged"),
        "no.txt.gz": (b"plain text\n", "no.txt.gz is damaged"),
        "no.txt.xz": (b"plain text\n", "no.txt.xz is damaged"),
        "no.txt.zst": (b"plain text\n", "no.txt.zst is damaged"),
        "twice.txt.xz.gz": (gzip.compress(lzma.compress(b"a\n")), "twice.txt.xz.gz is compressed twice"),
        "no.parquet": (b"plain text\n", "no.parquet is not a readable parquet file"),
        "bad.jsonl": (b'{"text": "a"}\n{"text": \n', "bad.jsonl: line 2 is not JSON"),
        "other.jsonl": (b'{"text": "a"}\n\n{"body": "b"}\n', "other.jsonl: line 3 has no text in 'text'"),
        "number.jsonl": (b'{"text": 3}\n', "number.jsonl: line 1 has no text in 'text'"),
        "half.jsonl": (b'{"text": "\\ud800"}\n', "half a surrogate"),
        "long.txt": (b"a\n" + b"word " * (LONGEST // 4), "long.txt: line 2 is longer than 2 MiB"),
        "long.txt.gz": (gzip.compress(b"a\n" + b"word " * (LONGEST // 4)), "longer than 2 MiB"),
    }
    found = {}
    for name, (data, message) in files.items():
        (tmp_path / name).write_bytes(data)
        found[name] = (tmp_path / name, message)
    columns = parquet(tmp_path / "columns.parquet", {"body": TEXTS, "id": range(5)})
    found["columns.parquet"] = (columns, "no column 'text'; it has body, id")
    found["numbers.parquet"] = (parquet(tmp_path / "numbers.parquet", {"text": [1, 2]}), "holds int64, not text")
    found["missing"] = (tmp_path / "missing.txt", "does not exist")
    (tmp_path / "empty").mkdir()
    found["empty folder"] = (tmp_path / "empty", "holds no .txt, .jsonl or .parquet file")
    return found


NAMES = ["cut.txt.gz", "flipped.txt.gz", "no.txt.gz", "no.txt.xz", "no.txt.zst", "twice.txt.xz.gz", "no.parquet",
         "bad.jsonl", "other.jsonl", "number.jsonl", "half.jsonl", "long.txt", "long.txt.gz", "columns.parquet",
         "numbers.parquet", "missing", "empty folder"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_corpus_is_named_in_one_line(tmp_path: Path, name: str) -> None:
    path, message = faulty(tmp_path)[name]
    with pytest.raises(CorpusError) as raised:
        lines_of(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_name_that_linux_refuses_is_an_error_of_the_corpus() -> None:
    with pytest.raises(CorpusError, match=r"^corpus x{100} cannot be read: File name too long$"):
        lines_of("x" * 300)
    assert corpus_of("hf:" + "x" * 300).description.startswith("hf:x")


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match="the name of a corpus is empty"):
        lines_of("")


def test_a_file_that_disappears_is_an_error_of_the_corpus(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    corpus = corpus_of(path)
    path.unlink()
    with pytest.raises(CorpusError, match=r"a\.txt cannot be read: No such file"):
        corpus.fingerprint()
    with pytest.raises(CorpusError, match=r"a\.txt cannot be read: No such file"):
        list(corpus.splits())


def test_without_a_network_a_name_of_the_hub_is_one_line_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(CorpusError, match=r"hf:Salesforce/wikitext:wikitext-2-raw-v1 needs 127\.0\.0\.1") as raised:
            lines_of("wikitext-2-raw-v1")
        assert time.monotonic() - began < 60  # usually under 2 s; the hub's own retries take minutes
    assert "pydoc" in str(raised.value)


def test_a_column_of_the_hub_that_holds_no_text_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    path = parquet(tmp_path / "train.parquet", {"text": ["a", None], "label": [0, 1], "words": [["a"], ["b"]]})
    rows = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
    monkeypatch.setattr(corpora, "require_hub", lambda _: None)
    monkeypatch.setattr(corpora, "load_from_hub", lambda *_, **__: rows)
    assert lines_of("hf:Some/name") == ["a", ""]
    for column, kind in (("label", "int"), ("words", "list")):
        with pytest.raises(CorpusError, match=rf"hf:Some/name: column '{column}' holds {kind}, not text \(--text-col"):
            lines_of("hf:Some/name", column=column)


def test_a_name_of_the_hub_is_streamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    path = parquet(tmp_path / "train.parquet", {"text": TEXTS * 3})
    asked: list[Any] = []

    def load(name: str, *config: str, split: str, streaming: bool) -> Any:
        asked.append((name, config, split, streaming))
        return datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)

    monkeypatch.setattr(corpora, "require_hub", lambda _: None)
    monkeypatch.setattr(corpora, "load_from_hub", load)
    assert lines_of("hf:Some/name:config", lines=7) == (TEXTS * 3)[:7]
    assert asked == [("Some/name", ("config",), "train", True)]
    with pytest.raises(CorpusError, match="has no column 'body'; it has text"):
        lines_of("hf:Some/name", column="body")
