"""Builds lm-eval tasks: the local ones from a template and a file of held-out items, the others by name.

A local task is a template of ``tasks/`` filled in with a data file of JSON lines:

    multiple_choice    {"question": text, "choices": [text, ...], "answer": index of the right choice}
    generate           {"question": text, "answer": text}

Items are read here and handed over in memory: nothing is cached in the home folder, and a bad line is named with its
file and number. Not here: scoring (lm-eval), the choice of text (repro.data).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from repro.evaluate.settings import EvalTask

_TEMPLATES = Path(__file__).parent / "tasks"


def read_items(path: str | Path, *, template: str) -> list[dict[str, Any]]:
    """The items of one local task.

    Raises ``ValueError`` naming the file (and line) when it is missing, empty, truncated, or an item lacks a field.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such evaluation data; prepare the data again")
    items = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: truncated or not JSON ({error})") from None
        if problem := _problem(item, template):
            raise ValueError(f"{path}, line {number}: {problem}")
        items.append(item)
    if not items:
        raise ValueError(f"{path}: holds no item")
    return items


def _problem(item: Any, template: str) -> str | None:
    """What is wrong with an item of this template, None when nothing is."""
    if not isinstance(item, dict):
        return "not a JSON object"
    missing = {"question", "answer", *(("choices",) if template == "multiple_choice" else ())} - set(item)
    if missing:
        return f"lacks {', '.join(sorted(missing))}"
    if template == "generate":
        return None if isinstance(item["answer"], str) else "`answer` must be text"
    choices, answer = item["choices"], item["answer"]
    if not isinstance(choices, list) or len(choices) < 2 or len(set(choices)) < len(choices):
        return "`choices` must be two or more different texts"
    if not isinstance(answer, int) or not 0 <= answer < len(choices):
        return f"`answer` must be an index into the {len(choices)} choices"
    return None


def data_digest(path: Path) -> str:
    """SHA-256 of an evaluation data file, for provenance and for reusing results of equal items."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"


def load_dataset(*, path: str, template: str, limit: int | None = None, **_: Any) -> dict[str, Any]:
    """lm-eval's hook for data of one's own: {"test": dataset of the first ``limit`` items}."""
    import datasets

    rows = [
        {key: item[key] for key in ("question", "choices", "answer") if key in item}
        for item in read_items(path, template=template)[:limit]
    ]
    return {"test": datasets.Dataset.from_list(rows)}


def task_config(task: EvalTask, *, data_dir: Path) -> dict[str, Any]:
    """The lm-eval configuration of a local task. Raises ``ValueError`` naming file and line for bad items."""
    assert task.template is not None, f"{task.name} is not a local task"
    assert task.data is not None, f"{task.name} is not a local task"
    path = data_dir / task.data
    items = read_items(path, template=task.template)
    if task.limit is not None and len(items) < task.limit:
        raise ValueError(f"{path}: holds {len(items)} items, {task.name} asks for {task.limit}")
    config = yaml.safe_load((_TEMPLATES / f"{task.template}.yaml").read_text(encoding="utf-8"))
    config |= {
        "task": task.name,
        "custom_dataset": load_dataset,
        "dataset_kwargs": {"path": str(path), "template": task.template, "limit": task.limit},
        "target_delimiter": task.target_delimiter,
        "num_fewshot": 0,
    }
    if task.max_new_tokens is not None:
        config["generation_kwargs"]["max_gen_toks"] = task.max_new_tokens
    return config
