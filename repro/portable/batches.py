"""Batches on their way to the device: read ahead and copied without a wait on a GPU, read in place on a CPU.

Shapes: B samples, S tokens of a sequence; batches are int64 [B, S + 1] on the device. Which samples a batch holds is
told by its first sample alone (repro.data.order), so reading ahead is guessing the next call and cannot change a
number: a wrong guess costs the time of reading, nothing else.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Source(Protocol):
    """Samples by number, e.g. repro.data.training_data.TrainingData."""

    def batch(self, first_sample: int, num_samples: int) -> np.ndarray: ...


class Batches:
    """Gives batches of `source` on `device`; on a GPU the next one is read while this one is worked on."""

    def __init__(self, source: Source, device: torch.device, *, stride: int, end: int) -> None:
        """stride: samples from one call's first sample to the next one's; none from `end` on is read ahead."""
        self._source, self._device = source, device
        self._stride, self._end = stride, end
        self._ahead: dict[int, Future[Tensor]] = {}
        self.waited_seconds = 0.0
        """In all calls of `get`, for samples: no more than this did a GPU stand still for want of data."""
        self._reader = ThreadPoolExecutor(1, "batches") if device.type == "cuda" else None

    def get(self, first: int, count: int) -> Tensor:
        """[count, S + 1] int64 on the device: samples first, first + 1, ..."""
        started = time.perf_counter()
        if self._reader is None:
            tokens = torch.from_numpy(self._source.batch(first, count))
            self.waited_seconds += time.perf_counter() - started
            return tokens.to(self._device)
        coming = self._ahead.pop(first, None)
        tokens = coming.result() if coming else self._pinned(first, count)
        self.waited_seconds += time.perf_counter() - started
        following = first + self._stride
        self._ahead = {key: value for key, value in self._ahead.items() if key == following}
        if following not in self._ahead and following + count <= self._end:
            self._ahead[following] = self._reader.submit(self._pinned, following, count)
        # Pinned memory is reused only after the copies from it have run: torch's host allocator waits for them.
        return tokens.to(self._device, non_blocking=True)

    def _pinned(self, first: int, count: int) -> Tensor:
        return torch.from_numpy(self._source.batch(first, count)).pin_memory()
