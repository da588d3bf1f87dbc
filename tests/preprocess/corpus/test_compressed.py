"""Files of several bzip2 or xz streams: all are read, and damage in any of them is an error."""

import bz2
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from glovewire.common.errors import CorpusError
from glovewire.preprocess.corpus.compressed import open_decompressed
from glovewire.preprocess.corpus.splits import SourceFile, open_source, stream_splits

FIRST, REST = b"the cat sat on the mat\n" * 900, b"a dog ran to the old tree\n" * 9000
PACK: dict[str, Callable[[bytes], bytes]] = {".bz2": bz2.compress, ".xz": lzma.compress}


def read(path: Path, piece: int = 1 << 20) -> bytes:
    with open_decompressed(path, path.suffix) as source:
        return b"".join(iter(lambda: source.read(piece), b""))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
@pytest.mark.parametrize("piece", [5, 70_000, 1 << 20])
def test_every_stream_is_read(tmp_path: Path, suffix: str, piece: int) -> None:
    path, pack = tmp_path / f"a.txt{suffix}", PACK[suffix]
    path.write_bytes(pack(FIRST) + pack(b"") + pack(REST) + pack(b"") * 2000)
    assert read(path, piece) == FIRST + REST


def test_zeros_in_fours_are_allowed_between_and_after_streams_of_xz(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    for before, after in ((4, 0), (0, 8), (100_000, 100_000)):
        path.write_bytes(lzma.compress(FIRST) + bytes(before) + lzma.compress(REST) + bytes(after))
        assert read(path) == FIRST + REST
    for before, after in ((3, 0), (0, 6), (70_001, 4)):
        path.write_bytes(lzma.compress(FIRST) + bytes(before) + lzma.compress(REST) + bytes(after))
        with pytest.raises(lzma.LZMAError):
            read(path)


def test_the_old_format_of_lzma_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(REST, lzma.FORMAT_ALONE))
    assert read(path) == REST


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
@pytest.mark.parametrize("bad", ["header", "end", "text after it", "zeros after it", "nothing"])
def test_damage_after_the_first_stream_is_refused(tmp_path: Path, suffix: str, bad: str) -> None:
    first, rest = PACK[suffix](FIRST), PACK[suffix](REST)
    path = tmp_path / f"a.txt{suffix}"
    after = {
        "header": flipped(rest, 1),
        "end": rest[:-20],
        "text after it": rest + b"plain text\n",
        "zeros after it": rest + bytes(3),
        "nothing": rest[:3],
    }[bad]
    path.write_bytes(first + after)
    source = SourceFile(path, path.name, "text", suffix)
    with (
        pytest.raises(CorpusError, match=rf"a\.txt\{suffix} is damaged after line ") as raised,
        open_source(source) as file,
    ):
        list(stream_splits(file, path.name, "text", 1 << 20, None))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
def test_highly_compressed_data_is_not_held_at_once(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"zeros{suffix}"
    path.write_bytes(PACK[suffix](bytes(1 << 26)))
    with open_decompressed(path, suffix) as source:
        assert len(source.read1(1 << 20)) <= 1 << 20  # type: ignore[attr-defined]
    assert read(path) == bytes(1 << 26)
