"""metrics.jsonl: one JSON object a line, in step order, written as training goes on.

The live file lies in the state folder (a workflow manager deletes the declared outputs of a failed job) and is
copied beside run.yaml when the segment is complete. A checkpoint remembers the file's length, so a resumed run cuts
off what came after it and writes the same lines again. Not here: curves and gaps (repro.analysis).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

# Keys that tell about the machine, not about the run: left out when two runs are compared.
MACHINE_KEYS = ("seconds", "data_seconds", "tokens_per_second", "peak_memory_bytes")


class MetricsWriter:
    """Appends records to one file; non-finite numbers are written as null (JSON has no NaN)."""

    def __init__(self, path: Path, *, keep_bytes: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a+b")  # noqa: SIM115 - open for the life of the trainer
        size = os.fstat(self._file.fileno()).st_size
        if size < keep_bytes:
            raise ValueError(
                f"{path}: {size} bytes, but the checkpoint was taken at {keep_bytes}: truncated; remove the folder "
                "to train the segment again"
            )
        self._file.truncate(keep_bytes)
        self._file.seek(0, os.SEEK_END)

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(_finite(record), allow_nan=False).encode() + b"\n")

    def flush(self) -> int:
        """Forces the lines to disk; returns the file's length in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def comparable(lines: str) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl without what belongs to the machine: equal for a run and its resumed twin."""
    records = [json.loads(line) for line in lines.splitlines()]
    return [{k: v for k, v in record.items() if k not in MACHINE_KEYS} for record in records]


def write_whole(target: Path, content: bytes) -> None:
    """Writes `target` in one step: a reader sees the old file or the whole new one, also after a crash."""
    temporary = target.with_name(f".{target.name}.writing")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, target)
