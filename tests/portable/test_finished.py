"""Finding the kept checkpoints of a trained run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_segment import freeze

from repro.experiments.content import run_hash_of
from repro.portable.csv_file import write_csv
from repro.portable.finished import choose, run_checkpoints


def write_segment(
    results: Path, index: int, start: int, end: int, keep: list[int], *, parent: str | None = None, **done
) -> str:
    """One trained segment of run `r`, in steps of 50 tokens to a horizon of 1000; returns its hash."""
    folder = results / "runs" / "r" / str(index)
    link = {"run": "r", "segment": index - 1, "run_hash": parent, "tokens": start} if parent else None

    def change(frozen):
        frozen.update(run="r", segment=index, init_from=link)
        frozen["schedule"].update(horizon_tokens=1000, start_tokens=start, end_tokens=end)
        frozen["schedule"].update(sequence_length_tokens=50, batch_sequences=1, micro_batch_sequences=1)
        frozen["checkpoints"]["keep_tokens"] = keep

    run_hash = edit(freeze(folder), change)
    record = {"status": "completed", "end_tokens": end, "run_hash": run_hash, **done}
    (folder / "done.json").write_text(json.dumps(record))
    return run_hash


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """As if frozen and trained with the change: returns the new hash."""
    content = yaml.safe_load(path.read_text())
    change(content)
    content["run_hash"] = run_hash_of(content)
    path.write_text(yaml.safe_dump(content))
    if (done := path.with_name("done.json")).exists():
        done.write_text(json.dumps(json.loads(done.read_text()) | {"run_hash": content["run_hash"]}))
    return content["run_hash"]


def test_checkpoints_of_all_segments_in_order_each_in_its_own_state(tmp_path: Path) -> None:
    first = write_segment(tmp_path, 0, 0, 300, [200, 300])
    second = write_segment(tmp_path, 1, 300, 1000, [600], parent=first)
    points = run_checkpoints(tmp_path, "r")
    assert [(p.tokens, p.fraction, p.state_dir.name) for p in points] == [
        (200, 0.2, first),
        (300, 0.3, first),
        (600, 0.6, second),
        (1000, 1.0, second),
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


def test_a_segment_whose_link_is_misspelt_is_no_left_over(tmp_path: Path) -> None:
    """It was silently left out, with its checkpoints."""
    first = write_segment(tmp_path, 0, 0, 300, [])
    write_segment(tmp_path, 1, 300, 1000, [600], parent=first)
    edit(tmp_path / "runs/r/1/run.yaml", lambda frozen: frozen.update(init_form=frozen.pop("init_from")))
    with pytest.raises(
        ValueError, match=r"r/1/run\.yaml: unknown key 'init_form'; did you mean 'init_from'\?"
    ):
        run_checkpoints(tmp_path, "r")


def test_checkpoints_of_either_backend_are_found_and_a_misspelt_one_is_named(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, 0, 1000, [])
    path = tmp_path / "runs/r/0/run.yaml"
    edit(path, lambda frozen: frozen.update(backend="cluster"))
    assert [p.frozen["backend"] for p in run_checkpoints(tmp_path, "r")] == ["cluster"]
    edit(path, lambda frozen: frozen.update(backnd=frozen.pop("backend")))
    with pytest.raises(ValueError, match=r"0/run\.yaml: unknown key 'backnd'; did you mean 'backend'\?"):
        run_checkpoints(tmp_path, "r")


def test_record_of_another_run_is_refused(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, 0, 1000, [], **{"run_hash": "old"})
    with pytest.raises(ValueError, match=r"0/done\.json: belongs to another run\.yaml"):
        run_checkpoints(tmp_path, "r")


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"run_hash": "x", "status": "completed"}'])
def test_damaged_record_is_named(content: str, tmp_path: Path) -> None:
    write_segment(tmp_path, 0, 0, 1000, [])
    (tmp_path / "runs" / "r" / "0" / "done.json").write_text(content)
    with pytest.raises(ValueError, match=r"r/0/done\.json: truncated or not readable.*remove it, and"):
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
