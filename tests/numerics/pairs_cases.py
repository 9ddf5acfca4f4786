"""What the kernel for words of two BF16 numbers is held to, beside what gpu_cases.py asks of every kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from case_tools import SEED, assert_same_operand, reference, request
from numerics_helpers import assert_same, make_signs, make_tensor

from repro.numerics import QuantSpec
from repro.numerics.formats import E2M1, NVFP4
from repro.numerics.gpu import binding, make_operand_gpu, make_operand_pair_gpu, pairs_kernel
from repro.numerics.gpu.pairs import encode_pairs, reciprocal
from repro.numerics.rounding import decode, round_to_codes

#: Exponents of amaxes: within the range of the fast way, at its ends, beyond, and where the fast way is wrong (20).
EXPONENTS = (-120, -81, -80, -79, -20, 0, 16, 17, 18, 20, 100, 126)


def row_and_column(rounding):
    spec = QuantSpec(NVFP4, (1, 16), rounding=rounding)
    return request(spec, 1), request(spec, 0, 16, seed=SEED + 1)


def check_amax(exponent, device, *, bad=None, alone=True):
    """Any amax, zeros of both signs, and numbers far below the others; `bad`: Inf or NaN somewhere; each copy also
    alone, if `alone`."""
    x = make_tensor(11, (48, 160), "normal")
    x = (x / x.abs().max() * 2.0**exponent).bfloat16()
    x[0, :16], x[1, :16], x[:16, 40], x[16:32, 41] = -0.0, 0.0, -0.0, 0.0
    x[5, 16:32], x[6, 16:24] = -(2.0**-133), 2.0 ** (exponent - 20)
    x[7, 3] = -(2.0**-133)
    # A transform makes less than half of the smallest BF16 number of these: zeros, never -0.
    x[16:32, 50:58] = 0.0
    x[16, 50:58] = torch.tensor([1, -1]).repeat(4) * 2.0**-133
    if bad is not None:
        x[37, 101] = bad
    for rounding in ("rne", "sr"):
        both = row_and_column(rounding)
        assert binding.plan_pass(x.to(device), both).in_pairs
        made = make_operand_pair_gpu(x.to(device), *both)
        for operand, r in zip(made, both, strict=True):
            what = f"amax 2^{exponent} {bad} {rounding} along {r.along}"
            assert_same_operand(what, operand, reference(x, r))
            if not alone:
                continue
            single = make_operand_gpu(
                x.to(device), r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=r.seed
            )
            assert_same_operand(f"{what} alone", single, reference(x, r))


def check_both_amaxes_decide():
    """Interpreter: a pair takes the fast way if both amaxes are in its range, whichever copy has which.

    No transform of 16 moves an amax from the range to where the fast way is wrong, so that values do not tell which
    way was taken; larger ones would.
    """
    x = torch.zeros(16, 64, dtype=torch.bfloat16)
    x[:, 5] = make_signs(16, "fixed") * 2.0  # 8 after the transform
    x[3, 40] = 1.0
    row, column = row_and_column("rne")

    def is_fast(both, limit):
        ways = []
        kept = pairs_kernel.LARGEST, pairs_kernel._copy_pairs, pairs_kernel._copy_slowly
        pairs_kernel.LARGEST = tl.constexpr(limit)
        pairs_kernel._copy_pairs = lambda *_: ways.append("fast")
        pairs_kernel._copy_slowly = lambda *_: ways.append("slow")
        try:
            made = make_operand_pair_gpu(x, *both)
        finally:
            pairs_kernel.LARGEST, pairs_kernel._copy_pairs, pairs_kernel._copy_slowly = kept
        assert sorted(operand.amax.item() for operand in made) == [2.0, 8.0]
        assert ways in (["fast"] * 2, ["slow"] * 2), ways
        return ways[0] == "fast"

    for both in ((row, column), (column, row)):
        assert not is_fast(both, 1.0)
        assert not is_fast(both, 4.0)
        assert is_fast(both, 8.0)


@triton.jit
def _encode_kernel(w, even, odd, noise, out, SIZE: tl.constexpr, STOCHASTIC: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    scale = tl.full((SIZE,), 0x43004300 if STOCHASTIC else 0x3F803F80, tl.int32)
    second = at & 1
    values = encode_pairs(
        tl.load(w + at), tl.load(even + at), tl.load(odd + at), scale, tl.load(noise + at), second, STOCHASTIC
    )
    tl.store(out + at, values)


def numbers_at_the_edges():
    """(y, byte): every byte with numbers within a few units in the last place of where E2M1's rounding goes up."""
    byte = torch.arange(256)
    found = []
    for lower, step in ((0.0, 0.5), (0.5, 0.5), (1.0, 0.5), (1.5, 0.5), (2.0, 1.0), (3.0, 1.0), (4.0, 2.0)):
        edge = lower + step - byte / 256 * step
        found += [edge + sign * 2.0**-n for n in range(20, 36) for sign in (-1, 1)]
        for sign in (-1, 1):
            y = edge.clone()
            for _ in range(8):
                found.append(y)
                y = torch.nextafter(y, torch.tensor(10.0 * sign))
    y = torch.stack(found).clamp(min=0.0)
    return y.reshape(-1), byte.expand(y.shape).reshape(-1)


