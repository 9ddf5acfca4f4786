"""Windows of token files: how many there are, and which tokens each holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from repro.data.windows import Windows

LENGTH = 4


def windows_of(folder: Path, *sizes: int) -> Windows:
    """Shards of so many tokens, counted on from shard to shard."""
    shards, start = [], 0
    for number, size in enumerate(sizes):
        np.arange(start, start + size, dtype="<u2").tofile(folder / f"{number}.bin")
        shards.append({"name": str(number), "tokens": size})
        start += size
    manifest = {"categories": {"crawl": {"train": {"shards": shards}}}, "tokenizer": {"vocab_size": 1000}}
    return Windows(folder, manifest, "crawl", "train", length=LENGTH)


@pytest.mark.parametrize(("size", "count"), [(4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3)])
def test_a_window_needs_one_token_more_than_its_length(tmp_path: Path, size: int, count: int) -> None:
    windows = windows_of(tmp_path, size)
    assert len(windows) == count
    for number in range(count):
        expected = list(range(LENGTH * number, LENGTH * number + LENGTH + 1))
        assert windows.take(np.array([number])).tolist() == [expected]


def test_windows_of_the_next_file_follow_and_what_is_left_of_one_is_unused(tmp_path: Path) -> None:
    windows = windows_of(tmp_path, 11, 3, 9)
    assert len(windows) == 4
    assert windows.take(np.array([3, 0, 2]))[:, 0].tolist() == [18, 0, 14]
