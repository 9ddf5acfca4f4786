"""The project's own scorer of local tasks: the same questions, the same rules and the same numbers as lm-eval.

    python -m repro.evaluate.scorer RUN --results results/proxy --evals configs/evals/proxy.yaml

For machines that have torch and tokenizers but not lm-eval; it writes the same evaluations/RUN.csv. It reads the same
items (local_tasks.task_items) and follows lm-eval's rules for them, which the tests hold equal on random weights:

    multiple choice   log-probability of `delimiter + choice` after the question, encoded apart; acc takes the
                      largest, acc_norm the largest per character of the choice; of equal ones the first
    generate          greedy decoding to the end of the line or max_new_tokens; right when the first number or word is
                      the answer, upper and lower case alike
    standard error    sample standard deviation (n - 1) / sqrt(n)

Sequences are padded on the right, where a causal model does not see it. Questions longer than max_length_tokens lose
their beginning. Precision: FP32 for `dtype: float32`; for bfloat16 the model as it trains in BF16 (products of BF16
operands accumulated in FP32; norms, scan and softmax inside in FP32), log-probabilities in FP32.

Shapes: B sequences of a batch, S tokens, V vocabulary.

Does not: published benchmarks (lm-eval's registry), few-shot examples, or run code.
"""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from repro.cluster.finished import load_model
from repro.evaluate.harness import Score
from repro.evaluate.local_tasks import task_items
from repro.evaluate.settings import EvalSettings, EvalTask, load_settings
from repro.evaluate.table import COLUMNS, rows_of_checkpoint
from repro.experiments import plan
from repro.experiments.recipe import Recipe
from repro.models import LanguageModel
from repro.options import OneLineParser
from repro.portable import gpu
from repro.portable.csv_file import write_csv
from repro.portable.finished import CheckpointPoint, choose, run_checkpoints
from repro.recipes.apply import apply_recipe
from repro.recipes.context import RunContext

#: The end-of-document token stands where a question is empty, as lm-eval's prefix token.
_PREFIX = 0
_FIRST_ANSWER = re.compile(r"(-?[0-9]+|[^\W\d_]+)")

log = logging.getLogger("repro.evaluate.scorer")


