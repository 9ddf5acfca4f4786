"""Evaluation items from held-out text, one JSONL file a task, in the groups of the paper's Table 2.

    file                          kind             the question
    general_next_word             multiple choice  which word comes next in held-out prose
    general_definition            multiple choice  which gloss belongs to a held-out headword
    math_arithmetic               multiple choice  sums and differences of small numbers
    math_sums                     generate         the same, to be written out
    multilingual_language         multiple choice  which language a held-out passage is in
    multilingual_continuation     multiple choice  how a held-out passage in another language goes on
    code_next_line                multiple choice  which line comes next in a held-out source file
    code_identifier               multiple choice  which name stands in the gap of a held-out line
    commonsense_continuation      multiple choice  how a held-out passage of a story goes on
    commonsense_speech            multiple choice  which speech answers another in a held-out play

Every line is `{"question", "choices", "answer"}` with `answer` the index of the right choice, or `{"question",
"answer"}` with `answer` a string for the tasks that generate. Everything follows from the held-out documents and a
fixed seed, so the items change only with the data.

These are stand-ins: a model of a tiny tier is near chance on most of them, and none is a published benchmark.

Does not: run lm-eval (`repro.evaluate`), or use training text for a right answer.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from repro.data import eval_tasks
from repro.data.document import Document

TASKS: dict[str, eval_tasks.Maker] = {
    "general_next_word": eval_tasks.next_word,
    "general_definition": eval_tasks.definition,
    "math_arithmetic": eval_tasks.arithmetic,
    "math_sums": eval_tasks.sums,
    "multilingual_language": eval_tasks.language,
    "multilingual_continuation": eval_tasks.foreign_continuation,
    "code_next_line": eval_tasks.next_line,
    "code_identifier": eval_tasks.identifier,
    "commonsense_continuation": eval_tasks.continuation,
    "commonsense_speech": eval_tasks.speech,
}


def write_eval_items(
    folder: Path, training: Sequence[Document], validation: Sequence[Document]
) -> dict[str, int]:
    """Write `folder`/<task>.jsonl for every task that the held-out text allows; returns items by task.

    `training` is used only to know which words are common enough to ask for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    common = _common_words(training)
    counts = {}
    for name, make in TASKS.items():
        rng = random.Random(f"evaluation items {name}")
        items = list(islice(make(validation, common, rng), eval_tasks.ITEMS))
        if items:
            lines = (json.dumps(item, ensure_ascii=False) for item in items)
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
            counts[name] = len(items)
    return counts


def _common_words(training: Sequence[Document]) -> list[str]:
    """The 400 commonest words of five letters and more in English prose, commonest first."""
    counts: Counter[str] = Counter()
    for document in training:
        if document.category in ("crawl", "crawl_plus"):
            counts.update(re.findall(r"\b[a-z]{5,}\b", document.text))
    return [word for word, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:400]]
