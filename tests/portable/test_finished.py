"""Finding the kept checkpoints of a trained run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from repro.portable.csv_file import write_csv
from repro.portable.finished import choose, run_checkpoints


def write_segment(
    results: Path, index: int, start: int, end: int, keep: list[int], *, parent: str | None = None, **done
) -> str:
    """One trained segment of run `r` with a horizon of 1000 tokens; returns its hash."""
    run_hash = f"hash{index}"
    frozen = {
        "run": "r",
        "segment": index,
        "run_hash": run_hash,
        "schedule": {"horizon_tokens": 1000, "start_tokens": start, "end_tokens": end},
        "checkpoints": {"keep_tokens": keep},
        "init_from": {"run_hash": parent} if parent else None,
    }
    folder = results / "runs" / "r" / str(index)
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(frozen))
    record = {"status": "completed", "end_tokens": end, "run_hash": run_hash, **done}
    (folder / "done.json").write_text(json.dumps(record))
    return run_hash


def test_checkpoints_of_all_segments_in_order_each_in_its_own_state(tmp_path: Path) -> None:
    first = write_segment(tmp_path, 0, 0, 300, [200, 300])
    write_segment(tmp_path, 1, 300, 1000, [600], parent=first)
    points = run_checkpoints(tmp_path, "r")
    assert [(p.tokens, p.fraction, p.state_dir.name) for p in points] == [
        (200, 0.2, "hash0"),
        (300, 0.3, "hash0"),
        (600, 0.6, "hash1"),
        (1000, 1.0, "hash1"),
    ]


def test_ten_segments_are_taken_by_number_and_not_by_name(tmp_path: Path) -> None:
    previous = None
    for index in range(11):
        previous = write_segment(tmp_path, index, 50 * index, 50 * (index + 1), [], parent=previous)
    assert [p.tokens for p in run_checkpoints(tmp_path, "r")] == [50 * (i + 1) for i in range(11)]


def test_diverged_segment_has_only_what_it_passed(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, 0, 1000, [200, 600], status="diverged", end_tokens=600)
    assert [p.tokens for p in run_checkpoints(tmp_path, "r")] == [200]


def test_segment_left_over_from_an_earlier_plan_is_not_taken(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, 0, 1000, [200])
    write_segment(tmp_path, 1, 500, 1000, [600], parent="another")
    assert [p.tokens for p in run_checkpoints(tmp_path, "r")] == [200, 1000]


def test_record_of_another_run_is_refused(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, 0, 1000, [], **{"run_hash": "old"})
    with pytest.raises(ValueError, match=r"0/done\.json: belongs to another run\.yaml"):
        run_checkpoints(tmp_path, "r")


def test_a_position_that_was_passed_but_not_kept_is_an_error_and_one_never_reached_is_not(
    tmp_path: Path,
) -> None:
    write_segment(tmp_path, 0, 0, 800, [200])
    points = run_checkpoints(tmp_path, "r")
    assert [p.tokens for p in choose(points, [800, 200, 1000])] == [200, 800]
    with pytest.raises(ValueError, match="without keeping a checkpoint at 400 tokens"):
        choose(points, [400])


def test_table_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_csv(path, [{"a": 1}], columns=["a"])
    assert path.read_text() == "a\n1\n"
    with pytest.raises(ValueError, match=r"other\.csv: cannot be written"):
        write_csv(path / "other.csv", [{"a": 2}], columns=["a"])
    assert path.read_text() == "a\n1\n"
    assert list(tmp_path.iterdir()) == [path], "a temporary file was left"
