"""Texts of one data file of a published corpus: parquet or JSON lines, packed or not, a piece at a time.

    *.parquet                                   row groups, of which only the wanted column is read
    *.jsonl *.json *.jsonl.gz *.json.gz *.zst   one JSON object a line, unpacked as it is read

pyarrow does the reading and unpacking; memory is one batch of rows, whatever the file's size.

Does not: clean, filter or deduplicate; the corpora that are read here were published clean.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

#: Rows of a parquet file that are in memory at a time.
ROWS = 1024
_PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_LINES = (".jsonl", ".json", ".ndjson")


def texts_of(path: Path, column: str) -> Iterator[str]:
    """The text of every row, in the file's order; rows without text (null or blank) are left out.

    Args:
        path: the file; its name tells the format.
        column: column (parquet) or key (JSON lines) that holds a document's text.

    Raises:
        ValueError: unknown format, damaged file, no such column or key, a value that is no text, or no row at all;
            names the file (and line).
    """
    packed = _PACKED.get(path.suffix.lower())
    kind = Path(path.stem).suffix.lower() if packed else path.suffix.lower()
    if kind == ".parquet" and not packed:
        rows = _parquet(path, column)
    elif kind in _LINES:
        rows = _json_lines(path, column, packed)
    else:
        known = f".parquet, {', '.join(_LINES)}, the latter also with {', '.join(_PACKED)}"
        raise ValueError(f"{path}: unknown format; read are {known}")
    empty = True
    for text in rows:
        empty = False
        if text and not text.isspace():
            yield text
    if empty:
        raise ValueError(f"{path}: holds no row")


def _parquet(path: Path, column: str) -> Iterator[str | None]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    damaged = (pa.ArrowException, OSError, UnicodeDecodeError)
    try:
        file = parquet.ParquetFile(path)
    except damaged as error:
        raise ValueError(f"{path}: truncated or no parquet file ({error})") from error
    with file:
        names = file.schema_arrow.names
        if column not in names:
            raise ValueError(f"{path}: has no column {column!r}; it has {', '.join(names)}")
        kind = file.schema_arrow.field(column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ValueError(f"{path}: column {column!r} holds {kind}, not text")
        try:
            for batch in file.iter_batches(batch_size=ROWS, columns=[column]):
                yield from batch.column(0).to_pylist()
        except damaged as error:
            raise ValueError(f"{path}: damaged after its first rows ({error})") from error


def _json_lines(path: Path, key: str, packed: str | None) -> Iterator[str | None]:
    import pyarrow as pa

    number = 0
    try:
        with (
            pa.input_stream(str(path), compression=packed) as stream,
            io.BufferedReader(stream, 1 << 20) as lines,
        ):
            for line in lines:
                number += 1
                row = json.loads(line)
                text = row[key]
                if text is not None and not isinstance(text, str):
                    raise TypeError(f"{key} is {type(text).__name__}, not text")
                yield text
    except KeyError:
        raise ValueError(f"{path}, line {number}: has no key {key!r}; it has {', '.join(row)}") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}, line {number}: not a JSON object with a text ({error})") from error
    except OSError as error:
        raise ValueError(f"{path}: truncated or altered after line {number} ({error})") from error
