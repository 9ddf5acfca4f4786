"""Writes a table of results as CSV, whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]], *, columns: Sequence[str]) -> None:
    """Writes ``rows`` under a temporary name and renames it: a reader never sees half a table.

    Raises ``ValueError`` naming the file when it cannot be written (disk full, no permission); what was there stays.
    """
    temporary = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ValueError(f"{path}: cannot be written ({error})") from error
