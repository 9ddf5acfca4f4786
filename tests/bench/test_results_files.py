"""Recorded benchmarks say where they come from."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results"
FILES = sorted(FOLDER.iterdir())


def records(content: dict) -> list[dict]:
    """The file as a whole, or its parts that were measured one by one."""
    if "versions" in content:
        return [content]
    return [part for part in content.values() if isinstance(part, dict) and "versions" in part]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_results_file_names_versions_device_and_date(path: Path) -> None:
    found = records(json.loads(path.read_text(encoding="utf-8")))
    assert found, "no versions"
    for record in found:
        assert {"python", "torch"} <= set(record["versions"])
        assert record.get("device") or record.get("processor")
        assert date(2025, 1, 1) < date.fromisoformat(record["date"])
        assert "_20" not in path.stem or path.stem.endswith(record["date"])
        assert all(row["measured"] is not None or row["note"] for row in record.get("rows", []))
