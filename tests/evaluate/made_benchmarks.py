"""Made items in the columns of Table 2's data sets, so that lm-eval's own tasks run without a network.

One item stands for a data set; the right answer is always "B" or the second choice, a number always 18.
"""

from __future__ import annotations

import datasets

CHOICES = ["red", "green", "blue", "black"]
LABELLED = {"text": CHOICES, "label": list("ABCD")}
SUBJECTS = [
    *[
        "biology",
        "business",
        "chemistry",
        "engineering",
        "health",
        "history",
        "law",
        "math",
        "other",
        "philosophy",
        "physics",
        "psychology",
    ],
    "computer science",
    "economics",
]
AREAS = ["Business", "Humanities", "Medical", "Other", "STEM", "Social Sciences"]
#: Copies of each item: lm-eval shows some as examples of another.
COPIES = 6

ITEMS = {
    "EleutherAI/hendrycks_math": {
        "problem": "9 + 9?",
        "level": "Level 1",
        "type": "Algebra",
        "solution": r"It is $\boxed{18}$.",
        "answer": "18",
    },
    "TIGER-Lab/MMLU-Pro": {
        "question": "?",
        "options": CHOICES,
        "answer": "B",
        "cot_content": "A: The answer is (B).",
    },
    "hails/agieval-math": {"query": "Q: 9 + 9? A:", "answer": "18"},
    "openai/gsm8k": {"question": "9 + 9?", "answer": "9 + 9 = 18\n#### 18"},
    "juletxara/mgsm": {
        "question": "9 + 9?",
        "answer": "Schritt-fuer-Schritt-Antwort: 9 + 9 = 18.",
        "answer_number": 18,
        "equation_solution": "",
    },
    "evalplus/humanevalplus": {
        "task_id": "HumanEval/0",
        "prompt": "def f(x):\n",
        "canonical_solution": "    return 2 * x\n",
        "entry_point": "f",
        "test": "def check(f):\n    assert f(9) == 18\n",
    },
    "evalplus/mbppplus": {
        "task_id": 2,
        "prompt": "Double it.",
        "code": "def f(x): return 2 * x",
        "test_list": ["assert f(9) == 18", "assert f(0) == 0", "assert f(1) == 2"],
    },
    "allenai/ai2_arc": {"id": "1", "question": "Which?", "choices": LABELLED, "answerKey": "B"},
    "Rowan/hellaswag": {
        "ctx_a": "A man sits.",
        "ctx_b": "he",
        "activity_label": "Sitting",
        "endings": CHOICES,
        "label": "1",
    },
    "allenai/openbookqa": {"id": "1", "question_stem": "Which", "choices": LABELLED, "answerKey": "B"},
    "baber/piqa": {"goal": "To paint", "sol1": "red", "sol2": "green", "label": 1},
    "allenai/winogrande": {"sentence": "The _ is green.", "option1": "sky", "option2": "leaf", "answer": "2"},
}


def rows(path: str, name: str | None) -> list[dict]:
    """Items of one data set (one of each subject, where lm-eval picks subjects out)."""
    if path == "cais/mmlu":
        return [{"question": "Which?", "subject": name, "choices": CHOICES, "answer": 1}]
    if "Global-MMLU" in path:
        options = dict(zip(("option_a", "option_b", "option_c", "option_d"), CHOICES, strict=True))
        return [{"question": "?", **options, "answer": "B", "subject_category": area} for area in AREAS]
    if path.startswith("hails/agieval") and path not in ITEMS:
        choices = [f"({letter}) {text}" for letter, text in zip("ABCD", CHOICES, strict=True)]
        return [{"query": "Q: Which? A:", "choices": choices, "gold": [1]}]
    if path == "HuggingFaceH4/MATH-500":
        path = "EleutherAI/hendrycks_math"
    assert path in ITEMS, f"no made items for {path} ({name})"
    if path == "TIGER-Lab/MMLU-Pro":
        return [{**ITEMS[path], "category": subject} for subject in SUBJECTS]
    return [ITEMS[path]]


def load_dataset(path: str, name: str | None = None, **_: object) -> datasets.DatasetDict:
    """In the place of `datasets.load_dataset`: every split that a task of lm-eval may ask for."""
    # Numbered, because lm-eval shows no example that equals the question.
    items = [{**row, "number": number} for number in range(COPIES) for row in rows(path, name)]
    splits = {split: datasets.Dataset.from_list(items) for split in ("train", "dev", "validation", "test")}
    if path == "juletxara/mgsm":  # its questions come without worked answers, its examples with them
        splits["test"] = datasets.Dataset.from_list([{**item, "answer": None} for item in items])
    return datasets.DatasetDict(splits)


class CodeEval:
    """In the place of Hugging Face's `code_eval` metric, which runs the code: only looks at it."""

    def compute(
        self, *, references: list[str], predictions: list[list[str]], k: list[int]
    ) -> tuple[dict, dict]:
        right = [any("2 * x" in text for text in texts) for texts in predictions]
        return {f"pass@{n}": sum(right) / len(right) for n in k}, {}
