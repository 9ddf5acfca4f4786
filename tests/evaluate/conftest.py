"""A results folder with a trained run of three kept checkpoints, a tokenizer and evaluation items, all tiny."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from repro.evaluate.harness import go_offline

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "portable"))
go_offline()

import small_segment  # noqa: E402

from repro.evaluate import __main__ as command  # noqa: E402 - the libraries read the environment when imported
from repro.evaluate.settings import EvalSettings  # noqa: E402
from repro.experiments.model import ModelSpec  # noqa: E402
from repro.models import build_model  # noqa: E402
from repro.portable import checkpoint  # noqa: E402

VOCAB = 300
STEP_TOKENS = 100

MODEL = {**small_segment.MODEL, "vocab_size": VOCAB}

TASKS = [
    {
        "name": "word",
        "group": "general",
        "template": "multiple_choice",
        "data": "word.jsonl",
        "metric": "acc",
    },
    {"name": "order", "group": "general", "template": "word_order", "data": "word.jsonl", "metric": "acc"},
    {
        "name": "sum",
        "group": "math",
        "template": "generate",
        "data": "sum.jsonl",
        "metric": "exact_match",
        "filter": "first-answer",
        "max_new_tokens": 2,
    },
]


SETTINGS = {
    "name": "test",
    "source": "made for a test",
    "dtype": "float32",
    "batch_size": 8,
    "max_length_tokens": 64,
    "tasks": [{"chance": 0.25, "stands_for": "nothing", **task} for task in TASKS],
}


def write_items(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    choices = ["the cat sat down", "a dog ran far", "no bird sang here", "two fish swam off"]
    word = [{"question": f"Line {i}.", "choices": choices, "answer": i % 4} for i in range(20)]
    sums = [{"question": f"{i} + 1 =", "answer": str(i + 1)} for i in range(10)]
    for name, items in (("word", word), ("sum", sums)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))


def write_tokenizer(folder: Path) -> None:
    """Byte-level BPE with a few merges; a letter may join the one sign before it, as in "(self"."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[^\p{L}]?\p{L}+|[^\p{L}]"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["next(self), the cat sat down next(self)"] * 3, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    ).save_pretrained(folder)


def write_run(results: Path, *, status: str = "completed", end_tokens: int = 300) -> Path:
    """One run of one segment of 300 tokens, checkpoints at 100, 200, 300; returns its state folder."""
    schedule = {
        "horizon_tokens": 400,
        "start_tokens": 0,
        "end_tokens": 300,
        "batch_sequences": 1,
        "micro_batch_sequences": 1,
        "sequence_length_tokens": STEP_TOKENS,
        "warmup_tokens": 0,
        "decay_start_tokens": 400,
        "learning_rate_max": 1e-3,
        "learning_rate_min": 1e-5,
        "decay_shape": "linear",
    }
    changes = {
        "run": "test_run",
        "model": MODEL,
        "schedule": schedule,
        "checkpoints": {"every_tokens": 100, "keep_last": 2, "keep_tokens": [100, 200]},
    }
    path = small_segment.freeze(results / "runs" / "test_run" / "0", **changes)
    frozen = yaml.safe_load(path.read_text())
    done = {"status": status, "end_tokens": end_tokens, "run_hash": frozen["run_hash"]}
    path.with_name("done.json").write_text(json.dumps(done))
    state = results / "state" / frozen["run_hash"]
    model = build_model(ModelSpec.model_validate(MODEL), seed=1)
    for tokens in (100, 200, 300):
        with torch.no_grad():
            model.lm_head.weight.mul_(1.5)
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        meta = {"step": tokens // STEP_TOKENS, "tokens": tokens, "run_hash": frozen["run_hash"]}
        checkpoint.save(state, tensors, meta)
    return state


@pytest.fixture
def model_spec() -> ModelSpec:
    return ModelSpec.model_validate(MODEL)


@pytest.fixture
def settings() -> EvalSettings:
    return EvalSettings.model_validate(SETTINGS)


@pytest.fixture
def items_dir(tmp_path: Path) -> Path:
    write_items(tmp_path / "items")
    return tmp_path / "items"


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "tiny"
    write_tokenizer(folder / "data" / "tokenizer")
    write_items(folder / "data" / "evals")
    write_run(folder)
    return folder


@pytest.fixture
def evals(tmp_path: Path) -> Path:
    path = tmp_path / "evals.yaml"
    path.write_text(yaml.safe_dump(SETTINGS))
    return path


@pytest.fixture(autouse=True)
def _plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier that wants the checkpoints at 100 and 300 tokens of any run evaluated."""
    run = SimpleNamespace(evaluation_tokens=(100, 300), end_tokens=300)
    monkeypatch.setattr(command.plan, "load", lambda *_, **__: SimpleNamespace(run=lambda _: run))
