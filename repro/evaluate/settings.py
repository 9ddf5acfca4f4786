"""What is evaluated and how: ``configs/evals/<tier>.yaml`` as validated records.

A task is either local (a template of ``repro/evaluate/tasks`` over a JSON-lines file of held-out text that
repro.data prepared) or one or more tasks of lm-eval's own registry (``harness_tasks``: the paper's benchmarks, which
need the Hugging Face hub or copies in its cache). Both go down the same path in ``harness.py``.

Units: ``chance`` and every accuracy are fractions of 1; lengths are tokens. Not here: running anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from repro.experiments.errors import read_mapping, validate
from repro.experiments.record import Record

Group = Literal["general", "math", "multilingual", "code", "commonsense"]


class EvalTask(Record):
    """One row of the results: a task of Table 2, or the small tiers' stand-in for its group.

    ``metric`` is lm-eval's metric name and ``filter`` its filter ("none" unless the task states filters).
    ``chance`` is what guessing scores. ``stands_for`` names the paper's row(s) that the task takes the place of.
    ``limit``: so many items at even distances over the data file. ``context_characters``: so much of the question's
    end. ``target_delimiter`` stands between question and answer. Several ``harness_tasks`` are averaged, ``plain`` or
    by their number of ``items``.
    ``max_new_tokens``: where a generated answer ends at the latest; null for lm-eval's tasks: where the task states,
    or after lm-eval's 256. ``num_fewshot`` null: as the task of lm-eval states.
    ``in_group_mean``: false for a task that only a figure shows.
    ``runs_code``: executes what the model wrote.
    """

    name: str
    group: Group
    metric: str
    chance: float = Field(ge=0, lt=1)
    stands_for: str
    filter: str = "none"
    num_fewshot: int | None = Field(default=None, ge=0)
    limit: PositiveInt | None = None
    template: Literal["multiple_choice", "word_order", "generate"] | None = None
    data: str | None = None
    target_delimiter: str = " "
    context_characters: PositiveInt | None = None
    max_new_tokens: PositiveInt | None = None
    harness_tasks: tuple[str, ...] = ()
    weighting: Literal["plain", "items"] = "plain"
    in_group_mean: bool = True
    runs_code: bool = False

    @model_validator(mode="after")
    def _check(self) -> EvalTask:
        if (self.template is None) == (not self.harness_tasks):
            raise ValueError(
                f"{self.name}: needs either `template` and `data` (a local task) or `harness_tasks` (lm-eval's)"
            )
        if (self.template is None) != (self.data is None):
            raise ValueError(f"{self.name}: `template` and `data` go together")
        if self.template is not None and (self.template == "generate") != (self.max_new_tokens is not None):
            raise ValueError(
                f"{self.name}: `max_new_tokens` belongs to template `generate`, of the templates only there"
            )
        if self.context_characters is not None and self.template != "word_order":
            raise ValueError(
                f"{self.name}: `context_characters` belongs to template `word_order`, and only there"
            )
        if self.harness_tasks and self.limit is not None:
            raise ValueError(
                f"{self.name}: `limit` is for local tasks; lm-eval's tasks run on all their items"
            )
        if self.template is not None and self.num_fewshot is not None:
            raise ValueError(
                f"{self.name}: `num_fewshot` is for lm-eval's tasks; local questions carry examples"
            )
        return self


class EvalSettings(Record):
    """The evaluation of one tier; which checkpoints of which runs is the tier's `evaluate_at`.

    ``lm_eval``: the version that the settings are written for; null for local tasks, which depend on none.
    ``engine``: what computes: transformers (`hf`), or vLLM, which generates much faster and has to be installed.
    """

    name: str
    source: str
    dtype: Literal["bfloat16", "float32"]
    lm_eval: str | None = None
    engine: Literal["hf", "vllm"] = "hf"
    batch_size: PositiveInt
    max_length_tokens: PositiveInt
    tasks: tuple[EvalTask, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> EvalSettings:
        names = [task.name for task in self.tasks]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"tasks: {name!r} is there {names.count(name)} times")
        for task in self.tasks:
            if (task.max_new_tokens or 0) >= self.max_length_tokens:
                raise ValueError(
                    f"{task.name}: `max_new_tokens` {task.max_new_tokens} leaves no room for the question in "
                    f"`max_length_tokens` {self.max_length_tokens}"
                )
        local = [task.name for task in self.tasks if task.template is not None]
        if self.engine == "vllm" and local:
            raise ValueError(f"engine: vllm does not run local tasks ({', '.join(local)})")
        return self


def only_local(tasks: Sequence[EvalTask]) -> bool:
    """Whether none of the tasks is lm-eval's own."""
    return all(task.template is not None for task in tasks)


def load_settings(path: str | Path) -> EvalSettings:
    """Reads ``configs/evals/<tier>.yaml``; raises ``ValueError`` naming the file, the key and what is wrong."""
    return validate(EvalSettings, read_mapping(Path(path)), path)
