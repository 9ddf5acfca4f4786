"""Local tasks: reading items, making word orders, choosing which items are asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro.evaluate.local_tasks import read_items, reorder, task_items

CHOICE = {"question": "q", "choices": ["a", "b"], "answer": 1}


def _write(path: Path, *items: object) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


@pytest.mark.parametrize(
    ("template", "item", "message"),
    [
        ("multiple_choice", {"question": "q", "answer": 0}, "lacks choices"),
        ("multiple_choice", {"question": "q", "choices": ["a"], "answer": 0}, "two or more different"),
        ("multiple_choice", {"question": "q", "choices": ["a", "a"], "answer": 0}, "two or more different"),
        (
            "multiple_choice",
            {"question": "q", "choices": ["a", "b"], "answer": 2},
            "an index into the 2 choices",
        ),
        (
            "multiple_choice",
            {"question": "q", "choices": ["a", "b"], "answer": "b"},
            "an index into the 2 choices",
        ),
        (
            "multiple_choice",
            {"question": "  ", "choices": ["a", "b"], "answer": 0},
            "`question` must be text",
        ),
        ("generate", {"question": "q", "answer": 3}, "`answer` must be text"),
        ("generate", {"question": "q"}, "lacks answer"),
        ("generate", [1], "not a JSON object"),
    ],
)
def test_bad_item_is_named_with_file_and_line(
    template: str, item: object, message: str, tmp_path: Path
) -> None:
    good = CHOICE if template == "multiple_choice" else {"question": "q", "answer": "a"}
    path = _write(tmp_path / "items.jsonl", good, item)
    with pytest.raises(ValueError, match=f"items.jsonl, line 2: .*{message}"):
        read_items(path, template=template)


def test_empty_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"items\.jsonl: no such evaluation data"):
        read_items(tmp_path / "items.jsonl", template="generate")
    with pytest.raises(ValueError, match=r"items\.jsonl: holds no item"):
        read_items(_write(tmp_path / "items.jsonl"), template="generate")


def test_word_order_offers_the_right_answer_and_three_other_orders_of_its_words() -> None:
    item = {"question": "Once there was", "choices": ["x", "a king of all the land"], "answer": 1}
    made = reorder(item, context_characters=None)
    assert made is not None
    assert made["question"] == "Once there was"
    assert made["choices"][made["answer"]] == "a king of all the land"
    assert len(set(made["choices"])) == 4
    assert {tuple(sorted(choice.split())) for choice in made["choices"]} == {
        tuple(sorted(["a", "king", "of", "all", "the", "land"]))
    }
    assert made == reorder(item, context_characters=None), "the same text gave another item"


def test_right_answers_stand_at_every_place() -> None:
    places = {
        reorder(
            {"question": "q", "choices": [f"one two three {i}", "x"], "answer": 0}, context_characters=None
        )["answer"]
        for i in range(40)
    }
    assert places == {0, 1, 2, 3}


def test_word_order_of_a_sum_is_the_whole_sentence_without_context() -> None:
    made = reorder({"question": "Q: 3 + 4?\nA:", "answer": "7"}, context_characters=None)
    assert made is not None
    assert made["question"] == ""
    assert made["choices"][made["answer"]] == "Q: 3 + 4? A: 7"


@pytest.mark.parametrize("text", ["word", "two words", "the the the the", ""])
def test_words_with_fewer_than_four_orders_make_no_item(text: str) -> None:
    assert (
        reorder({"question": "q", "choices": [text, "other"], "answer": 0}, context_characters=None) is None
    )


def test_context_is_cut_at_a_word_and_never_in_one() -> None:
    item = {"question": "the quick brown fox", "choices": ["a b c d", "x"], "answer": 0}
    assert reorder(item, context_characters=12)["question"] == "brown fox"
    assert reorder(item, context_characters=100)["question"] == "the quick brown fox"


def test_limit_takes_items_at_even_distances(tmp_path: Path) -> None:
    items = [{"question": str(i), "answer": "a"} for i in range(10)]
    path = _write(tmp_path / "items.jsonl", *items)
    chosen = task_items(path, template="generate", limit=4, context_characters=None)
    assert [item["question"] for item in chosen] == ["0", "2", "5", "7"]
    with pytest.raises(ValueError, match="has 10 items for generate, 11 are asked for"):
        task_items(path, template="generate", limit=11, context_characters=None)
