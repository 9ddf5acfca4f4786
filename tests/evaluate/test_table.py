"""The table of a run's evaluation: lines of tasks, and means of groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.evaluate.harness import Score
from repro.evaluate.settings import EvalTask
from repro.evaluate.table import rows_of_checkpoint
from repro.portable.finished import CheckpointPoint


def task(name: str, chance: float, *, in_group_mean: bool = True) -> EvalTask:
    return EvalTask(
        name=name,
        group="general",
        metric="acc",
        chance=chance,
        stands_for="nothing",
        harness_tasks=(name,),
        in_group_mean=in_group_mean,
    )


def test_a_group_is_the_mean_of_its_tasks_without_those_that_only_a_figure_shows() -> None:
    tasks = [task("two", 0.5), task("four", 0.25), task("shown", 0.1, in_group_mean=False)]
    scores = {
        "two": Score(0.7, 0.03, 100),
        "four": Score(0.3, 0.04, 300),
        "shown": Score(0.9, 0.01, 1000),
    }
    point = CheckpointPoint("run", tokens=200, fraction=0.0941, state_dir=Path(), frozen={})
    *own, mean = rows_of_checkpoint(point, tasks, scores)
    assert {(row["tokens"], row["fraction"]) for row in (*own, mean)} == {(200, 0.0941)}
    assert [(row["task"], row["value"], row["chance"]) for row in own] == [
        ("two", 0.7, 0.5),
        ("four", 0.3, 0.25),
        ("shown", 0.9, 0.1),
    ]
    assert (mean["task"], mean["group"], mean["num_items"]) == ("mean", "general", 400)
    assert (mean["value"], mean["chance"]) == (pytest.approx(0.5), 0.375)
    assert mean["stderr"] == pytest.approx(0.05 / 2)
