"""What operands of tensors with more than 2^31 elements are held to: one alone, and pairs, both copies at once, to
nearest and stochastically, of a tensor, of relu(x)^2 and of its gradient, by the kernel for pairs of numbers and by
the general one. Smaller in the interpreter, which guards the checks."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from case_tools import SEED, request

from repro.numerics import (
    FP8_BLOCK,
    MXFP4,
    NVFP4,
    QuantSpec,
    SquaredRelu,
    SquaredReluGradient,
    make_operand_reference,
    materialise,
    quantize,
)
from repro.numerics.gpu import binding, make_operand_gpu, make_operand_pair_gpu
from repro.numerics.hadamard import transform
from repro.numerics.random_bits import philox4x32

SOURCES = {
    "tensor": lambda x: x,
    "squared_relu": SquaredRelu,
    "squared_relu_gradient": lambda x: SquaredReluGradient(x, -x),
}

#: Format and size of the column copy's transform; the first alone goes in pairs of numbers.
KINDS = ((NVFP4, 16), (NVFP4, 128), (MXFP4, 32), (FP8_BLOCK, 0))


@contextlib.contextmanager
def alone_on_the_gpu() -> Iterator[None]:
    """For tensors of many gigabytes: one test at a time of all pytest processes, and the memory is given back."""
    with open(Path(tempfile.gettempdir()) / "repro-large-tensors.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            torch.cuda.empty_cache()


#: Last rows of a tall tensor that are not zero: whole blocks of every format.
LAST = 128


def tall(rows, columns, dtype, device):
    """Zeros, and numbers in the last rows."""
    x = torch.zeros(rows, columns, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(1)
    x[-LAST:] = torch.randn(LAST, columns, generator=generator, device=device)
    return x


def check_last_rows(spec, along, dtype, device, *, rows, columns):
    """The last rows come out as those of a small tensor do, and all others as zeros: no index has overflowed."""
    x = tall(rows, columns, dtype, device)
    ours = make_operand_gpu(x, spec, along=along)
    expected = make_operand_reference(x[-LAST:].clone(), spec, along=along)
    assert torch.equal(ours.amax, expected.amax)
    assert torch.equal(ours.values[-LAST:].float(), expected.values)
    assert torch.count_nonzero(ours.values[:-LAST]) == 0


def random_bits_of_last_rows(seed, rows, columns, device):
    """uint8 [LAST, columns]: what `random_bits` gives the last rows of [rows, columns], without making the others."""
    first = (rows - LAST) * columns // 16
    block = torch.arange(first, first + LAST * columns // 16, dtype=torch.int64, device=device)
    zero = torch.zeros_like(block)
    words = philox4x32((block & 0xFFFFFFFF, block >> 32, zero, zero), (seed & 0xFFFFFFFF, seed >> 32))
    shifts = torch.arange(0, 32, 8, device=device)
    return (torch.stack(words, 1).unsqueeze(-1) >> shifts & 0xFF).to(torch.uint8).reshape(LAST, columns)


def check_tall_pair(kind, rounding, device, *, rows, columns, fmt=NVFP4, size=16):
    """The last rows come out as the reference has them, with the random bits of their place; all others as zeros."""
    spec = QuantSpec(fmt, fmt.tiles_1d, rounding=rounding)
    both = request(spec, 1), request(spec, 0, size, seed=SEED + 1)
    source = SOURCES[kind](tall(rows, columns, torch.bfloat16, device))
    assert binding.plan_pass(source, both).in_pairs == ((fmt, size) == KINDS[0])
    made = make_operand_pair_gpu(source, *both)
    last = materialise(SOURCES[kind](tall(rows, columns, torch.bfloat16, device)[-LAST:].clone()))
    for operand, r in zip(made, both, strict=True):
        values = last.float()
        if r.hadamard:
            values = transform(values, r.hadamard, r.signs.to(device), dim=0).bfloat16().float()
        bits = random_bits_of_last_rows(r.seed, rows, columns, device) if rounding == "sr" else None
        if r.along == 0:
            values, bits = values.T, None if bits is None else bits.T.contiguous()
        expected = quantize(values, spec, random_bits=bits)
        found = operand.values[-LAST:].float()
        assert operand.amax == expected.amax, f"{kind} along {r.along}"
        assert torch.equal(found if r.along else found.T, expected.block_values()), f"{kind} along {r.along}"
        assert torch.count_nonzero(operand.values[:-LAST]) == 0


def interpreter_checks():
    for kind in SOURCES:
        for rounding in ("rne", "sr"):
            yield (
                f"tall pair {kind} {rounding}",
                lambda k=kind, r=rounding: check_tall_pair(k, r, "cpu", rows=LAST + 32, columns=64),
            )
    for i, (fmt, size) in enumerate(KINDS[1:]):
        yield (
            f"tall pair {fmt.name} H{size}",
            lambda r=("rne", "sr")[i % 2], f=fmt, n=size: check_tall_pair(
                "tensor", r, "cpu", rows=2 * LAST, columns=64, fmt=f, size=n
            ),
        )
