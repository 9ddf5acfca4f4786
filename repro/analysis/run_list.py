"""The recorded runs of a tier as one table: what each took, where it ended, and what it was made with.

    recorded/<tier>/runs.csv    a row a segment: the sweep's runs first, then the plan's, parents before children

Seconds are those of training alone (without the start of the process). A segment on several GPUs took `processes`
times as many GPU seconds; runs that shared a GPU took less than the sum of theirs. Records of another configuration
are left out.

Does not: judge or draw; the losses between start and end stay in the records.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repro.analysis.record import SUFFIX, Record, read_record
from repro.experiments import Plan

RUN_LIST = "runs.csv"
_FROM_PROVENANCE = (
    "seconds",
    "processes",
    "tokens_per_second",
    "peak_memory_bytes",
    "device",
    "date",
    "git_commit",
)


def run_rows(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """Rows of the records below `folder` (recorded/<tier>) that have the hash of today's plan; empty without any."""
    return [_row(record) for record in _current(plan, folder)]


def write_run_list(plan: Plan, folder: Path) -> Path | None:
    """Write `folder`/runs.csv; None, and no file, when nothing of today's plan is recorded there."""
    path = folder / RUN_LIST
    rows = run_rows(plan, folder)
    if not rows:
        path.unlink(missing_ok=True)
        return None
    out = io.StringIO()
    writer = csv.DictWriter(out, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(out.getvalue(), encoding="utf-8")
    return path


def _current(plan: Plan, folder: Path) -> Iterator[Record]:
    for run in (*plan.sweep.values(), *plan.runs.values()):
        for segment in run.segments:
            path = folder / "runs" / run.name / f"{segment.index}{SUFFIX}"
            if path.is_file() and (record := read_record(path))["run_hash"] == segment.run_hash:
                yield record


def _row(record: Record) -> dict[str, Any]:
    done = record["done"]
    made_with = done["provenance"]
    versions = made_with.get("versions", {})
    train = record["train"]
    return {
        "run": record["run"],
        "segment": record["segment"],
        "seed": made_with.get("seed", ""),
        "status": done["status"],
        "tokens": len(train["loss"]) * train["step_tokens"],
        "train_loss": _last(train["loss"]),
        "validation_loss": _last([line["loss"] for line in record["validation"]]),
        **{key: made_with.get(key, "") for key in _FROM_PROVENANCE},
        "torch": versions.get("torch", ""),
        "triton": versions.get("triton", ""),
        "data_sha256": made_with.get("data_sha256", "")[:16],
        "run_hash": record["run_hash"],
    }


def _last(losses: list[float | None]) -> float | str:
    """Empty without any, and where the last one is no number."""
    return losses[-1] if losses and losses[-1] is not None else ""