def launch_directly(kernel, num_programs, tensors, constants):
    kernel[(num_programs,)](*tensors, **constants, enable_fp_fusion=False)


def check_rounding(device, *, stochastic, seed=1, launch=launch_directly):
    """`encode_pairs` against `round_to_codes`: at the edges for every byte, at ties, and for random numbers."""
    y, byte = numbers_at_the_edges()
    generator = torch.Generator().manual_seed(seed)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, 8.0, 9.0, 0.0])
    near = torch.cat([ties, *(torch.nextafter(ties, torch.tensor(end)) for end in (0.0, 10.0))])
    y = torch.cat([y, near, torch.randn(4096, generator=generator).abs() * 2])
    more = torch.randint(0, 256, (len(y) - len(byte),), generator=generator)
    byte = torch.cat([byte, more])
    y, byte = y[: len(y) // 512 * 512], byte[: len(y) // 512 * 512]
    sign = torch.where(torch.rand(len(y), generator=generator) < 0.5, -1.0, 1.0)
    expected = round_to_codes(y * sign, E2M1, byte.to(torch.uint8) if stochastic else None)
    x = sign.bfloat16()  # times y is y with the sign
    encode = (y * 2.0**-14 if stochastic else y).to(device)
    word = torch.arange(len(y) // 2)
    pair = byte.reshape(-1, 2)
    noise = (pair[:, 0] | pair[:, 1] << 8) << 16 * (word & 1)
    noise = (noise - ((noise >> 31) << 32)).int()
    out = torch.empty(len(word), dtype=torch.int32, device=device)
    words = x.view(torch.int32).to(device)
    tensors = (words, encode[0::2].contiguous(), encode[1::2].contiguous(), noise.to(device), out)
    launch(_encode_kernel, len(word) // 256, tensors, {"SIZE": 256, "STOCHASTIC": stochastic})
    is_zero = y == 0  # -0 must not come in
    ours = out.cpu().view(torch.bfloat16).float()
    assert_same("values", ours[~is_zero], decode(expected, E2M1)[~is_zero])


@triton.jit
def _reciprocal_kernel(x, out, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, reciprocal(tl.load(x + at)))


def check_reciprocal(device, *, exponents=(0, 1, 60, -60, 119, -119), every=1):
    """Every significand (every nth) of some powers of two: the correctly rounded quotient."""
    for exponent in exponents:
        bits = torch.arange(0, 1 << 23, every, dtype=torch.int32) + ((127 + exponent) << 23)
        x = bits[: len(bits) // 1024 * 1024].to(device).view(torch.float32)
        out = torch.empty_like(x)
        _reciprocal_kernel[(len(x) // 1024,)](x, out, SIZE=1024, enable_fp_fusion=False)
        assert torch.equal(out.cpu(), (1.0 / x.cpu().double()).float())


def interpreter_checks():
    for exponent in (-120, 0, 17, 20):
        yield f"amax 2^{exponent}", lambda e=exponent: check_amax(e, "cpu", alone=e == 0)
    yield "both amaxes decide", check_both_amaxes_decide
    for bad in (float("inf"), float("nan")):
        yield f"{bad} in BF16", lambda b=bad: check_amax(0, "cpu", bad=b, alone=False)
    for stochastic in (False, True):
        yield f"rounding, stochastic {stochastic}", lambda s=stochastic: check_rounding("cpu", stochastic=s)
