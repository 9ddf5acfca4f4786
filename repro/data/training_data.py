"""Samples for training and the fixed validation set, read from prepared token files.

A sample is `sequence_length_tokens + 1` contiguous tokens of one category's documents, concatenated in file order
with an end-of-document token after each: inputs are all but the last token, targets all but the first. Window j of a
category starts at token j * sequence_length_tokens, so every token is a target once in a pass.

Shapes: B samples of a batch, S sequence length; batches are int64 [B, S + 1].

Does not: mask attention at document borders (neither does the paper say so), hold state (position is an argument,
so resuming needs no data state), or import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from repro.data.manifest import verify_data
from repro.data.order import PhaseBlend, SampleOrder
from repro.data.windows import Windows


class TrainingData:
    """Batches of one run, by sample index."""

    def __init__(
        self,
        data_dir: str | Path,
        data: Mapping[str, Any],
        schedule: Mapping[str, Any],
        *,
        order: type[SampleOrder] = SampleOrder,
    ) -> None:
        """
        Args:
            data_dir: folder written by `python -m repro.data`.
            data: `data` section of a frozen run: name, seed, phases [{until_tokens, blend: {category: weight}}].
            schedule: `schedule` section of a frozen run; sequence_length_tokens is used.
            order: how the order of the samples is worked out; all give the same.

        Raises:
            ValueError: a file is missing or has not its recorded size; the folder holds other data than the run
                names; a phase ends inside a sample; a category is missing or shorter than one sample.
        """
        self.data_dir = Path(data_dir)
        manifest = verify_data(self.data_dir)
        _check_name(self.data_dir, manifest, data)
        self.sequence_length_tokens = int(schedule["sequence_length_tokens"])
        phases = [_phase(phase, self.sequence_length_tokens) for phase in data["phases"]]
        categories = sorted({c for phase in phases for c, weight in phase.weights.items() if weight > 0})
        _check_categories(self.data_dir, manifest, categories)
        self._windows = _open(self.data_dir, manifest, categories, "train", self.sequence_length_tokens)
        num_windows = {category: len(windows) for category, windows in self._windows.items()}
        self.order = order(phases, num_windows, seed=int(data["seed"]))

    def batch(self, first_sample: int, num_samples: int) -> np.ndarray:
        """[num_samples, S + 1] int64 tokens of samples first_sample, first_sample + 1, ...

        Raises:
            ValueError: the samples reach past the end of the last phase.
        """
        numbers, windows = self.order.locate(first_sample, num_samples)
        batch = np.empty((num_samples, self.sequence_length_tokens + 1), dtype=np.int64)
        for number in np.unique(numbers):
            rows = numbers == number
            batch[rows] = self._windows[self.order.categories[number]].take(windows[rows])
        return batch


class ValidationData:
    """A fixed set of held-out samples: the same for every run that shares data, sequence length and first blend.

    The `sequences` of the set are shared out to the categories by the weights of the run's first phase (at least one
    each), and a category's share is its first contiguous windows. The first phase and not the whole run decides, so
    that runs with other horizons but the same blend are measured on the same text.
    """

    def __init__(
        self,
        data_dir: str | Path,
        data: Mapping[str, Any],
        schedule: Mapping[str, Any],
        validation: Mapping[str, Any],
    ) -> None:
        """
        Args:
            data_dir, data, schedule: as for TrainingData.
            validation: `validation` section of a frozen run; sequences is used.

        Raises:
            ValueError: as for TrainingData, or more sequences asked for than the held-out text has.
        """
        self.data_dir = Path(data_dir)
        manifest = verify_data(self.data_dir)
        _check_name(self.data_dir, manifest, data)
        self.sequence_length_tokens = int(schedule["sequence_length_tokens"])
        weights = {c: float(w) for c, w in sorted(data["phases"][0]["blend"].items()) if w > 0}
        _check_categories(self.data_dir, manifest, list(weights))
        self.num_sequences = share_out(int(validation["sequences"]), weights)
        self._windows = _open(
            self.data_dir, manifest, list(weights), "validation", self.sequence_length_tokens
        )
        for category, wanted in self.num_sequences.items():
            present = len(self._windows[category])
            if wanted > present:
                raise ValueError(
                    f"{self._windows[category].first_path}: {wanted} validation sequences of "
                    f"{self.sequence_length_tokens} tokens wanted for {category!r}, but there are {present}"
                )

    def batches(self, batch_sequences: int) -> Iterator[tuple[str, np.ndarray]]:
        """The whole set, always in the same order: (category, [B, S + 1] int64), B <= batch_sequences.

        A batch never mixes categories, so that the loss of each category can be told apart.
        """
        for category, count in self.num_sequences.items():
            for first in range(0, count, batch_sequences):
                windows = np.arange(first, min(first + batch_sequences, count))
                yield category, self._windows[category].take(windows)


def share_out(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers that sum to `total`, near the weights' shares (largest remainders), at least 1 each.

    Raises:
        ValueError: total is below the number of weights.
    """
    if total < len(weights):
        raise ValueError(
            f"validation.sequences: {total} is fewer than the {len(weights)} categories of the blend"
        )
    spare = total - len(weights)
    scale = sum(weights.values())
    exact = {category: spare * weight / scale for category, weight in weights.items()}
    counts = {category: 1 + int(share) for category, share in exact.items()}
    by_remainder = sorted(exact, key=lambda category: (-(exact[category] % 1), category))
    for category in by_remainder[: total - sum(counts.values())]:
        counts[category] += 1
    return counts


def _open(
    data_dir: Path, manifest: Mapping[str, Any], categories: list[str], split: str, length: int
) -> dict[str, Windows]:
    return {category: Windows(data_dir, manifest, category, split, length=length) for category in categories}


def _phase(phase: Mapping[str, Any], length: int) -> PhaseBlend:
    until_tokens = int(phase["until_tokens"])
    if until_tokens % length:
        raise ValueError(
            f"data.phases: until_tokens {until_tokens} is no multiple of the sequence length {length}"
        )
    return PhaseBlend(until_tokens // length, dict(phase["blend"]))


def _check_name(data_dir: Path, manifest: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    if manifest["name"] != data["name"]:
        raise ValueError(
            f"{data_dir}: holds the data {manifest['name']!r}, but the run asks for {data['name']!r}"
        )


def _check_categories(data_dir: Path, manifest: Mapping[str, Any], categories: list[str]) -> None:
    for category in categories:
        if category not in manifest["categories"]:
            raise ValueError(
                f"{data_dir}: the blend names category {category!r}; prepared are "
                f"{', '.join(sorted(manifest['categories']))}"
            )
