"""The project's own scorer gives lm-eval's numbers: same model, same items, every template and metric."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from repro.evaluate import __main__ as evaluate_module
from repro.evaluate import scorer as scorer_module
from repro.evaluate.harness import score_tasks
from repro.evaluate.loading import load_lm
from repro.evaluate.scorer import Scorer
from repro.evaluate.settings import EvalSettings
from repro.experiments.model import ModelSpec
from repro.experiments.recipe import load_recipe
from repro.models import build_model
from repro.models.export import save_pretrained
from repro.recipes import QuantizedLinear

WORDS = [
    *("the", "cat", "sat", "down", "a", "dog", "ran", "far", "no", "bird", "sang", "here", "two", "fish"),
    *("swam", "off", "12", "7", "next(self)", "é", "ß"),
]


def _phrase(rng: random.Random, least: int, most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


@pytest.fixture
def items(tmp_path: Path) -> Path:
    """40 items a kind: questions of all lengths, some longer than the model takes, some ending in blanks."""
    rng = random.Random(3)
    folder = tmp_path / "varied"
    folder.mkdir()
    choice = []
    for number in range(40):
        choices = list(dict.fromkeys(_phrase(rng, 2, 9) for _ in range(6)))[:4]
        question = _phrase(rng, 1, 40) + ("" if number % 3 else "  \n    ")
        choice.append({"question": question, "choices": choices, "answer": number % len(choices)})
    asked = [{"question": f"{_phrase(rng, 1, 10)} {n} + 1 =", "answer": rng.choice(WORDS)} for n in range(40)]
    for name, rows in (("choice", choice), ("asked", asked)):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    return folder


@pytest.fixture
def varied() -> EvalSettings:
    tasks = [
        {"name": "acc", "template": "multiple_choice", "data": "choice.jsonl", "metric": "acc"},
        {
            "name": "norm",
            "template": "multiple_choice",
            "data": "choice.jsonl",
            "metric": "acc_norm",
            "limit": 31,
        },
        {
            "name": "bare",
            "template": "multiple_choice",
            "data": "choice.jsonl",
            "metric": "acc",
            "target_delimiter": "",
        },
        {
            "name": "order",
            "template": "word_order",
            "data": "choice.jsonl",
            "metric": "acc",
            "context_characters": 20,
        },
        {
            "name": "whole",
            "template": "word_order",
            "data": "asked.jsonl",
            "metric": "acc",
            "target_delimiter": "",
        },
        {
            "name": "write",
            "template": "generate",
            "data": "asked.jsonl",
            "metric": "exact_match",
            "filter": "first-answer",
            "max_new_tokens": 4,
        },
    ]
    shared = {"group": "general", "chance": 0.25, "stands_for": "nothing"}
    return EvalSettings.model_validate(
        {
            "name": "test",
            "source": "made for a test",
            "dtype": "float32",
            "batch_size": 8,
            "max_length_tokens": 100,
            "tasks": [shared | task for task in tasks],
        }
    )


def test_scores_equal_those_of_lm_eval(items, varied, tokenizer_dir, model_spec, tmp_path):
    model = build_model(model_spec, seed=5)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # opinions instead of near ties
    folder = tmp_path / "folder"
    folder.mkdir()
    save_pretrained(model, model_spec, folder, tokenizer_dir=tokenizer_dir)
    theirs = score_tasks(load_lm(folder, varied, device="cpu"), varied.tasks, data_dir=items)
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    scorer = Scorer(model, load_recipe("configs/recipes/bf16.yaml"), tokenizer, varied, device="cpu")
    for task in varied.tasks:
        ours = scorer.score(task, items)
        assert ours.value == theirs[task.name].value, task.name
        assert ours.stderr == pytest.approx(theirs[task.name].stderr), task.name
        assert ours.num_items == theirs[task.name].num_items
    assert len({round(score.value, 3) for score in theirs.values()}) > 2, (
        "a test of equal scores shows nothing"
    )


def scorer_of(varied: EvalSettings, tokenizer_dir: Path, model_spec: ModelSpec) -> Scorer:
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    recipe = load_recipe("configs/recipes/bf16.yaml")
    return Scorer(build_model(model_spec, seed=5), recipe, tokenizer, varied, device="cpu")


def test_of_equal_choices_the_first_is_taken(items, varied, tokenizer_dir, model_spec, monkeypatch):
    scorer = scorer_of(varied, tokenizer_dir, model_spec)
    monkeypatch.setattr(scorer, "_log_probabilities", lambda asked: [-1.0] * len(asked))
    rows = [{"question": f"{n}", "choices": ["a", "b"], "answer": int(n >= 3)} for n in range(4)]
    (items / "choice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert scorer.score(varied.tasks[0], items).value == 0.75


@torch.no_grad()
def test_long_questions_keep_as_much_of_their_end_as_the_model_takes(
    items, varied, tokenizer_dir, model_spec, monkeypatch
):
    """max_length_tokens go in: the last token of a choice is only told, and what is written needs room."""
    scorer = scorer_of(varied, tokenizer_dir, model_spec)
    given, hidden = [], scorer._hidden

    def watched(sequences: list[list[int]]) -> torch.Tensor:
        given.extend(map(list, sequences))
        return hidden(sequences)

    monkeypatch.setattr(scorer, "_hidden", watched)
    question = [1 + number % 50 for number in range(120)]
    scorer._log_probabilities([(question, [7, 8, 9])])
    assert given == [[*question[-98:], 7, 8]]
    given.clear()
    asked = {"question": "the cat sat down " * 40, "answer": "no"}
    (items / "asked.jsonl").write_text(json.dumps(asked) + "\n", encoding="utf-8")
    scorer.score(varied.tasks[-1], items)
    assert [len(sequence) for sequence in given] == [96, 97, 98, 99]


def test_an_answer_ends_with_the_line_or_the_document(varied, tokenizer_dir, model_spec):
    scorer = scorer_of(varied, tokenizer_dir, model_spec)
    number, end = scorer._encode("12"), scorer._encode("<|endoftext|>")
    assert scorer._answer([*number, *end, *scorer._encode("7")]) == "12"
    assert scorer._answer([*end, *number]) == scorer._answer(scorer._encode("\n12")) == "[invalid]"


def test_upper_and_lower_case_count_alike(items, varied, tokenizer_dir, model_spec, monkeypatch):
    scorer = scorer_of(varied, tokenizer_dir, model_spec)
    asked = [{"question": "one", "answer": "The"}, {"question": "two", "answer": "dog"}]
    (items / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked), encoding="utf-8")
    monkeypatch.setattr(scorer, "_answer", lambda _: "the")
    assert scorer.score(varied.tasks[-1], items).value == 0.5


@pytest.mark.parametrize(("dtype", "kind"), [("float32", torch.nn.Linear), ("bfloat16", QuantizedLinear)])
def test_the_settings_dtype_is_that_of_the_products(dtype, kind, varied, tokenizer_dir, model_spec):
    """Torch's own in FP32; in bfloat16 the layers as they train in BF16, in every block."""
    settings = varied.model_copy(update={"dtype": dtype})
    model = scorer_of(settings, tokenizer_dir, model_spec)._model
    layers = [model.get_submodule(name) for name, _, _ in model.quantizable_linears()]
    assert {type(layer) for layer in layers} == {kind}
    if dtype == "bfloat16":
        assert {line["format"] for layer in layers for line in layer.describe()} == {"bf16"}


