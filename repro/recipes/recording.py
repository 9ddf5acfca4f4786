"""The random streams of one captured computation, in device tensors that are written anew before each replay.

Sections 4.2 and 4.4 of arXiv 2509.25149: stochastic rounding draws fresh bits, and the Hadamard transform of some
recipes fresh signs, for every micro batch. A CUDA graph repeats the launches that it recorded with their arguments,
so a number that changes from replay to replay must lie in memory. While a computation is recorded, `RunContext` asks
here for the memory of its seeds and signs; before a replay `fill` writes, in one copy, what the context derives for
the step and micro batch at hand: the same numbers as without a graph.

Shapes: L quantised layers, at most 6 L seeds and 3 L sign vectors.

Does not: capture or replay (repro.portable.graph), or derive seeds (context.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from repro.numerics.hadamard import SIZES
from repro.numerics.random_bits import seed_tensor

if TYPE_CHECKING:
    from repro.recipes.context import RunContext

#: int64 words of a row: rows begin at multiples of 16 bytes, which compiled kernels count on.
_ROW = 2


class Recording:
    """Seeds and fresh signs that a computation asked for, by the key it asked with."""

    def __init__(self, num_layers: int, device: torch.device) -> None:
        """num_layers: quantised layers of the model; bounds how many streams can be asked for."""
        self._seed_rows = torch.zeros(6 * num_layers, _ROW, dtype=torch.int64, device=device)
        self._sign_rows = torch.ones(3 * num_layers, max(SIZES), dtype=torch.float32, device=device)
        self._seed_keys: dict[tuple[str, str, str], int] = {}
        self._sign_keys: dict[tuple[int, str, str], int] = {}

    def seed(self, context: RunContext, layer: str, gemm: str, operand: str) -> Tensor:
        """int64 [1] on the device, the context's seed when asked for the first time and after `fill`."""
        key = layer, gemm, operand
        row = self._seed_keys.get(key)
        if row is None:
            row = self._seed_keys[key] = len(self._seed_keys)
            self._seed_rows[row, :1] = seed_tensor([context.derived_seed(*key)])
        return self._seed_rows[row, :1]

    def signs(self, context: RunContext, size: int, layer: str, gemm: str) -> Tensor:
        """float32 [size] on the device, the context's fresh signs when asked for the first time and after `fill`."""
        key = size, layer, gemm
        row = self._sign_keys.get(key)
        if row is None:
            row = self._sign_keys[key] = len(self._sign_keys)
            self._sign_rows[row, :size] = context.fresh_signs(*key)
        return self._sign_rows[row, :size]

    def fill(self, context: RunContext) -> None:
        """Writes the streams of the context's step and micro batch; does not wait for the device."""
        if self._seed_keys:
            words = torch.zeros(len(self._seed_keys), _ROW, dtype=torch.int64)
            words[:, 0] = seed_tensor([context.derived_seed(*key) for key in self._seed_keys])
            _send(words, self._seed_rows[: len(words)])
        if self._sign_keys:
            signs = torch.ones(len(self._sign_keys), self._sign_rows.shape[1])
            for key, row in self._sign_keys.items():
                signs[row, : key[0]] = context.fresh_signs(*key)
            _send(signs, self._sign_rows[: len(signs)])


def _send(host: Tensor, device: Tensor) -> None:
    """By way of pinned memory: PyTorch hands that out again only after the copy from it has run."""
    device.copy_(host.pin_memory() if device.is_cuda else host, non_blocking=True)
