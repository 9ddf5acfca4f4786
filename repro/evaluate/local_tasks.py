"""Builds lm-eval tasks: local ones from a template and a file of held-out items.

A local task is a template of ``tasks/`` filled in with a data file of JSON lines:

    multiple_choice    {"question": text, "choices": [text, ...], "answer": index of the right choice}
    generate           {"question": text, "answer": text}
    word_order         either of them: the right answer in its own order of words against three other orders of the
                       same words. A model that has seen 100,000 tokens gets this off chance, and more tokens show

Items are read here and handed over in memory: nothing is cached in the home folder, and a bad line is named with its
file and number. Not here: scoring (lm-eval), the choice of text (repro.data).
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import yaml

from repro.evaluate.settings import EvalTask

_TEMPLATES = Path(__file__).parent / "tasks"
_FILE_OF = {
    "multiple_choice": "multiple_choice.yaml",
    "word_order": "multiple_choice.yaml",
    "generate": "generate.yaml",
}

# Orders of words that a word-order item offers, and how often to draw before its words count as too few or alike.
_NUM_ORDERS = 4
_ORDER_TRIES = 50


def read_items(path: str | Path, *, template: str) -> list[dict[str, Any]]:
    """The items of a data file, checked for what the template needs.

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
    has_choices = template == "multiple_choice" or (template == "word_order" and "choices" in item)
    missing = {"question", "answer", *(("choices",) if has_choices else ())} - set(item)
    if missing:
        return f"lacks {', '.join(sorted(missing))}"
    if not isinstance(item["question"], str) or not item["question"].strip():
        return "`question` must be text"
    if not has_choices:
        return None if isinstance(item["answer"], str) else "`answer` must be text"
    choices, answer = item["choices"], item["answer"]
    if not isinstance(choices, list) or len(choices) < 2 or len(set(choices)) < len(choices):
        return "`choices` must be two or more different texts"
    if not isinstance(answer, int) or not 0 <= answer < len(choices):
        return f"`answer` must be an index into the {len(choices)} choices"
    return None


def reorder(item: dict[str, Any], *, context_characters: int | None) -> dict[str, Any] | None:
    """The word-order item made from another one; None when its words have fewer than four orders.

    The context is the end of the question from a word's beginning on; an item without choices (question and answer
    of a sum) becomes a whole sentence without context. Which orders and which place is a function of the text alone.
    """
    if "choices" in item:
        context, text = item["question"], item["choices"][item["answer"]]
        if context_characters is not None and len(context) > context_characters:
            context = context[-context_characters:].lstrip().partition(" ")[2]
    else:
        context, text = "", f"{item['question']} {item['answer']}"
    words = text.split()
    rng = random.Random(text)
    orders = {tuple(words): None}
    for _ in range(_ORDER_TRIES):
        orders.setdefault(tuple(rng.sample(words, len(words))))
        if len(orders) == _NUM_ORDERS:
            break
    else:
        return None
    choices = [" ".join(order) for order in orders]
    right = choices[0]
    rng.shuffle(choices)
    return {"question": context, "choices": choices, "answer": choices.index(right)}


def task_items(
    path: str | Path, *, template: str, limit: int | None, context_characters: int | None
) -> list[dict[str, Any]]:
    """The items that a task asks: all, or ``limit`` of them at even distances over the file.

    Raises ``ValueError`` as `read_items`, and when there are fewer than ``limit``.
    """
    items: list[dict[str, Any]] = read_items(path, template=template)
    if template == "word_order":
        made = (reorder(item, context_characters=context_characters) for item in items)
        items = [item for item in made if item is not None]
    if limit is None:
        return items
    if len(items) < limit:
        raise ValueError(f"{path}: has {len(items)} items for {template}, {limit} are asked for")
    return [items[i * len(items) // limit] for i in range(limit)]


def data_digest(path: Path) -> str:
    """SHA-256 of an evaluation data file, for provenance and for reusing results of equal items."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"


def load_dataset(
    *, path: str, template: str, limit: int | None, context_characters: int | None, **_: Any
) -> dict[str, Any]:
    """lm-eval's hook for data of one's own: {"test": dataset of the task's items}."""
    import datasets

    items = task_items(path, template=template, limit=limit, context_characters=context_characters)
    rows = [{key: item[key] for key in ("question", "choices", "answer") if key in item} for item in items]
    return {"test": datasets.Dataset.from_list(rows)}


def task_config(task: EvalTask, *, data_dir: Path) -> dict[str, Any]:
    """The lm-eval configuration of a local task. Raises ``ValueError`` naming file and line for bad items."""
    assert task.template is not None, f"{task.name} is not a local task"
    assert task.data is not None, f"{task.name} is not a local task"
    arguments = {
        "path": str(data_dir / task.data),
        "template": task.template,
        "limit": task.limit,
        "context_characters": task.context_characters,
    }
    task_items(**arguments)  # lm-eval would wrap what is wrong with the items in its own words
    config = yaml.safe_load((_TEMPLATES / _FILE_OF[task.template]).read_text(encoding="utf-8"))
    config |= {
        "task": task.name,
        "custom_dataset": load_dataset,
        "dataset_kwargs": arguments,
        "target_delimiter": task.target_delimiter,
        "num_fewshot": 0,
    }
    if task.max_new_tokens is not None:
        config["generation_kwargs"]["max_gen_toks"] = task.max_new_tokens
    return config
