"""The own reader of Megatron's token files, on files written by hand from the format's description."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from repro.data.indexed import MAGIC, VERSION, IndexedTokens


def write(prefix: Path, sequences: list[list[int]], *, dtype: str, code: int) -> None:
    """NAME.bin and NAME.idx, a document a sequence."""
    tokens = [np.array(sequence, dtype) for sequence in sequences]
    prefix.with_suffix(".bin").write_bytes(b"".join(part.tobytes() for part in tokens))
    offsets = np.cumsum([0, *(part.nbytes for part in tokens)])[:-1]
    prefix.with_suffix(".idx").write_bytes(
        struct.pack("<9sQBQQ", MAGIC, VERSION, code, len(tokens), len(tokens) + 1)
        + np.array([len(part) for part in tokens], "<i4").tobytes()
        + offsets.astype("<i8").tobytes()
        + np.arange(len(tokens) + 1, dtype="<i8").tobytes()
    )


@pytest.mark.parametrize(("dtype", "code", "largest"), [("<u2", 8, 65_535), ("<i4", 4, 131_071)])
def test_sequences_of_two_and_of_four_bytes_a_token(
    tmp_path: Path, dtype: str, code: int, largest: int
) -> None:
    sequences = [[1, 2, 3], [largest], [4, 5]]
    write(tmp_path / "text", sequences, dtype=dtype, code=code)
    read = IndexedTokens(tmp_path / "text")
    assert [read[number].tolist() for number in range(len(read))] == sequences
    assert read.tokens.tolist() == [1, 2, 3, largest, 4, 5]
