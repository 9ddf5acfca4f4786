"""The table ``evaluations/<run>.csv``: one line a checkpoint and task, and one a checkpoint and group.

    run,tokens,fraction,task,group,metric,value,stderr,num_items,chance

``value``, ``stderr`` and ``chance`` are fractions of 1, ``fraction`` is tokens / horizon. A group's line has task
"mean" and metric "mean": the plain mean of its tasks, as in Table 2. Not here: scoring, drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro.evaluate.harness import Score, mean_score
from repro.evaluate.settings import EvalTask
from repro.portable.finished import CheckpointPoint

COLUMNS = ("run", "tokens", "fraction", "task", "group", "metric", "value", "stderr", "num_items", "chance")


def rows_of_checkpoint(
    point: CheckpointPoint, tasks: Sequence[EvalTask], scores: Mapping[str, Score]
) -> list[dict[str, Any]]:
    """Lines of one checkpoint: its tasks in the settings' order, then the mean of each group."""
    position = {"run": point.run, "tokens": point.tokens, "fraction": round(point.fraction, 6)}
    rows = [
        {
            **position,
            "task": task.name,
            "group": task.group,
            "metric": task.metric,
            **_numbers(scores[task.name]),
            "chance": round(task.chance, 6),
        }
        for task in tasks
    ]
    for group in dict.fromkeys(task.group for task in tasks if task.in_group_mean):
        members = [task for task in tasks if task.group == group and task.in_group_mean]
        chance = sum(task.chance for task in members) / len(members)
        rows.append(
            {
                **position,
                "task": "mean",
                "group": group,
                "metric": "mean",
                **_numbers(mean_score([scores[task.name] for task in members])),
                "chance": round(chance, 6),
            }
        )
    return rows


def _numbers(score: Score) -> dict[str, Any]:
    return {"value": round(score.value, 6), "stderr": round(score.stderr, 6), "num_items": score.num_items}
