"""Windows of one category: contiguous stretches of its tokens, over one token file or many.

A small corpus has one file a category and split. A corpus that was prepared in shards (`repro.data.shards`) has many:
the manifest lists them with their number of tokens, in an order that is part of the data. Window j of a file starts
at its token j * length; the windows of the second file follow those of the first, and what is left at the end of a
file is too short and unused. Files are opened at their first use: a process reads few of thousands.

Shapes: B windows, S + 1 tokens of a window (inputs are all but the last, targets all but the first).

Does not: check a shard against its index (its size is compared with the manifest), or know what a category weighs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from repro.data.indexed import IndexedTokens
from repro.data.token_files import token_dtype


class Windows:
    """The windows of `length` + 1 tokens that a category has in one split.

    Attributes:
        first_path: its first token file, for messages.
    """

    def __init__(
        self, data_dir: Path, manifest: Mapping[str, Any], category: str, split: str, *, length: int
    ) -> None:
        """
        Raises:
            ValueError: a token file is missing, or has not the size that its index or the manifest says.
        """
        self._length = length
        shards = manifest["categories"][category].get(split, {}).get("shards")
        if shards is None:
            whole = IndexedTokens(data_dir / f"{category}_{split}")
            self._paths = [whole.bin_path]
            self._tokens: list[np.ndarray | None] = [whole.tokens]
            sizes = [len(whole.tokens)]
        else:
            self._dtype = np.dtype(token_dtype(int(manifest["tokenizer"]["vocab_size"]))).newbyteorder("<")
            self._paths = [data_dir / f"{shard['name']}.bin" for shard in shards]
            self._tokens = [None] * len(shards)
            sizes = [int(shard["tokens"]) for shard in shards]
            for path, size in zip(self._paths, sizes, strict=True):
                self._check_size(path, size)
        self.first_path = self._paths[0]
        windows = [max(0, (size - 1) // length) for size in sizes]
        self._ends = np.cumsum(windows, dtype=np.int64)

    def __len__(self) -> int:
        """Number of whole windows."""
        return int(self._ends[-1])

    def take(self, windows: np.ndarray) -> np.ndarray:
        """[B] window numbers -> [B, length + 1] int64 tokens."""
        files = np.searchsorted(self._ends, windows, side="right")
        batch = np.empty((len(windows), self._length + 1), dtype=np.int64)
        for file in np.unique(files):
            rows = files == file
            within = windows[rows] - (self._ends[file - 1] if file else 0)
            places = within[:, None] * self._length + np.arange(self._length + 1)
            batch[rows] = self._open(int(file))[places]
        return batch

    def _open(self, file: int) -> np.ndarray:
        tokens = self._tokens[file]
        if tokens is None:
            tokens = self._tokens[file] = np.memmap(self._paths[file], self._dtype, "r")
        return tokens

    def _check_size(self, path: Path, num_tokens: int) -> None:
        if not path.is_file():
            raise ValueError(f"{path}: token file is missing; prepare the data again")
        size, expected = path.stat().st_size, num_tokens * self._dtype.itemsize
        if size != expected:
            raise ValueError(
                f"{path}: {size} bytes, but the manifest counts {expected}; prepare the data again"
            )