@torch.no_grad()
def test_log_probabilities_of_bfloat16_are_of_single_precision(varied, tokenizer_dir, model_spec):
    """Near -4 BF16 has steps of 1/32: choices would be equal, and the first one taken, that are not."""
    settings = varied.model_copy(update={"dtype": "bfloat16"})
    scorer = scorer_of(settings, tokenizer_dir, model_spec)
    found = scorer._log_probabilities([([3, 1, 4, 1, 5], [token]) for token in range(2, 40)])
    in_bfloat16 = [torch.tensor(value).bfloat16().item() == value for value in found]
    assert not all(in_bfloat16), "every log-probability is a number of BF16"


def test_bfloat16_scores_lie_near_those_of_float32(items, varied, tokenizer_dir, model_spec):
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    values = {}
    for dtype in ("float32", "bfloat16"):
        model = build_model(model_spec, seed=5)
        settings = varied.model_copy(update={"dtype": dtype})
        scorer = Scorer(model, load_recipe("configs/recipes/nvfp4.yaml"), tokenizer, settings, device="cpu")
        values[dtype] = [scorer.score(task, items).value for task in settings.tasks[:3]]
    assert values["bfloat16"] == pytest.approx(values["float32"], abs=0.2)


def test_ctrl_c_ends_in_one_line(results, evals, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(scorer_module, "score_checkpoint", stopped)
    assert scorer_module.main(["test_run", "--results", str(results), "--evals", str(evals)]) == 130
    assert capsys.readouterr().err == "python -m repro.evaluate.scorer: stopped; nothing is kept of it\n"
    assert not (results / "evaluations").exists()


@pytest.mark.parametrize(
    ("device", "told"), [("foo", "device 'foo': cpu, cuda or cuda:N"), ("cuda", "no CUDA GPU here")]
)
def test_a_device_that_is_not_here_is_refused_in_one_line(results, evals, monkeypatch, capsys, device, told):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = ["--results", str(results), "--evals", str(evals), "--device", device]
    for main in (scorer_module.main, evaluate_module.main):
        assert main(["test_run", *options]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


def test_a_published_benchmark_is_refused(varied, tokenizer_dir, model_spec):
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    model = build_model(model_spec, seed=5)
    scorer = Scorer(model, load_recipe("configs/recipes/bf16.yaml"), tokenizer, varied, device="cpu")
    task = varied.tasks[0].model_copy(update={"template": None, "data": None, "harness_tasks": ("mmlu",)})
    with pytest.raises(ValueError, match="needs lm-eval"):
        scorer.score(task, Path())
