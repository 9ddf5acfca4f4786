"""What the kernels are held to that work out squared ReLU or its gradient while they load, on a GPU and in the
interpreter: the bits of the materialised tensor's operands."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from case_tools import SEED, assert_same_operand, placed, reference, request
from numerics_helpers import assert_same, make_tensor
from pairs_cases import launch_directly, row_and_column

from repro.numerics import QuantSpec, SquaredRelu, SquaredReluGradient, materialise
from repro.numerics.formats import FP8_BLOCK, MXFP4, NVFP4
from repro.numerics.gpu import binding, loads, make_operand_pair_gpu
from repro.numerics.gpu.passes import tensors_of

INF, NAN = float("inf"), float("nan")
#: Of values and of gradients: zeros, the smallest numbers, the largest.
SPECIAL = (0.0, -0.0, 2.0**-133, -(2.0**-133), 1.5 * 2.0**-67, -(1.5 * 2.0**-67), 2.0**-126, 255 * 2.0**-74)


def row_and_column_of(fmt, size, rounding):
    spec = QuantSpec(fmt, fmt.tiles_1d, rounding=rounding)
    return request(spec, 1), request(spec, 0, size, seed=SEED + 1)


def sources(value, grad):
    return SquaredRelu(value), SquaredReluGradient(grad, value)


def tensors(shape, exponent=0):
    """Values, about half of them negative, and gradients; every pair of special numbers among them, and gradients
    that are no numbers where the value is not positive."""
    value, grad = ((make_tensor(seed, shape, "normal")).bfloat16() for seed in (21, 22))
    value, grad = (x / x.abs().max() for x in (value, grad))
    value, grad = value * 2.0 ** (exponent / 2), grad * 2.0 ** (exponent / 2)
    if value.numel() >= 64:
        special = torch.tensor(SPECIAL).bfloat16()
        value.view(-1)[:64], grad.view(-1)[:64] = special.repeat(8), special.repeat_interleave(8)
    value[-1, :4] = torch.tensor([-1.0, -0.0, 0.0, -INF])
    grad[-1, :4] = torch.tensor([INF, NAN, -INF, NAN])
    return value, grad


def check(source, both, device, what):
    """A pair on the device against the reference of the materialised tensor on the CPU."""
    made = make_operand_pair_gpu(source_on(source, device), *both)
    for operand, r in zip(made, both, strict=True):
        described = f"{type(source).__name__} {what} along {r.along}"
        assert_same_operand(described, operand, reference(materialise(source), r))


def source_on(source, device):
    """The source with its tensors, their strides and alignment, on the device."""
    return type(source)(*(placed(x, device) for x in vars(source).values()))


def check_pair(both, shape, device, *, exponent=0):
    for source in sources(*tensors(shape, exponent)):
        check(source, both, device, f"{shape} 2^{exponent} {both[0].spec} H{both[1].hadamard}")


def check_amax(exponent, device):
    """Any amax, within the range of words and beyond it."""
    for rounding in ("rne", "sr"):
        both = row_and_column(rounding)
        value, grad = tensors((48, 160), exponent)
        for source in sources(value, grad):
            assert binding.plan_pass(source_on(source, device), both).in_pairs
            check(source, both, device, f"amax 2^{exponent} {rounding}")


def check_non_finite(device, roundings=("rne", "sr")):
    for bad_value, bad_grad in ((INF, 1.0), (NAN, 1.0), (1.0, INF), (1.0, NAN), (INF, 0.0), (2.0**127, 2.0)):
        for rounding in roundings:
            value, grad = tensors((16, 96))
            value[7, 33], grad[7, 33] = bad_value, bad_grad
            for source in sources(value, grad):
                check(source, row_and_column(rounding), device, f"{bad_value} {bad_grad} {rounding}")


def check_strides(device):
    value, grad = tensors((32, 192))
    cut = {
        "wide rows": lambda x: x[:, 16:112],
        "wide rows that are not aligned": lambda x: x[:, 3:99],
        "transposed": lambda x: x.t(),
        "every second column": lambda x: x[:, ::2],
    }
    for what, view in cut.items():
        for source in sources(view(value), view(grad)):
            for rounding in ("rne", "sr"):
                check(source, row_and_column(rounding), device, f"{what} {rounding}")
    check(
        SquaredReluGradient(grad.t().contiguous().t(), value), row_and_column("sr"), device, "other strides"
    )


def pairs():
    """The pairs that recipes ask for, and two that take two passes."""
    for fmt, size in (
        (NVFP4, 16),
        (MXFP4, 32),
        (NVFP4, 128),
        (NVFP4, 4),
        (MXFP4, 2),
        (NVFP4, 0),
        (FP8_BLOCK, 0),
    ):
        for rounding in ("rne", "sr"):
            yield row_and_column_of(fmt, size, rounding)
    nvfp4 = QuantSpec(NVFP4, (1, 16))
    yield request(nvfp4, 1, 4), request(nvfp4, 0, 16)
    yield request(nvfp4, 1), request(QuantSpec(MXFP4, (1, 32)), 0)
    yield request(QuantSpec(NVFP4, (16, 16)), 1), request(QuantSpec(NVFP4, (16, 16)), 0)


@triton.jit
def _words_kernel(w, u, out, SIZE: tl.constexpr, SOURCE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, loads.words_to_quantise(tl.load(w + at), tl.load(u + at), SOURCE, True))


def every_number(num_others):
    """Every BF16 number as a value, with gradients of any size, Inf and NaN among them."""
    value = torch.arange(2**16).repeat(num_others)
    grad = torch.randint(0, 2**16, value.shape, generator=torch.Generator().manual_seed(9))
    special = torch.tensor([0x7F80, 0xFF80, 0x7FC0, 0, 0x8000, 1, 0x8001])
    grad[::7] = special[torch.arange(0, len(grad), 7) % 2**16 % len(special)]
    return ((bits - (bits >> 15 << 16)).to(torch.int16).view(torch.bfloat16) for bits in (value, grad))


def check_every_number(device, kind, *, launch=launch_directly, num_others=8):
    """Two at once in BF16."""
    value, grad = every_number(num_others)
    source = SquaredRelu(value) if kind == loads.SQUARED_RELU else SquaredReluGradient(grad, value)
    x, y = (tensor.view(torch.int32).to(device) for tensor in tensors_of(source))
    out = torch.empty_like(x)
    launch(_words_kernel, len(x) // 1024, (x, y, out), {"SIZE": 1024, "SOURCE": kind.value})
    assert_same("words", out.cpu().view(torch.bfloat16).float(), materialise(source).float())


def interpreter_checks():
    for both in pairs():
        shape = (128 if both[1].hadamard == 128 else 32, 144)
        name = f"source {both[0].spec.format.name} {both[0].spec.rounding} H{both[1].hadamard}"
        yield name, lambda b=both, s=shape: check_pair(b, s, "cpu")
    for shape in ((3, 100), (32, 60), (1, 16)):
        for rounding in ("rne", "sr"):
            both = row_and_column_of(NVFP4, 0, rounding)
            yield f"source {shape} {rounding}", lambda b=both, s=shape: check_pair(b, s, "cpu")
    for exponent in (-120, 17, 18):
        yield f"source amax 2^{exponent}", lambda e=exponent: check_amax(e, "cpu")
    yield "source not finite", lambda: check_non_finite("cpu", ["rne"])
    yield "source strides", lambda: check_strides("cpu")
