"""The table of recorded runs: what it names, and what it leaves out."""

from __future__ import annotations

import csv
from pathlib import Path

from repro.analysis.record import write_record
from repro.analysis.recorded import segment_path
from repro.analysis.run_list import write_run_list
from repro.experiments import load

PLAN = load("tiny")


def keep(
    folder: Path, run: str, *, run_hash: str = "", losses: tuple[float | None, ...] = (4.0, 3.5), **done
) -> None:
    segment = PLAN.runs[run].segments[0]
    provenance = {
        "seconds": 12.5,
        "device": "a GPU",
        "git_commit": "abc",
        "versions": {"torch": "2.11.0"},
        "seed": 1,
    }
    record = {
        "run": run,
        "segment": 0,
        "run_hash": run_hash or segment.run_hash,
        "done": {"status": "completed", "provenance": provenance, **done},
        "train": {"step": 1, "tokens": 512, "step_tokens": 512, "loss": list(losses)},
        "validation": [{"loss": 3.75}],
        "events": [],
    }
    write_record(record, segment_path(folder, run, 0))


def test_a_row_says_what_a_run_took_where_it_ended_and_what_made_it(tmp_path: Path) -> None:
    keep(tmp_path, "8b_bf16")
    keep(tmp_path, "1p2b_last1", losses=(4.0, None), status="diverged")
    with (write_run_list(PLAN, tmp_path) or tmp_path).open(newline="") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert rows.keys() == {"8b_bf16", "1p2b_last1"}
    row = rows["8b_bf16"]
    assert (row["tokens"], row["train_loss"], row["validation_loss"], row["seconds"]) == (
        "1024",
        "3.5",
        "3.75",
        "12.5",
    )
    assert (row["device"], row["git_commit"], row["torch"], row["seed"]) == ("a GPU", "abc", "2.11.0", "1")
    assert row["run_hash"] == PLAN.runs["8b_bf16"].segments[0].run_hash
    assert (rows["1p2b_last1"]["status"], rows["1p2b_last1"]["train_loss"]) == ("diverged", "")


def test_records_of_another_configuration_are_not_listed(tmp_path: Path) -> None:
    keep(tmp_path, "8b_bf16")
    assert write_run_list(PLAN, tmp_path)
    keep(tmp_path, "8b_bf16", run_hash="0" * 16)
    assert write_run_list(PLAN, tmp_path) is None
    assert not (tmp_path / "runs.csv").exists()
