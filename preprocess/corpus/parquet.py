"""Read Parquet files: one input split per row group, and the texts of a split's column."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet

from glovewire.common.errors import CorpusError

from .splits import InputSplit, SourceFile, one_line

_ROWS_PER_READ = 1024


def row_group_splits(file: SourceFile, limit: int | None) -> Iterator[InputSplit]:
    """Yield one split per non-empty row group, with at most `limit` rows in total (None: all)."""
    with _open(str(file.path), file.label) as parquet:
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if limit is not None:
                rows = min(rows, limit)
                limit -= rows
            if rows:
                yield InputSplit("parquet", file.label, str(file.path), group, group + 1, items=rows)


def column_texts(split: InputSplit, column: str) -> Iterator[str]:
    """Yield the texts in a column of a split; CorpusError if the column is missing, not text or damaged."""
    with _open(split.path, split.label) as parquet:
        names = parquet.schema_arrow.names
        if column not in names:
            raise CorpusError(f"{split.label} has no column {column!r}; it has {', '.join(names)} (--text-column)")
        left = split.items
        try:
            groups = range(split.start, split.stop)
            for rows in parquet.iter_batches(_ROWS_PER_READ, row_groups=groups, columns=[column]):
                texts = _strings(rows.column(0), split.label, column)[:left]
                left -= len(texts)
                yield from texts
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{split.label} is damaged: {one_line(error)}") from error


def _open(path: str, label: str) -> pyarrow.parquet.ParquetFile:
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{label} is not a readable parquet file: {one_line(error)}") from error


def _strings(values: pa.Array, label: str, column: str) -> list[str]:
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise CorpusError(f"{label}: column {column!r} holds {kind}, not text (--text-column)")
    try:
        return ["" if text is None else text for text in values.to_pylist()]
    except UnicodeDecodeError as error:
        raise CorpusError(f"{label}: column {column!r} is not UTF-8 text: convert or remove it") from error
