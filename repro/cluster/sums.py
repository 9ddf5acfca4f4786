"""Checksums of megatron-core's checkpoints: torch_dist reads files without any, and a flipped bit would be a weight.

Each process reads back what it wrote (0.5 GB for the 12B model on 368 GPUs) and leaves `sums.<rank>.json` beside the
checkpoint's mark; the process that writes the mark puts them all into it. Before a checkpoint is loaded each process
reads an equal share of its files; an export reads all of them, in threads. A checkpoint without checksums (an older
one) is not checked. Not here: sizes, and which checkpoint is taken (repro.cluster.state).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from repro.data.manifest import sha256_of
from repro.portable.metrics import write_whole

_FILE = re.compile(r"__(\d+)_\d+\.distcp")  # torch_dist's name: the process that wrote it, and a number


def write_sums(tensors: Path, marks: Path, rank: int) -> None:
    """Notes in `marks` what process `rank` wrote into `tensors`; the first one notes what has no number too."""
    writers = {path: _FILE.fullmatch(path.name) for path in sorted(tensors.iterdir()) if path.is_file()}
    own = [path for path, found in writers.items() if int(found[1] if found else 0) == rank]
    marks.mkdir(parents=True, exist_ok=True)
    sums = {path.name: sha256_of(path) for path in own}
    write_whole(marks / f"sums.{rank}.json", json.dumps(sums).encode())


def collect_sums(marks: Path, *, processes: int) -> dict[str, str]:
    """Name -> SHA-256 of all files, from the notes of `processes` processes; no note is left."""
    sums: dict[str, str] = {}
    for rank in range(processes):
        sums |= json.loads((marks / f"sums.{rank}.json").read_text(encoding="utf-8"))
    for path in marks.glob("sums.*.json"):
        path.unlink()
    return sums


def altered(tensors: Path, sums: Mapping[str, str], *, share: int = 0, of: int = 1) -> Path | None:
    """The first file, of every `of`-th from number `share` on, that is not what was written; None when all are."""
    names = sorted(sums)[share::of]

    def is_whole(name: str) -> bool:
        return (tensors / name).is_file() and sha256_of(tensors / name) == sums[name]

    # Threads: other ones run while one computes a checksum.
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for name, whole in zip(names, pool.map(is_whole, names), strict=True):
            if not whole:
                return tensors / name
    return None
