"""Recorded benchmarks say where they come from, and the table beside them names them all."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks" / "results").iterdir())


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
        rows = [row for row in record.get("rows", []) if "name" in row]  # those of `repro bench` have names
        assert all(row["measured"] is not None or row["note"] for row in rows)


def table() -> list[list[str]]:
    """Cells (made by, what it measures, results, quoted in) of benchmarks/README.md."""
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return rows[1:]


def named(cell: str, pattern: str) -> set[str]:
    return set(re.findall(rf"`({pattern})", cell))


def test_the_table_names_every_results_file_once_and_no_other() -> None:
    told = [name for row in table() for name in re.findall(r"`([^`]+)`", row[2])]
    assert sorted(told) == [path.name for path in FILES]
    mentioned = {name for row in table() for name in named(row[1], r"[^`]+\.json")}
    assert mentioned <= set(told)


def test_the_table_names_every_script_and_no_other() -> None:
    told = {name for row in table() for name in named(row[0], r"\w+\.py")}
    assert told == {path.name for path in (ROOT / "benchmarks").glob("*.py")}


def test_what_quotes_a_result_exists() -> None:
    for row in table():
        places = named(row[3], r"[\w./]+(?:/|\.\w+)")
        assert places, row
        assert all((ROOT / place).exists() for place in places), row
