"""Vectors of any origin are read by their content, to the last bit of what gensim reads and writes."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import struct
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from gensim.models import KeyedVectors as Peer
from handmade import random_dataset

import glovewire
from glovewire.common.errors import ArtifactError, MalformedFile, MissingExtra, OutputError, UsageError
from glovewire.vectors import cli, word2vec_files

WORDS = ["the", "café", "日本語", "don't", "x", "12", "<unk>"]
FORMS = ["glove", "word2vec", "word2vec-bin", "npz", "safetensors", "run"]


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    draw = np.random.default_rng(3)
    return (draw.normal(size=(len(WORDS), 9)) * 10.0 ** draw.integers(-12, 12, size=(len(WORDS), 9))).astype(np.float32)


@pytest.fixture(scope="module")
def wv(table: np.ndarray) -> glovewire.KeyedVectors:
    return glovewire.KeyedVectors(WORDS, table)


def equal(found: glovewire.KeyedVectors, table: np.ndarray) -> None:
    assert found.index_to_key == WORDS
    np.testing.assert_array_equal(found.vectors, table)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_what_gensim_writes_is_read(table: np.ndarray, tmp_path: Path, binary: bool, header: bool, suffix: str) -> None:
    if binary and not header:
        pytest.skip("gensim cannot read such a file either")
    peer = Peer(9)
    peer.add_vectors(WORDS, table)
    path = tmp_path / f"file{suffix}"
    peer.save_word2vec_format(str(path), binary=binary, write_header=header)
    equal(glovewire.load(path), table)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
@pytest.mark.parametrize(
    ("form", "options"), [("glove", {"no_header": True}), ("word2vec", {}), ("word2vec-bin", {"binary": True})]
)
def test_gensim_reads_what_is_written(
    wv: glovewire.KeyedVectors, table: np.ndarray, tmp_path: Path, form: str, options: dict[str, bool], suffix: str
) -> None:
    path = wv.save(tmp_path / f"file{suffix}", form)
    peer = Peer.load_word2vec_format(str(path), **options)
    assert peer.index_to_key == WORDS
    np.testing.assert_array_equal(peer.vectors, table)


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("form", FORMS)
def test_every_format_comes_back(
    wv: glovewire.KeyedVectors, table: np.ndarray, tmp_path: Path, form: str, suffix: str
) -> None:
    if form == "safetensors":
        pytest.importorskip("safetensors")
    path = tmp_path / f"file{suffix}"
    if form == "run" and suffix:
        with pytest.raises(UsageError, match="run is a folder"):
            wv.save(path, form)
        return
    wv.save(path, form)
    equal(glovewire.load(path), table)
    with pytest.raises(OutputError, match="exists already"):
        wv.save(path, form)
    other = wv.save(tmp_path / f"again{suffix}", form)
    if other.is_file():
        assert other.read_bytes() == path.read_bytes()


def test_a_name_gives_the_format(wv: glovewire.KeyedVectors, table: np.ndarray, tmp_path: Path) -> None:
    equal(glovewire.load(wv.save(tmp_path / "v.npz")), table)
    assert (wv.save(tmp_path / "folder") / "vectors.npy").exists()
    for path, form in (("v.txt", None), ("v.txt.gz", None), ("v", "glow")):
        with pytest.raises(UsageError, match=r"one of glove, word2vec"):
            wv.save(tmp_path / path, form)


def test_files_longer_than_a_chunk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words, table = [f"word{n}" for n in range(500)], np.random.default_rng(0).normal(size=(500, 30)).astype(np.float32)
    for chunk in (700, 5000):
        monkeypatch.setattr(word2vec_files, "_CHUNK_BYTES", chunk)
        for form in ("glove", "word2vec", "word2vec-bin"):
            path = glovewire.KeyedVectors(words, table).save(tmp_path / f"{form}{chunk}", form)
            found = glovewire.load(path)
            assert found.index_to_key == words
            np.testing.assert_array_equal(found.vectors, table)


@pytest.mark.parametrize(
    "text",
    [
        "a 1 2\nb 3 4\n",
        "a 1 2\nb 3 4",
        "a 1 2 \r\nb 3 4\r\n",
        "a 1 2\nb 3 4\n\n",
        "a 1 2\nb 3 4\n\n \r\n\n",
        "2 2\na 1 2\nb 3 4\n\n",
        "a\t1\t2\nb\t3\t4\n",
        "2 2\na 1 2\nb 3 4\n",
        "a  1 2\nb 3  4\n",
        "a 1 2\nb 3 4\na 5 6\n",
        "3 2\na 1 2\nb 3 4\nb 5 6\n",
    ],
)
def test_spellings_of_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_bytes(text.encode())
    found = glovewire.load(tmp_path / "file")
    assert found.index_to_key == ["a", "b"]
    assert found.vectors.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("chunk", [1, 2, 5, 9])
def test_blank_lines_at_the_end_alone_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chunk: int) -> None:
    monkeypatch.setattr(word2vec_files, "_CHUNK_BYTES", chunk)
    (tmp_path / "file").write_text("a 1 2\nb 3 4\n\n\n")
    assert glovewire.load(tmp_path / "file").index_to_key == ["a", "b"]
    (tmp_path / "file").write_text("a 1 2\n\n\nb 3 4\n")
    with pytest.raises(MalformedFile, match=r"line 2: expected"):
        glovewire.load(tmp_path / "file")


def test_a_word_with_blanks_as_in_stanfords_largest_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a 1 2\n. . . 3 4\nat name@domain.com 5 6\n")
    assert glovewire.load(tmp_path / "file").index_to_key == ["a", ". . .", "at name@domain.com"]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # gensim leaves it open where no header is
def test_numbers_are_rounded_as_by_gensim(tmp_path: Path) -> None:
    numbers = [f"{value:.25g}" for value in np.random.default_rng(0).normal(size=400)]
    (tmp_path / "file").write_text("".join(f"{n} {number}\n" for n, number in enumerate(numbers, 1000)))
    peer = Peer.load_word2vec_format(str(tmp_path / "file"), no_header=True)
    np.testing.assert_array_equal(glovewire.load(tmp_path / "file").vectors, peer.vectors)


def test_a_zip_archive_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "glove.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("glove.2d.txt", "a 1 2\nb 3 4\n")
    assert glovewire.load(path).index_to_key == ["a", "b"]
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("glove.3d.txt", "a 1 2 3\n")
    with pytest.raises(MalformedFile, match=r"2 files \(glove.2d.txt, glove.3d.txt\): unpack it"):
        glovewire.load(path)


def _zip(*, flags: int = 0, compression: int = 0) -> bytes:
    """Return a zip archive of one file, with some flags and the number of a compression in its headers."""
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.txt", "a 1 2\n")
    packed = bytearray(stream.getvalue())
    for at in (6, packed.index(b"PK\x01\x02") + 8):
        packed[at : at + 4] = struct.pack("<HH", flags, compression)
    return bytes(packed)


def _safetensors(kind: str, vocabulary: str) -> bytes:
    """Return a safetensors file of one vector of two dimensions that are zero."""
    size = 8 if kind == "F32" else 4
    about = {
        "__metadata__": {"vocabulary": vocabulary},
        "vectors": {"dtype": kind, "shape": [1, 2], "data_offsets": [0, size]},
    }
    header = json.dumps(about).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


def _damaged() -> dict[str, tuple[bytes, str]]:
    text = b"".join(b"word%d 1 2 3\n" % number for number in range(2000))
    binary = b"3 4\n" + b"".join(b"w%d " % n + np.ones(4, "<f4").tobytes() for n in range(3))
    zst = pa.compress(text, "zstd", asbytes=True)
    return {
        "gz": (gzip.compress(text)[:-40], "is damaged"),
        "bz2": (bz2.compress(text)[:-40], "is damaged"),
        "xz": (lzma.compress(text)[:-40], "is damaged"),
        "zst": (zst[:-20], "damaged|ends"),
        "npz": (b"PK\x03\x04 and no archive", "is damaged"),
        "pickle": (pickle.dumps({"a": 1}), "a Python pickle.*save_word2vec_format"),
        "npy": (b"\x93NUMPY\x01\x00", "an array without words"),
        "binary cut off": (binary[:-5], "ends after 2 of 3 words"),
        "binary with NaN": (binary[:-4] + np.array(np.nan, "<f4").tobytes(), "NaN or infinity"),
        "binary of no dimension": (b"3 0\n\0\0\0", "0 dimensions"),
        "text cut off": (b"3 2\na 1 2\nb 3 4\n", "2 words of 2 dimensions, not 3 of 2 as its first line says"),
        "text that is too long": (b"1 2\na 1 2\nb 3 4\n", "2 words of 2 dimensions, not 1 of 2"),
        "text of other dimensions": (b"2 300\na 1 2\nb 3 4\n", "2 words of 2 dimensions, not 2 of 300"),
        "other columns": (b"a 1 2\nb 1 2 3\n"[:0] + b"a 1 2\nb 1\n", "line 2: expected a word and 2 numbers"),
        "zip with a password": (_zip(flags=1), "encrypted.*unpack it with another program"),
        "zip with deflate64": (_zip(compression=9), "compression.*unpack it with another program"),
        "safetensors of bfloat16": (_safetensors("BF16", '["a"]'), "holds BF16.*convert.*float32|needs"),
        "safetensors that are nested": (_safetensors("F32", "[" * 200_000), "damaged|needs"),
        "safetensors": ((20).to_bytes(8, "little") + b'{"a": 1}            ', "damaged|holds|needs"),
    }


@pytest.mark.parametrize("what", _damaged())
def test_damage_is_one_error(tmp_path: Path, what: str) -> None:
    data, says = _damaged()[what]
    (tmp_path / "file").write_bytes(data)
    with pytest.raises((MalformedFile, MissingExtra), match=says):
        glovewire.load(tmp_path / "file")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        glovewire.load(tmp_path / "nothing")
    with pytest.raises(ArtifactError, match=r"has no manifest.json"):
        glovewire.load(tmp_path)


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for number, arrays in enumerate(
        (
            {"vectors": np.eye(2)},
            {"vectors": np.eye(2), "vocabulary": np.array(["a"])},
            {"vectors": np.eye(2), "vocabulary": np.array(["a", "a"])},
            {"vectors": np.array([[np.inf]]), "vocabulary": np.array(["a"])},
            {"vectors": np.array([[1e300]]), "vocabulary": np.array(["a"])},
            {"vectors": np.eye(2, dtype=np.int64), "vocabulary": np.array(["a", "b"])},
        )
    ):
        np.savez(tmp_path / f"{number}.npz", **arrays)
        with pytest.raises(MalformedFile):
            glovewire.load(tmp_path / f"{number}.npz")
    np.savez(tmp_path / "objects.npz", vectors=np.eye(2), vocabulary=np.array(["a", "b"], dtype=object))
    with pytest.raises(MalformedFile, match=r"Python objects, .* np.array\(words, dtype=str\)"):
        glovewire.load(tmp_path / "objects.npz")
    np.savez(tmp_path / "half.npz", embeddings=np.eye(2, dtype=np.float16), words=np.array([b"a", "é".encode()]))
    assert glovewire.load(tmp_path / "half.npz").index_to_key == ["a", "é"]


def test_a_word_that_no_format_can_hold_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", vectors=np.eye(2), vocabulary=np.array(["a", "\ud800"]))
    with pytest.raises(MalformedFile, match=r"word '\\ud800', which UTF-8 cannot encode"):
        glovewire.load(tmp_path / "v.npz")


def test_commands_take_every_format(wv: glovewire.KeyedVectors, tmp_path: Path) -> None:
    pairs = tmp_path / "combined.csv"
    pairs.write_text("Word 1,Word 2,Human (mean)\nthe,x,7.5\ncafé,x,2\nthe,café,3\n", encoding="utf-8")
    for form in ("glove", "word2vec-bin", "npz"):
        path = wv.save(tmp_path / f"{form}.gz", form)
        for command, words in (
            (cli.neighbours, ["the"]),
            (cli.evaluate, ["--similarity", str(pairs)]),
            (cli.info, []),
            (cli.export, ["--format", "glove", "--out", str(tmp_path / f"{form}.txt")]),
        ):
            outcome = CliRunner().invoke(command, [str(path), *words])
            assert outcome.exit_code == 0, outcome.output
    assert (tmp_path / "glove.txt").read_bytes() == (tmp_path / "npz.txt").read_bytes()


def test_export_writes_to_standard_output(wv: glovewire.KeyedVectors, tmp_path: Path) -> None:
    path = wv.save(tmp_path / "v.npz")
    for form in ("glove", "word2vec-bin", "npz"):
        written = wv.save(tmp_path / form, form).read_bytes()
        outcome = CliRunner().invoke(cli.export, [str(path), "--format", form, "--out", "-"])
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert outcome.stdout_bytes == written
    outcome = CliRunner().invoke(cli.export, [str(path), "--format", "projector", "--out", "-"])
    assert outcome.exit_code == 2
    random_dataset(tmp_path / "data")
    outcome = CliRunner().invoke(cli.export, [str(tmp_path / "data"), "--format", "npz", "--out", "-"])
    assert outcome.exit_code == 2
