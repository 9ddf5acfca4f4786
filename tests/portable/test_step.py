"""One step against plain PyTorch: which samples it learns from, its loss and gradients, and validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from small_segment import BATCH, MODEL, SEQUENCE, VOCAB
from torch import nn

from repro.experiments.model import ModelSpec
from repro.models import LanguageModel, build_model
from repro.portable.batches import Batches
from repro.portable.optimizer import Optimizer
from repro.portable.parallel import Ranks
from repro.portable.step import Stepper
from repro.recipes import RunContext

MICRO = 2
STEP = 3
OPTIMIZER = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_grad_norm": 1e9}


def sample(number: int) -> np.ndarray:
    """[S + 1] int64: the sample of this number."""
    return np.random.default_rng(number).integers(0, VOCAB, SEQUENCE + 1)


class Samples:
    """Every sample by its number, as training data gives them."""

    def batch(self, first: int, count: int) -> np.ndarray:
        return np.stack([sample(number) for number in range(first, first + count)])


@dataclass
class Validation:
    """Batches of different sizes and of two categories; notes the streams that were drawn from meanwhile."""

    context: RunContext
    streams: list[tuple[int, int]] = field(default_factory=list)

    def batches(self, _most: int):
        for category, numbers in (("code", [100, 101, 102]), ("code", [103]), ("prose", [104])):
            self.streams.append((self.context.step, self.context.microbatch))
            yield category, np.stack([sample(number) for number in numbers])


class TwoProcesses(Ranks):
    """Process 0 of two. The other one says what this one does, and that five of its operands were not finite."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values), [*values[:-1], 5.0]]

    def exchange(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        received.copy_(sent)

    def collect(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        whole.copy_(part.repeat(self.size))


class WatchedOptimizer(Optimizer):
    """Keeps the gradients that it is given."""

    def step(self, learning_rate: float) -> torch.Tensor:
        self.given = [p.grad.clone() for group in self._groups for p in group.parameters.values()]
        return super().step(learning_rate)


def model() -> LanguageModel:
    return build_model(ModelSpec.model_validate(MODEL), seed=1)


def stepper(ranks: Ranks | None = None) -> Stepper:
    learner = model()
    schedule = {"batch_sequences": BATCH, "micro_batch_sequences": MICRO}
    return Stepper(learner, WatchedOptimizer(learner, OPTIMIZER), RunContext(1), schedule, ranks or Ranks())


def loss_of(learner: LanguageModel, numbers: range | list[int]) -> torch.Tensor:
    """Mean over all tokens of these samples: each token is told from those before it."""
    tokens = torch.from_numpy(np.stack([sample(number) for number in numbers]))
    logits = learner.lm_head(learner.hidden(tokens[:, :-1]))
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def test_a_step_learns_from_its_own_batch_as_one_batch_would() -> None:
    ours = stepper()
    batches = Batches(Samples(), torch.device("cpu"), stride=MICRO, end=100)
    result = ours.train(STEP, batches, 1e-2)

    theirs = model()
    loss = loss_of(theirs, range(STEP * BATCH, (STEP + 1) * BATCH))
    loss.backward()
    reference = WatchedOptimizer(theirs, OPTIMIZER)
    norm = reference.step(1e-2)
    assert result.loss == pytest.approx(loss.item(), rel=1e-6)
    assert result.loss == float(np.float32(result.loss)), "the parts are added in FP32, as a device would"
    assert result.grad_norm == pytest.approx(norm.item(), rel=1e-5)
    for one, other in zip(ours.optimizer.given, reference.given, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


def test_non_finite_operands_of_other_processes_count() -> None:
    ours = stepper(TwoProcesses())
    result = ours.train(STEP, Batches(Samples(), torch.device("cpu"), stride=BATCH, end=100), 1e-2)
    assert result.nonfinite == 5


def test_the_loss_of_the_validation_set_is_the_mean_over_its_samples() -> None:
    ours = stepper()
    data = Validation(ours.context)
    loss, by_category = ours.validate(STEP, data)
    expected = {"code": loss_of(ours.model, [100, 101, 102, 103]), "prose": loss_of(ours.model, [104])}
    assert by_category == pytest.approx({name: value.item() for name, value in expected.items()}, rel=1e-6)
    assert loss == pytest.approx(loss_of(ours.model, [100, 101, 102, 103, 104]).item(), rel=1e-6)


def test_validation_draws_from_no_stream_of_training() -> None:
    ours = stepper()
    data = Validation(ours.context)
    ours.validate(STEP, data)
    assert {step for step, _ in data.streams} == {STEP}
    assert all(number not in range(BATCH // MICRO) for _, number in data.streams)
