"""Samples in the frozen order, as megatron-core's loaders take them.

megatron-core's own blends draw at random and know no phases. Here sample i of the run is sample i of repro's order
(repro.data.order), and the sequential sampler of megatron-core deals them out: micro batch k of replica r of R holds
samples (k R + r) m ... of the step, m samples a micro batch. So a step sees the same samples on any number of GPUs,
and the same as in the portable trainer.

Validation is repro's fixed set, dealt out one sequence a replica in turn; copies with weight 0 fill the last round.

Shapes: S tokens of a sequence; samples are int64 [S] (inputs, labels). Not here: the order (repro.cluster.order),
masks (all tokens count, attention is causal).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from repro.cluster.order import SparseOrder
from repro.data.training_data import TrainingData, ValidationData
from repro.portable.frozen import FrozenSegment


class FrozenOrder(Dataset):
    """Training samples of a run by number, for a sequential sampler that starts at the samples consumed so far."""

    def __init__(self, segment: FrozenSegment, data_dir: Path) -> None:
        """Raises ValueError when the data folder is not the run's or not intact."""
        self._data = TrainingData(data_dir, segment.content["data"], segment.schedule, order=SparseOrder)
        # One batch more than there is: a segment that resumes at the horizon's end asks for none, but the sampler
        # insists on having some.
        self._length = self._data.order.num_samples + segment.schedule["batch_sequences"]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """tokens, labels, position_ids int64 [S], loss_mask float32 [S] of sample `index`."""
        return as_sample(self._data.batch(index, 1)[0])


def as_sample(tokens: np.ndarray) -> dict[str, Tensor]:
    """[S + 1] tokens of a window -> what a model is given."""
    window = torch.from_numpy(np.asarray(tokens, dtype=np.int64))
    length = len(window) - 1
    return {
        "tokens": window[:-1].contiguous(),
        "labels": window[1:].contiguous(),
        "loss_mask": torch.ones(length),
        "position_ids": torch.arange(length),
    }


@dataclass(frozen=True)
class ValidationShare:
    """The validation sequences of one replica, in rounds that every replica takes part in.

    `categories`: names in the order of their numbers.
    """

    categories: tuple[str, ...]
    samples: tuple[tuple[int, float, np.ndarray], ...]  # (category, weight 1 or 0, [S + 1] tokens)

    @classmethod
    def of(
        cls, segment: FrozenSegment, data_dir: Path, *, replica: int, replicas: int, rows: int
    ) -> ValidationShare:
        """`rows`: sequences of a micro batch; every replica gets the same whole number of micro batches."""
        content = segment.content
        data = ValidationData(data_dir, content["data"], segment.schedule, content["validation"])
        names = tuple(data.num_sequences)
        every = [(names.index(name), 1.0, batch[0]) for name, batch in data.batches(1)]
        missing = -len(every) % (replicas * rows)
        every += [(every[0][0], 0.0, every[0][2])] * missing
        return cls(names, tuple(every[replica::replicas]))

    @property
    def num_sequences(self) -> int:
        return len(self.samples)

    def batches(self, rows: int) -> Iterator[dict[str, Tensor]]:
        """Micro batches of `rows` sequences; loss_mask is 0 on copies, `categories` [rows] tells the sums apart."""
        for first in range(0, len(self.samples), rows):
            chosen = self.samples[first : first + rows]
            samples = [as_sample(tokens) for _, _, tokens in chosen]
            batch = {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}
            weights = torch.tensor([weight for _, weight, _ in chosen])
            batch["loss_mask"] = batch["loss_mask"] * weights[:, None]
            batch["categories"] = torch.tensor([category for category, _, _ in chosen])
            yield batch


def sums_by_category(losses: Tensor, loss_mask: Tensor, categories: Tensor, num_categories: int) -> Tensor:
    """losses, loss_mask [rows, S], categories [rows] -> [num_categories, 2]: sum of losses, number of tokens."""
    sums = losses.new_zeros(num_categories, 2, dtype=torch.float64)
    rows = torch.stack([(losses * loss_mask).double().sum(1), loss_mask.double().sum(1)], 1)
    return sums.index_add_(0, categories.to(losses.device), rows)
