"""What the checks of the kernels share: requests, the reference, tensors to try, and the run of a script."""

from __future__ import annotations

import dataclasses
import traceback
import warnings

import torch
from numerics_helpers import assert_same, make_signs, make_tensor

from repro.numerics import CopyRequest, QuantSpec, make_operand_reference, make_packed
from repro.numerics.formats import FP8_BLOCK, MXFP4, NVFP4

#: Far above 2^32, and both words above 2^31: the whole Philox key matters, and no sign may be lost.
SEED = 0xDEADBEEF92345678


def request(spec, along, hadamard=0, kind="fixed", seed=SEED):
    signs = make_signs(hadamard, kind) if hadamard and kind != "none" else None
    return CopyRequest(spec, along, hadamard, signs, seed if spec.rounding == "sr" else None)


def reference(x, r):
    return make_operand_reference(x, r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=r.seed)


def packed_reference(x, r):
    """On the CPU, where PyTorch packs."""
    return make_packed(x, r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=r.seed)


def assert_same_operand(what, ours, expected) -> None:
    assert_same(f"{what}: values", ours.values.float().cpu(), expected.values.cpu())
    assert_same(f"{what}: amax", ours.amax.cpu(), expected.amax.cpu())
    assert (ours.scale is None) == (expected.scale is None), f"{what}: scale {ours.scale}, {expected.scale}"
    if ours.scale is not None:
        assert_same(f"{what}: scale", ours.scale.cpu(), expected.scale.cpu())


def placed(x, device):
    """x on the device with its strides and its place in its storage, and so its alignment; `.to()` keeps neither."""
    whole = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return whole.to(device).as_strided(x.shape, x.stride(), x.storage_offset())


def finite(shape, regime, dtype, seed=1):
    return (make_tensor(seed, shape, regime) * 0.99).to(dtype)


def strided(dtype=torch.float32):
    """(what, [64, 96] of other strides than its shape has)."""
    data = make_tensor(4, (64, 2 * 96), "normal").to(dtype)
    yield "wide rows", data[:, 16:112]
    yield "wide rows that are not aligned", data[:, 3:99]
    yield "transposed", data[:, :96].t().contiguous().t()
    yield "every second column", data[:, ::2]


def trials():
    """(what, tensor, specification): what other implementations got wrong, as test_quantize.py has it."""
    nvfp4, mxfp4, fp8 = (QuantSpec(fmt, fmt.tiles_1d) for fmt in (NVFP4, MXFP4, FP8_BLOCK))
    noise = make_tensor(8, (32, 64), "normal")

    def blocks(*rows):
        x = torch.zeros(len(rows), 32)
        for i, row in enumerate(rows):
            x[i, : len(row)] = torch.tensor(row)
        return x

    def with_zeros(x):
        x[3, 16:32], x[9], x[:, 5] = 0.0, 0.0, -0.0
        return x

    step, least = 2.0**-9, 2.0**-127
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]
    yield "01 smallest scale", blocks([448.0], [1.49 * step, -1.49 * step, 0.5 * step]), nvfp4
    yield "02 zero block under a small amax", with_zeros(noise / noise.abs().max() * 1e-3), nvfp4
    yield "04 zero block and row in noise", with_zeros(noise.clone()), nvfp4
    tiny = torch.zeros(2, 256)
    tiny[1, 128:] = 1e-10
    yield "05 blocks of zeros and of tiny values", tiny, fp8
    yield "06 ties", blocks([2688.0] + [0.0] * 15 + ties + [-y for y in ties]), nvfp4
    for order in ("te", "paper"):
        on_tie = blocks([4.0625] + [0.0] * 15 + [3.046875] + [0.3] * 15)
        yield f"07 scale on a tie, {order}", on_tie, dataclasses.replace(nvfp4, scale_order=order)
    yield "08 power of two rounded up", blocks([7.0, 1.0], [3.0625, 6.0]), mxfp4
    yield "08 smallest power of two", blocks([6 * least, 0.5 * least], [6 * (least + 2.0**-149)]), mxfp4
    yield "10 tiny tensor", noise * 1e-30, nvfp4


def run(checks) -> int:
    """Exit status; one line per check."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    failed = 0
    for name, call in checks:
        try:
            call()
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc(limit=-3)}")
        else:
            print(f"passed {name}", flush=True)
    return int(failed > 0)
