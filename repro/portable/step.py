"""One optimizer step and one validation pass: what is computed, without files or positions.

Shapes: B sequences of a micro batch, S tokens of a sequence. Micro batches are numbered within the step, and their
numbers, not the processes that work on them, choose the random streams: stochastic rounding and signs, the amax of
each tensor and the order of the sums are the same on any number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from repro.data.training_data import ValidationData
from repro.models import LanguageModel
from repro.models.loss import cross_entropy
from repro.portable.batches import Batches
from repro.portable.gradient_sum import GradientSum
from repro.portable.graph import Graphs, Replayed
from repro.portable.optimizer import Optimizer
from repro.portable.parallel import Ranks
from repro.recipes.context import RunContext

# The validation pass draws its own random streams: a micro batch number that training never uses.
_VALIDATION_MICROBATCH = -1


@dataclass(frozen=True)
class StepResult:
    """loss: mean over the batch, nats. grad_norm: before clipping. nonfinite: operands that held Inf or NaN."""

    loss: float
    grad_norm: float
    nonfinite: int


class Stepper:
    """Holds what a step needs; the caller says which step it is."""

    def __init__(
        self,
        model: LanguageModel,
        optimizer: Optimizer,
        context: RunContext,
        schedule: dict[str, Any],
        ranks: Ranks,
    ) -> None:
        """Raises ValueError when the micro batches of a step cannot be shared out equally to the processes."""
        self.model, self.optimizer, self.context, self.ranks = model, optimizer, context, ranks
        self._batch_sequences = schedule["batch_sequences"]
        self._micro = schedule["micro_batch_sequences"]
        self._micro_batches = self._batch_sequences // self._micro
        if self._micro_batches % ranks.size:
            raise ValueError(
                f"{ranks.size} processes cannot share the {self._micro_batches} micro batches of a step "
                f"(batch_sequences {self._batch_sequences}, micro_batch_sequences {self._micro}); use a number of "
                f"processes that divides {self._micro_batches}, or freeze the run with a smaller "
                "micro_batch_sequences"
            )
        self._parameters = list(model.parameters())
        self._device = self._parameters[0].device
        self._gradients = GradientSum(self._parameters, ranks)
        num_layers = len(model.quantizable_linears())
        self._graphs = Graphs(context, num_layers=num_layers, device=self._device)
        self._micro_batch = Replayed(self._loss_and_gradients, self._graphs)
        self._validation_loss = Replayed(lambda tokens: [self._loss(tokens)], self._graphs)

    @property
    def uses_graphs(self) -> bool:
        """Whether steps are replayed from CUDA graphs."""
        return self._graphs.is_on

    def train(self, step: int, batches: Batches, rate: float) -> StepResult:
        """Runs step `step` (its samples come from `batches`) with learning rate `rate` and updates the model."""
        self.context.step = step
        self.model.train()
        losses = []
        with self._graphs.run():
            for number in range(self.ranks.rank, self._micro_batches, self.ranks.size):
                self.context.microbatch = number
                tokens_BS = batches.get(step * self._batch_sequences + number * self._micro, self._micro)
                loss, *gradients = self._micro_batch(tokens_BS)
                losses.append(loss.clone())
                self._gradients.end_round(gradients)
            self._gradients.finish()
            grad_norm = self.optimizer.step(rate)
            # The step's only wait for the device.
            *own, norm = torch.stack([*losses, grad_norm]).tolist()
        by_rank = self.ranks.gather([*own, self.context.nonfinite])
        in_order = [values[number] for number in range(len(own)) for values in by_rank]
        return StepResult(_sum_fp32(in_order), norm, int(sum(values[-1] for values in by_rank)))

    def _loss_and_gradients(self, tokens_BS: torch.Tensor) -> list[torch.Tensor | None]:
        """A micro batch's part of the batch's loss, and that part's gradients in the order of the parameters."""
        loss = self._loss(tokens_BS) * (self._micro / self._batch_sequences)
        return [loss.detach(), *torch.autograd.grad(loss, self._parameters, allow_unused=True)]

    @torch.no_grad()
    def validate(self, step: int, data: ValidationData) -> tuple[float, dict[str, float]]:
        """Loss on the fixed validation set, in all and per category, with the precision that trains.

        The batches of the set are shared out to the processes; each number is added in the set's own order.
        """
        self.model.eval()
        self.context.step, self.context.microbatch = step, _VALIDATION_MICROBATCH
        batches = list(data.batches(self._micro))
        own = batches[self.ranks.rank :: self.ranks.size]
        with self._graphs.run():
            found = [
                self._validation_loss(torch.from_numpy(tokens).to(self._device))[0].clone()
                for _, tokens in own
            ]
            losses = torch.stack(found).tolist() if own else []
        missing = -(-len(batches) // self.ranks.size) - len(losses)  # every process tells equally many
        by_rank = self.ranks.gather(losses + [0.0] * missing)
        sums: dict[str, list[float]] = {}
        total, count = 0.0, 0
        for number, (category, tokens) in enumerate(batches):
            loss = by_rank[number % self.ranks.size][number // self.ranks.size] * len(tokens)
            of_category = sums.setdefault(category, [0.0, 0])
            of_category[0] += loss
            of_category[1] += len(tokens)
            total, count = total + loss, count + len(tokens)
        return total / count, {name: value / number for name, (value, number) in sums.items()}

    def _loss(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.model, tokens_BS[:, :-1], tokens_BS[:, 1:])


def _sum_fp32(values: Sequence[float]) -> float:
    """The sum of FP32 values in FP32, in order, as adding them on the device would give."""
    total = np.float32(0.0)
    for value in values:
        total += np.float32(value)
    return float(total)
