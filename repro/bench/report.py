"""How a run is shown and kept: a table that grows while rows are measured, and one JSON file.

The file: {git_commit, versions, device, threads, date, run, emulation, busy, ceilings, rows: [one object a row, see
`rows.Row`]}; `ceilings` holds what the floors come from. Times are in seconds, sizes in bytes. It is written anew
after every row, so a run that is cut short leaves what it measured.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from repro.bench.rows import Row

LEGEND = (
    "floor: what a row is measured against, told at its end; ratio: a share of the floor's rate, for layers a\n"
    "multiple of its time; targets are set for an H200 (qdq on a CPU: for a CPU)"
)
_HEADER = f"{'row':37} {'floor':>10} {'measured':>10} {'ratio':>7}  {'target':8}"


def header(facts: dict[str, Any], legend: str = LEGEND) -> str:
    """What the table is about: the machine, what it emulates, versions, and how ratios read."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    busy = f"{_busy(facts)}\n" if facts["busy"] else ""
    return (
        f"{facts['device']}, {facts['threads']} threads; {versions}\n"
        f"{facts['emulation']}\n{busy}{legend}\n\n{_HEADER}"
    )


def _busy(facts: dict[str, Any]) -> str:
    return f"BUSY: {facts['busy']}"


def line(row: Row) -> str:
    """One row, readable without the header of its group."""
    if row.measured is None:
        return f"{row.name:37} {'-':>10} {'-':>10} {'':7}  {row.target:8} {'':6} {row.what}: {row.note}"
    ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
    verdict = {True: "met", False: "missed", None: ""}[row.met]
    rate = _rate(row.details)
    end = "; ".join(text for text in (row.what, rate, row.floor_from, row.note) if text)
    return (
        f"{row.name:37} {_amount(row.floor, row.unit):>10} {_amount(row.measured, row.unit):>10} {ratio:>7}"
        f"  {row.target:8} {verdict:6} {end}"
    )


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return f"{value:,.0f} B"
    scale, name = next(((s, n) for s, n in ((1.0, "s"), (1e-3, "ms")) if value >= s), (1e-6, "us"))
    return f"{value / scale:.4g} {name}"


def _rate(details: dict[str, Any]) -> str:
    if "tokens_per_second" in details:
        return f"{details['tokens_per_second']:,.0f} tokens/s"
    if "tflops" in details:
        return f"{details['tflops']:.4g} TFLOP/s"
    return ""


def summary(rows: list[Row], facts: dict[str, Any]) -> str:
    """How many targets are met, which rows broke, and below it again that the machine was busy: the head of a long
    table is out of sight where the targets are read."""
    judged = [row for row in rows if row.met is not None]
    missed = [row.name for row in judged if not row.met]
    broken = [row.name for row in rows if row.failed]
    words = [f"{len(judged) - len(missed)} of {len(judged)} targets met"] if judged else []
    words += [f"missed: {', '.join(missed)}"] if missed else []
    words += [f"failed: {', '.join(broken)}"] if broken else []
    lines = ["; ".join(words)] if words else []
    if facts["busy"] and any(row.measured is not None for row in rows):
        lines.append(_busy(facts))
    return "\n".join(lines)


class ResultsFile:
    """A JSON file that always holds a whole record, or nothing yet."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError when the file cannot be written, before anything is measured."""
        self.path = path
        self._temporary = path.with_name(f".{path.name}.writing")
        try:
            if path.is_dir():
                raise IsADirectoryError(f"{path} is a folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._temporary.write_text("", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path}: cannot be written ({error.strerror or error})") from error
        self._temporary.unlink()

    def write(self, record: dict[str, Any]) -> None:
        """Replaces the file at once. Raises ValueError when the disk does not take it."""
        try:
            self._temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            os.replace(self._temporary, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._temporary.unlink()
            raise ValueError(f"{self.path}: cannot be written ({error.strerror or error})") from error


def results_file(path: Path | None) -> ResultsFile | None:
    """The file of --out or --json; None where none is asked for. Raises as ResultsFile does: so the last check."""
    return ResultsFile(path) if path else None
