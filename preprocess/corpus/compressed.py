"""Open compressed files, including bzip2 and xz files of several streams as `pbzip2`, `cat` and Wikipedia dumps make.

Python's own readers stop silently at bytes that do not begin a stream, and so lose the rest of a damaged file; here
such bytes are an error, as they are for `bzip2 -t` and `xz -t`.
"""

import bz2
import gzip
import io
import lzma
from pathlib import Path
from typing import IO, Any, cast

BUFFER_BYTES = 1 << 16
_READ_BYTES = 1 << 15
_XZ_PADDING = 4


def open_decompressed(path: Path, compression: str) -> IO[bytes]:
    """Open `path` and decompress it on reading; `compression` is .gz, .bz2, .xz, .zst, or empty for a plain file.

    Reading raises EOFError, LZMAError, zlib.error or OSError where the file is damaged.
    """
    if compression == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if compression in (".bz2", ".xz"):
        return cast(IO[bytes], io.BufferedReader(_MultiStream(path, compression), BUFFER_BYTES))
    if compression == ".zst":
        import pyarrow as pa

        return cast(IO[bytes], pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
    return path.open("rb")


class _MultiStream(io.RawIOBase):
    """Raw reader of the decompressed content of all streams of a file, end to end."""

    def __init__(self, path: Path, compression: str) -> None:
        self._xz = compression == ".xz"
        self._file = path.open("rb", buffering=0)
        self._pending = b""
        self._decoder: Any = lzma.LZMADecompressor() if self._xz else bz2.BZ2Decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Write decompressed bytes to `buffer` and return their number; 0 at the end of the last stream."""
        with memoryview(buffer).cast("B") as target:
            data = self._decompress(len(target))
            target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _decompress(self, limit: int) -> bytes:
        while not self._decoder.eof or self._begin_next():
            piece = b""
            if self._decoder.needs_input:
                piece, self._pending = self._pending or self._file.read(_READ_BYTES), b""
                if not piece:
                    raise EOFError("it ends in the middle of a stream")
            if data := cast(bytes, self._decoder.decompress(piece, limit)):
                return data
        return b""

    def _begin_next(self) -> bool:
        """Start decoding the next stream and return True, or False if there is none; LZMAError for bad xz padding."""
        rest, zeros = cast(bytes, self._decoder.unused_data), 0
        while rest or (rest := self._file.read(_READ_BYTES)):
            if not self._xz:
                break
            found, rest = len(rest), rest.lstrip(b"\0")
            zeros += found - len(rest)
            if rest:
                break
        if zeros % _XZ_PADDING:
            raise lzma.LZMAError("zeros after a stream must come in multiples of four")
        if not rest:
            return False
        self._pending = rest
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ) if self._xz else bz2.BZ2Decompressor()
        return True
