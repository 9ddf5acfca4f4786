"""Runs lm-eval's tasks on a loaded model and reads off one score per task.

The model is handed to ``lm_eval.evaluate``; tasks are local (no registry is scanned, which saves 14 s) or lm-eval's
own. A score is (value, standard error, number of items), value and error as fractions of 1. Not here: loading a model
(repro.evaluate.loading), where checkpoints come from, tables.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import io
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from repro.evaluate.local_tasks import task_config
from repro.evaluate.settings import EvalSettings, EvalTask, only_local

_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_EVALUATE_OFFLINE")

# lm-eval's own default: which examples a benchmark shows before its questions.
_FEWSHOT_SEED = 1234


@dataclass(frozen=True)
class Score:
    """Result of one task: accuracy (or exact match, pass@1) with its standard error over ``num_items``."""

    value: float
    stderr: float
    num_items: int


def go_offline() -> None:
    """Tells the Hugging Face libraries to stay offline; call before their import.

    The caller's environment goes first: HF_HUB_OFFLINE=0 HF_DATASETS_OFFLINE=0 lets them download benchmarks.
    """
    for name in _OFFLINE:
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TQDM_MININTERVAL", "10")  # seconds between lines of lm-eval's progress bars
    # lm-eval warns about each of its hooks that is used on purpose here.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)


def refuse_code(tasks: Sequence[EvalTask], *, allowed: bool) -> None:
    """Raises ``ValueError`` when a task runs code that the model wrote and nobody has allowed that."""
    names = [task.name for task in tasks if task.runs_code]
    if names and not allowed:
        raise ValueError(
            f"{', '.join(names)}: runs code that the model wrote; in a sandbox, pass --allow-code-execution "
            "(in the workflow: --config allow_code_execution=true)"
        )


def check_version(settings: EvalSettings) -> None:
    """Raises ``ValueError`` when the installed lm-eval is not the one that the settings are written for."""
    installed = version("lm_eval")
    if settings.lm_eval not in (None, installed):
        raise ValueError(
            f"lm-eval {installed} is installed, the settings of {settings.name} are for {settings.lm_eval}: "
            f"scores of two versions do not compare; pip install lm-eval=={settings.lm_eval}"
        )


def score_tasks(
    lm: Any, tasks: Sequence[EvalTask], *, data_dir: Path, allow_code_execution: bool = False
) -> dict[str, Score]:
    """Scores every task of ``tasks`` with one pass of lm-eval; keys are the tasks' names.

    Empty in all processes but the first where several share the questions. Raises ``ValueError`` in the user's words
    when a task runs model-written code and that was not allowed, when a data file is bad, or when a benchmark is
    neither in lm-eval's registry nor reachable offline.
    """
    refuse_code(tasks, allowed=allow_code_execution)
    import lm_eval
    from lm_eval.tasks import TaskManager

    if any(task.runs_code for task in tasks):
        os.environ["HF_ALLOW_CODE_EVAL"] = "1"  # asked for by the code_eval metric of Hugging Face's evaluate
    manager = (
        _registry() if any(task.harness_tasks for task in tasks) else TaskManager(include_defaults=False)
    )
    # Bars of a minute's work would fill a log; lm-eval cannot be told to leave them out.
    bars = contextlib.redirect_stderr(io.StringIO()) if only_local(tasks) else contextlib.nullcontext()
    try:
        specs = [spec for task in tasks for spec in _specs(manager, task, data_dir)]
        loaded = manager.load(specs)
        for item in loaded["tasks"].values():
            if item.get_config("num_fewshot") is None:
                item.set_config(key="num_fewshot", value=0)
            item.set_fewshot_seed(seed=_FEWSHOT_SEED)
        # Not simple_evaluate: it lists every installed package into each result, a second a checkpoint.
        with bars:
            results = lm_eval.evaluate(
                lm=lm,
                task_dict=loaded,
                log_samples=False,
                bootstrap_iters=1000,
                confirm_run_unsafe_code=allow_code_execution,
            )
    except (OSError, ImportError) as error:  # offline, not in the cache; or an extra of lm-eval not installed
        if only_local(tasks) or getattr(error, "errno", None) == errno.ENOSPC:
            raise
        names = ", ".join(name for task in tasks for name in task.harness_tasks)
        raise ValueError(
            f"one of {names} cannot be loaded ({error}). lm-eval's benchmarks need the Hugging Face hub "
            "(HF_HUB_OFFLINE=0 HF_DATASETS_OFFLINE=0) or copies in its cache"
        ) from error
    return {task.name: read_score(results, task) for task in tasks} if results is not None else {}


@functools.cache
def _registry() -> Any:
    """lm-eval's own tasks: 14 s to look through."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def _specs(manager: Any, task: EvalTask, data_dir: Path) -> list[Any]:
    """What lm-eval loads for one task: a configuration (local) or its own task and group objects.

    Raises ``ValueError`` with the nearest name for a task that lm-eval lacks, and for `max_new_tokens` of one that
    generates nothing.
    """
    if task.template is not None:
        return [task_config(task, data_dir=data_dir)]
    objects: list[Any] = []
    for name in task.harness_tasks:
        if name not in manager.all_groups and name not in manager.all_subtasks:
            known = manager.all_groups + manager.all_subtasks
            raise ValueError(f"{task.name}: lm-eval has no task {name!r}; {_closest(name, known)}")
        loaded = manager.load([name])
        for item in loaded["tasks"].values():
            if task.num_fewshot is not None:
                item.set_config(key="num_fewshot", value=task.num_fewshot)
            if task.max_new_tokens is not None:
                _end_answers(item, task)
        objects.append(loaded["groups"].get(name) or loaded["tasks"][name])
    return objects


