"""Which task comes next on which place, while a segment is ending, with little time, on several GPUs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from made_up import rates

from repro.campaign.choice import Choice
from repro.campaign.folder import log_of
from repro.campaign.machine import Machine
from repro.campaign.progress import DONE, RUNNING, WAITING, Progress
from repro.campaign.tasks import Task

PARENT = Task("a/0", "train", "a", 0, 1_000_000, "1p2b bf16", ())
NEXT = Task("a/1", "train", "a", 1, 9_000_000, "1p2b bf16", ("a/0",))
EQUAL_FORK = Task("e/0", "train", "e", 0, 5_000_000, "1p2b bf16", ("a/0",))
SHORT_FORK = Task("f/0", "train", "f", 0, 1_000_000, "1p2b bf16", ("a/0",))
OTHER = Task("b/0", "train", "b", 0, 5_000_000, "1p2b bf16", ())
TABLE = Task("measure:a", "measure", "a", -1, 0, "1p2b measure", ("a/0",))
GROUPS = {"measure:a": 0, "a/0": 1, "a/1": 1, "e/0": 1, "f/0": 1, "b/0": 1}


def choice(out: Path, tasks: list[Task], *, gpus: int = 1, seconds: float = 1000) -> Choice:
    """PARENT runs on the first place and says that it has two seconds to go, as long as another one's start takes."""
    known = rates(start_seconds=2)
    progress = Progress([PARENT, *tasks], out, known)
    progress.deadline = time.time() + seconds
    progress.set(PARENT.name, RUNNING)
    log = log_of(out, PARENT.name)
    log.parent.mkdir()
    log.write_text("a[0] step 40/80 (50 %)  9 tokens/s  2 s left\n")
    return Choice(out, Machine(gpus=gpus), known, GROUPS, progress)


def started(choice: Choice) -> list[tuple[str, int]]:
    return [(task.name, place) for task, place in choice.starts({0: [PARENT]})]


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ([OTHER], [("b/0", 0)]),
        ([OTHER, TABLE], []),
        ([OTHER, NEXT], []),
        ([OTHER, EQUAL_FORK], [("b/0", 0)]),
        ([OTHER, SHORT_FORK], [("b/0", 0)]),
    ],
    ids=["nothing follows", "its table", "a longer chain", "an equal chain", "a shorter chain"],
)
def test_a_place_is_kept_for_what_is_more_urgent_once_its_segment_ends(waiting, expected, tmp_path):
    assert started(choice(tmp_path, waiting)) == expected


def test_a_place_is_not_kept_for_a_table_that_there_is_no_time_for(tmp_path):
    made = choice(tmp_path, [OTHER, TABLE])
    made.rates.measure_seconds = 2000
    assert started(made) == [("b/0", 0)]


def test_what_would_end_while_others_save_themselves_is_not_started(tmp_path):
    """It needs 1.1 x (2 + 5) seconds, and 30 are kept for saving."""
    for seconds, expected in ((31, []), (60, [("b/0", 0)])):
        folder = tmp_path / str(seconds)
        folder.mkdir()
        assert started(choice(folder, [OTHER], seconds=seconds)) == expected


def test_an_empty_gpu_comes_before_one_whose_segment_is_ending(tmp_path):
    assert started(choice(tmp_path, [OTHER, TABLE], gpus=2)) == [("b/0", 1)]


def test_a_table_comes_before_a_longer_run_of_its_name(tmp_path):
    made = choice(tmp_path, [OTHER, TABLE])
    made.progress.set(PARENT.name, DONE)
    assert [task.name for task, _ in made.starts({})] == ["measure:a"]


@pytest.mark.parametrize("state", [WAITING, DONE])
def test_a_table_that_there_is_no_time_for_is_named(state, tmp_path):
    made = choice(tmp_path, [OTHER, TABLE], seconds=60)
    made.progress.set(PARENT.name, state)
    assert made.lost_tables() == ""
    made.rates.measure_seconds = 60
    assert made.lost_tables().startswith("NO TIME FOR measure:a, though the run is trained")


def test_a_table_is_not_missed_where_its_run_does_not_end_in_time_either(tmp_path):
    made = choice(tmp_path, [OTHER, TABLE], seconds=31)
    made.progress.set(PARENT.name, WAITING)
    assert made.lost_tables() == ""
