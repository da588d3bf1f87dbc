"""Parquet files: opened with a clear refusal, and cut into blocks of one row group each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from glovewire.common.errors import CorpusError

from .splits import Block, File

if TYPE_CHECKING:
    import pyarrow.parquet


def open_parquet(path: str, label: str) -> pyarrow.parquet.ParquetFile:
    """A parquet file; CorpusError if it is none."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{label} is not a readable parquet file: {one_line(error)}") from error


def row_groups(file: File, first: int, limit: int | None) -> Iterator[Block]:
    """Blocks of a parquet file: one a row group; at most `limit` rows."""
    with open_parquet(str(file.path), file.label) as parquet:
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            take = rows if limit is None else min(rows, limit)
            if take:
                yield Block(first + group, "parquet", file.label, str(file.path), group, group + 1, items=take)
            limit = None if limit is None else limit - take


def one_line(error: Exception) -> str:
    """Return an error's text on one line of at most 200 characters."""
    return " ".join(str(error).split())[:200]