class Scorer:
    """A checkpoint's model with its tokenizer, ready to answer tasks."""

    def __init__(
        self, model: LanguageModel, recipe: Recipe, tokenizer: Any, settings: EvalSettings, *, device: str
    ) -> None:
        """The model's linear layers are swapped for their BF16 form when the settings ask for bfloat16."""
        self._settings, self._tokenizer, self._device = settings, tokenizer, torch.device(device)
        self._model = model.to(device).eval()
        self._dtype = getattr(torch, settings.dtype)
        if settings.dtype == "bfloat16":
            if self._device.type == "cuda":
                gpu.prepare_model(self._model, fuse=False)
            apply_recipe(self._model, recipe.in_bf16(), context=RunContext(0))

    @torch.no_grad()
    def score(self, task: EvalTask, data_dir: Path) -> Score:
        """One local task. Raises ValueError as task_items, or for a task that is not local."""
        if task.template is None or task.data is None:
            raise ValueError(f"{task.name}: one of lm-eval's own tasks; it needs lm-eval")
        items = task_items(
            data_dir / task.data,
            template=task.template,
            limit=task.limit,
            context_characters=task.context_characters,
        )
        right = self._generate(task, items) if task.template == "generate" else self._choose(task, items)
        mean = sum(right) / len(right)
        variance = sum((value - mean) ** 2 for value in right) / max(1, len(right) - 1)
        return Score(value=mean, stderr=math.sqrt(variance / len(right)), num_items=len(right))

    def _choose(self, task: EvalTask, items: Sequence[dict[str, Any]]) -> list[float]:
        asked = []
        for item in items:
            for choice in item["choices"]:
                asked.append(self._encode_pair(item["question"], f"{task.target_delimiter}{choice}"))
        sums = self._log_probabilities(asked)
        right, start = [], 0
        for item in items:
            choices = item["choices"]
            scores = sums[start : start + len(choices)]
            start += len(choices)
            if task.metric == "acc_norm":
                scores = [score / len(choice) for score, choice in zip(scores, choices, strict=True)]
            elif task.metric != "acc":
                raise ValueError(f"{task.name}: this scorer knows acc and acc_norm, not {task.metric!r}")
            right.append(float(scores.index(max(scores)) == item["answer"]))
        return right

    def _encode_pair(self, question: str, answer: str) -> tuple[list[int], list[int]]:
        """(question, answer) in tokens; blanks at the question's end belong to the answer."""
        num_blanks = len(question) - len(question.rstrip())
        if question == "":
            tokens = self._encode(answer)
            return ([_PREFIX], tokens) if tokens[0] != _PREFIX else (tokens[:1], tokens[1:])
        if num_blanks:
            question, answer = question[:-num_blanks], question[-num_blanks:] + answer
        return self._encode(question) or [_PREFIX], self._encode(answer)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _log_probabilities(self, asked: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """Sum of the answers' log-probabilities, in the order asked; computed longest first."""
        limit = self._settings.max_length_tokens + 1
        whole = [(question + answer)[-limit:] for question, answer in asked]
        order = sorted(range(len(asked)), key=lambda index: -len(whole[index]))
        sums = [0.0] * len(asked)
        for first in range(0, len(order), self._settings.batch_size):
            batch = order[first : first + self._settings.batch_size]
            hidden = self._hidden([whole[index][:-1] for index in batch])
            for row, index in enumerate(batch):
                answer = asked[index][1][-len(whole[index]) + 1 :]
                end = len(whole[index]) - 1
                logits = self._logits(hidden[row, end - len(answer) : end])
                picked = functional.log_softmax(logits, dim=-1)
                sums[index] = float(picked.gather(1, self._tensor([answer]).T).sum())
        return sums

    def _generate(self, task: EvalTask, items: Sequence[dict[str, Any]]) -> list[float]:
        assert task.max_new_tokens is not None, task.name
        room = self._settings.max_length_tokens - task.max_new_tokens
        right = []
        for first in range(0, len(items), self._settings.batch_size):
            batch = items[first : first + self._settings.batch_size]
            texts = [self._encode(item["question"])[-room:] for item in batch]
            lengths = [len(text) for text in texts]
            for _ in range(task.max_new_tokens):
                hidden = self._hidden(texts)
                last = torch.stack([hidden[row, len(text) - 1] for row, text in enumerate(texts)])
                for text, token in zip(texts, self._logits(last).argmax(-1).tolist(), strict=True):
                    text.append(token)
            for item, text, length in zip(batch, texts, lengths, strict=True):
                right.append(float(self._answer(text[length:]).lower() == item["answer"].lower()))
        return right

    def _answer(self, tokens: list[int]) -> str:
        """The first number or word of what was written before the end of the line or of the document."""
        if _PREFIX in tokens:
            tokens = tokens[: tokens.index(_PREFIX)]
        line = self._tokenizer.decode(tokens, skip_special_tokens=True).split("\n")[0]
        found = _FIRST_ANSWER.search(line)
        return found[0] if found else "[invalid]"

    def _hidden(self, sequences: Sequence[list[int]]) -> Tensor:
        longest = max(map(len, sequences))
        padded = [list(sequence) + [_PREFIX] * (longest - len(sequence)) for sequence in sequences]
        return self._model.hidden(self._tensor(padded))

    def _logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, H] -> FP32 logits [n, V]; the head's product takes operands of the settings' dtype."""
        return (hidden.to(self._dtype) @ self._model.lm_head.weight.to(self._dtype).T).float()

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self._device)


def score_checkpoint(
    point: CheckpointPoint, settings: EvalSettings, *, data_dir: Path, tokenizer_dir: Path, device: str
) -> dict[str, Score]:
    """Scores of all tasks at one checkpoint, by task name.

    Raises:
        ValueError: the tokenizer, the items or the checkpoint are missing or damaged.
    """
    from tokenizers import Tokenizer

    path = tokenizer_dir / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{path}: missing; prepare the data again")
    scorer = Scorer(
        load_model(point),
        Recipe.model_validate(point.frozen["recipe"]),
        Tokenizer.from_file(str(path)),
        settings,
        device=device,
    )
    return {task.name: scorer.score(task, data_dir) for task in settings.tasks}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 2 with one line on stderr for anything the user can mend, 130 when stopped (Ctrl-C)."""
    parser = OneLineParser(prog="python -m repro.evaluate.scorer", description=__doc__.split("\n")[0])
    parser.add_argument("run", help="name of a trained run, e.g. 12b_nvfp4")
    parser.add_argument("--results", type=Path, required=True, help="results folder of the tier")
    parser.add_argument("--evals", type=Path, required=True, help="configs/evals/<tier>.yaml")
    parser.add_argument("--configs", type=Path, default=Path("configs"))
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: cuda where there is one")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)
    data_dir = chosen.results / "data"
    try:
        device = gpu.device_of(chosen.device)
        settings = load_settings(chosen.evals)
        kept = run_checkpoints(chosen.results, chosen.run)
        run = plan.load(kept[0].frozen["tier"], configs_dir=chosen.configs).run(chosen.run)
        rows = []
        for point in choose(kept, run.evaluation_tokens or (run.end_tokens,)):
            scores = score_checkpoint(
                point,
                settings,
                data_dir=data_dir / "evals",
                tokenizer_dir=data_dir / "tokenizer",
                device=device,
            )
            rows += rows_of_checkpoint(point, settings.tasks, scores)
            log.info("%s: checkpoint at %.1f %% of the horizon scored", chosen.run, 100 * point.fraction)
        write_csv(chosen.results / "evaluations" / f"{chosen.run}.csv", rows, columns=COLUMNS)
    except (ValueError, OSError) as error:  # OSError: disk full, no permission
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: stopped; nothing is kept of it", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
