"""Passes of a GPU that write codes: what a format's tensors are stored as, and what the card's FP8 product reads.

    stored/FORMAT/TILE          x -> packed codes and block scales along its rows (repro.numerics.make_packed)
    stored/FORMAT/TILE/pair     both copies of one tensor, by rows and by columns; "/fp32" of a weight
    stored/fp8_block/...        as the FP8 baseline trains on cards with a block-scaled FP8 product (Hopper): by rows;
                                both copies; both of an FP32 weight in square blocks

The passes of `passes.py` write the numbers that an emulated product multiplies; these write bytes. Floor: the bytes
that must move, x read once by each pass, codes and scales written once, over the copy rate of this machine; `ratio`
is the share of that rate. x is [size, size] in BF16 (a weight: FP32).

Does not: run on a CPU, where stored copies are made by the reference, or check results (tests/numerics does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from repro.bench.machine import Machine
from repro.bench.pass_kinds import request
from repro.bench.passes import Passes
from repro.bench.rows import Case, Measurement
from repro.numerics.formats import FP8_BLOCK, MXFP4, NVFP4, BlockFormat
from repro.numerics.packing import make_packed, make_packed_pair


@dataclass(frozen=True)
class StoredKind:
    """How x is stored: `copies` of them, by `form` in `tile`."""

    form: BlockFormat
    tile: tuple[int, int]
    copies: int
    is_weight: bool = False

    @property
    def name(self) -> str:
        tile = "x".join(map(str, self.tile))
        return f"stored/{self.form.name}/{tile}" + "/pair" * (self.copies == 2) + "/fp32" * self.is_weight

    @property
    def what(self) -> str:
        copies = "by rows and by columns" if self.copies == 2 else "by rows"
        weight = ", FP32 weight" if self.is_weight else ""
        amax = ", with its amax pass" if self.form.tensor_scale else ""
        return f"codes and scales {copies}, {self.form.name}{weight}{amax}"

    @property
    def bytes_per_value(self) -> float:
        """Read by the amax pass, where there is one, and by the storing one, and written."""
        passes = 2 if self.form.tensor_scale else 1
        return passes * (4 if self.is_weight else 2) + self.copies * self.form.bits_per_value(self.tile) / 8


KINDS = (
    StoredKind(NVFP4, (1, 16), 1),
    StoredKind(NVFP4, (1, 16), 2),
    StoredKind(MXFP4, (1, 32), 1),
    StoredKind(FP8_BLOCK, (1, 128), 1),
    StoredKind(FP8_BLOCK, (1, 128), 2),
    StoredKind(FP8_BLOCK, (128, 128), 2, is_weight=True),
)


def stored_cases(machine: Machine, *, size: int | None = None) -> list[Case]:
    """One case a kind, on a GPU; `size` defaults to the machine's."""
    if not machine.is_gpu:
        return []
    passes = Passes(machine, size or machine.matrix_size)
    return [Case(kind.name, kind.what, lambda kind=kind: _measure(passes, kind)) for kind in KINDS]


def _measure(passes: Passes, kind: StoredKind) -> Measurement:
    x = passes.tensors(torch.float32 if kind.is_weight else torch.bfloat16)
    store = store_of(kind)
    return passes.share(lambda i: store(x[i % len(x)]), kind.bytes_per_value)


def store_of(kind: StoredKind) -> Callable[[torch.Tensor], object]:
    """The call: of FP8 blocks as repro.recipes lets them be made, of others that of repro.numerics."""
    if kind.form is FP8_BLOCK:
        from repro.numerics.gpu.fp8_operand import fp8_copies  # needs triton

        square, both = kind.tile[0] > 1, kind.copies == 2
        return lambda x: fp8_copies(x, square=square, columns=both)
    by_rows, by_columns = (request(kind.form, kind.tile, along, sr=False, hadamard=0) for along in (1, 0))
    if kind.copies == 2:
        return lambda x: make_packed_pair(x, by_rows, by_columns)
    return lambda x: make_packed(x, by_rows.spec)
