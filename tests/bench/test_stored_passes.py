"""Passes that write codes: the bytes of their floor are those that they write."""

from __future__ import annotations

import pytest
import torch
from interpreter import needs_triton, printed

from repro.bench.machine import Effort, Machine
from repro.bench.rows import run_case
from repro.bench.stored_passes import KINDS, StoredKind, store_of, stored_cases
from repro.numerics.formats import FP8_BLOCK

SIZE = 256
#: Bytes of codes and scales of one FP8 kind, by the kernel in Triton's interpreter.
FP8_BYTES = f"""
import sys, torch
from repro.bench.stored_passes import KINDS, store_of
kind = next(kind for kind in KINDS if kind.name == sys.argv[1])
made = store_of(kind)(torch.ones({SIZE}, {SIZE}, dtype=torch.float32 if kind.is_weight else torch.bfloat16))
operands = [operand for operand in (made.rows, made.columns) if operand is not None]
print(sum(operand.codes.nbytes for operand in operands), sum(operand.scales.nbytes for operand in operands))
"""


def floor_bytes(kind: StoredKind) -> tuple[float, float]:
    """Codes and scales that the floor counts, in bytes."""
    block = kind.tile[0] * kind.tile[1]
    values = kind.copies * SIZE * SIZE
    scale_bytes = (kind.form.bits_per_value(kind.tile) - kind.form.element.bits) * block / 8
    return values * kind.form.element.bits / 8, values * scale_bytes / block


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.form is not FP8_BLOCK], ids=lambda kind: kind.name
)
def test_the_floor_counts_the_bytes_of_a_packed_tensor(kind: StoredKind) -> None:
    x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1)).bfloat16()
    made = store_of(kind)(x)
    copies = made if isinstance(made, tuple) else (made,)
    assert sum(copy.codes.nbytes for copy in copies) == floor_bytes(kind)[0]
    assert sum(copy.scales.nbytes for copy in copies) == floor_bytes(kind)[1]


@needs_triton
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.form is FP8_BLOCK], ids=lambda kind: kind.name
)
def test_the_floor_counts_the_bytes_of_fp8_copies(kind: StoredKind) -> None:
    codes, scales = map(int, printed("-c", FP8_BYTES, kind.name).split())
    assert codes == floor_bytes(kind)[0]
    # Of square blocks four scales lie together where the product reads them: two of 2 x 2 are padding.
    padding = 2 if kind.tile[0] > 1 else 1
    assert scales == padding * floor_bytes(kind)[1]


def test_what_moves_is_told_beside_what_is_written() -> None:
    moved = {kind.name: kind.bytes_per_value for kind in KINDS}
    assert moved["stored/nvfp4/1x16"] == 2 + 2 + 0.5 + 1 / 16
    assert moved["stored/fp8_block/1x128/pair"] == 2 + 2 * (1 + 4 / 128)
    assert moved["stored/fp8_block/128x128/pair/fp32"] == 4 + 2 * (1 + 4 / 128**2)


def test_a_cpu_has_no_such_rows() -> None:
    assert stored_cases(Machine(torch.device("cpu"))) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_kind_is_timed_on_a_gpu() -> None:
    machine = Machine(torch.device("cuda"), effort=Effort(0.0, 1, 1))
    for case in stored_cases(machine, size=SIZE):
        row = run_case(case)
        assert not row.failed, row.note
        assert row.floor is not None
        assert row.measured is not None
        assert 0 < row.floor < row.measured