def _end_answers(item: Any, task: EvalTask) -> None:
    """Answers to lm-eval's task end after `max_new_tokens`; where else they end (`until`) stays as it states."""
    if item.get_config("output_type") != "generate_until":
        raise ValueError(
            f"{task.name}: `max_new_tokens` is for generated answers; lm-eval's {item.task_name} has none"
        )
    stated = item.get_config("generation_kwargs")
    item.set_config(key="generation_kwargs", value={**stated, "max_gen_toks": task.max_new_tokens})


def _closest(word: str, known: Sequence[str]) -> str:
    """A hint with the closest of lm-eval's 14,000 names (too many to list)."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else "see `lm-eval ls tasks`"


def read_score(results: Mapping[str, Any], task: EvalTask) -> Score:
    """The score of one task out of lm-eval's results; several ``harness_tasks`` give their mean.

    Raises ``ValueError`` naming the metrics that are there when the configured one is not.
    """
    key = f"{task.metric},{task.filter}"
    error_key = f"{task.metric}_stderr,{task.filter}"
    parts = []
    for name in task.harness_tasks or (task.name,):
        found = {**results.get("groups", {}), **results["results"]}[name]
        if key not in found:
            metrics = ", ".join(sorted(k for k in found if "," in k and "_stderr," not in k))
            raise ValueError(f"{task.name}: lm-eval's {name} has no metric {key!r}; it has {metrics}")
        stderr = found.get(error_key)
        parts.append(
            Score(
                value=float(found[key]),
                stderr=float(stderr) if isinstance(stderr, (int, float)) else math.nan,
                num_items=_num_items(results, name, found),
            )
        )
    return mean_score(
        parts, weights=[part.num_items for part in parts] if task.weighting == "items" else None
    )


def _num_items(results: Mapping[str, Any], name: str, found: Mapping[str, Any]) -> int:
    counts = results.get("n-samples", {})
    if name in counts:
        return int(counts[name]["effective"])
    return int(found.get("sample_len", 0))


def mean_score(scores: Sequence[Score], *, weights: Sequence[float] | None = None) -> Score:
    """Mean of independent scores, plain (as the paper's group rows) or weighted; errors add in quadrature."""
    assert scores, "the mean of no score"
    shares = weights or [1.0] * len(scores)
    total = sum(shares)
    return Score(
        value=sum(share * score.value for share, score in zip(shares, scores, strict=True)) / total,
        stderr=math.sqrt(sum((w * s.stderr) ** 2 for w, s in zip(shares, scores, strict=True))) / total,
        num_items=sum(score.num_items for score in scores),
    )
