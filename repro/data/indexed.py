"""Reads Megatron token files (.bin/.idx) with numpy alone.

Training must run where megatron-core is not installed (a laptop, a bare GPU machine), so this is an own small
reader of the format that megatron-core's `IndexedDatasetBuilder` writes (`repro.data.token_files` does the
writing); tests hold both readers equal.

Format, all little-endian. `NAME.bin`: the tokens of all sequences, back to back, nothing else. `NAME.idx`:

    9 bytes   magic b"MMIDIDX\\x00\\x00"
    uint64    version, 1
    uint8     dtype code of a token: 4 = int32, 8 = uint16 (two bytes up to a vocabulary of 65,536)
    uint64    number of sequences S
    uint64    number of document boundaries D + 1
    int32[S]  tokens in each sequence
    int64[S]  byte offset of each sequence in NAME.bin
    int64[D+1] first sequence of each document, closed by S

Does not: write, shuffle, cut into samples, or read the multimodal extension (a mode byte a sequence).
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPE_CODES: dict[int, type[np.generic]] = {4: np.int32, 8: np.uint16}
_HEADER = struct.Struct("<9sQBQQ")


class IndexedTokens:
    """The tokens of one .bin/.idx pair, memory-mapped.

    Attributes:
        tokens: [num_tokens] read-only memmap, uint16 or int32: every document in file order, one stream.
        sequence_lengths: [S] int32, tokens in each sequence (here one sequence is one document, its end-of-document
            token included).
        document_indices: [D + 1] int64, first sequence of each document.
    """

    def __init__(self, prefix: str | Path) -> None:
        """Open `prefix`.bin and `prefix`.idx.

        Raises:
            ValueError: a file is missing, is no Megatron token file, or is shorter or longer than its index says;
                the message names the file.
        """
        self.bin_path = Path(f"{prefix}.bin")
        self.idx_path = Path(f"{prefix}.idx")
        for path in (self.bin_path, self.idx_path):
            if not path.is_file():
                raise ValueError(f"{path}: token file is missing; prepare the data again")
        index = self.idx_path.read_bytes()
        if len(index) < _HEADER.size or not index.startswith(MAGIC):
            raise ValueError(f"{self.idx_path}: not a Megatron token index (its first bytes differ)")
        _, version, code, num_sequences, num_boundaries = _HEADER.unpack_from(index)
        if version != VERSION or code not in DTYPE_CODES:
            raise ValueError(
                f"{self.idx_path}: version {version}, dtype code {code}; this reader knows 1 and 4 or 8"
            )
        expected = _HEADER.size + 12 * num_sequences + 8 * num_boundaries
        if len(index) != expected:
            raise ValueError(f"{self.idx_path}: {len(index)} bytes, but its header promises {expected}")
        at = _HEADER.size
        self.sequence_lengths = np.frombuffer(index, "<i4", num_sequences, at)
        self.sequence_pointers = np.frombuffer(index, "<i8", num_sequences, at + 4 * num_sequences)
        self.document_indices = np.frombuffer(index, "<i8", num_boundaries, at + 12 * num_sequences)
        dtype = np.dtype(DTYPE_CODES[code]).newbyteorder("<")
        num_tokens = int(self.sequence_lengths.sum(dtype=np.int64))
        size = self.bin_path.stat().st_size
        if size != num_tokens * dtype.itemsize:
            raise ValueError(
                f"{self.bin_path}: {size} bytes, but its index counts {num_tokens * dtype.itemsize}; "
                "truncated or altered"
            )
        # numpy refuses to map an empty file; an empty category is legal to open and has no sample.
        self.tokens = np.memmap(self.bin_path, dtype, "r") if num_tokens else np.empty(0, dtype)

    def __len__(self) -> int:
        """Number of sequences, as megatron-core counts."""
        return len(self.sequence_lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        """[length] tokens of sequence `index`, in the file's dtype (a view)."""
        start = int(self.sequence_pointers[index]) // self.tokens.dtype.itemsize
        return self.tokens[start : start + int(self.sequence_lengths[index])]
