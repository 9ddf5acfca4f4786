"""Formats that only a record makes known: on a GPU too they have the values and codes of the reference.

MXFP6 (OCP Microscaling 1.0) and formats of 4 and 5 bits beside E2M1; on a GPU and in Triton's interpreter.
"""

from __future__ import annotations

import dataclasses

import torch
from case_tools import assert_same_operand, finite, packed_reference, placed, reference, request
from numerics_helpers import assert_same, spec_id

from repro.numerics import BlockFormat, ElementFormat, QuantSpec
from repro.numerics.formats import E4M3, FP32, NVFP4, UE8M0
from repro.numerics.gpu import binding, make_operand_gpu, make_operand_pair_gpu
from repro.numerics.gpu.packing import pack_gpu

ELEMENTS = (
    ElementFormat("E2M3", 2, 3, bias=1, specials="none"),
    ElementFormat("E3M2", 3, 2, bias=3, specials="none"),
    ElementFormat("E3M1", 3, 1, bias=3, specials="none"),
    ElementFormat("E3M0", 3, 0, bias=3, specials="none"),
    ElementFormat("E1M2", 1, 2, bias=1, specials="none"),
)


def formats():
    """Each element under each rule of scales."""
    for e in ELEMENTS:
        yield BlockFormat(f"mx-{e.name}", e, UE8M0, (1, 32), (32, 32), scale_rule="power_of_two_up")
        yield BlockFormat(
            f"nv-{e.name}", e, E4M3, (1, 16), (16, 16), scale_rule="two_level", tensor_scale=True
        )
        yield BlockFormat(f"block-{e.name}", e, FP32, (1, 128), (128, 128), scale_rule="amax_over_max")


def check(fmt, dtype, rounding, device):
    """Values and codes of both copies, to the bit; 144 columns of BF16 are what the kernel for pairs takes."""
    x = finite((32, 144), "normal", dtype)
    spec = QuantSpec(fmt, fmt.tiles_1d, rounding=rounding)
    copies = request(spec, 1), request(spec, 0, seed=5)
    on_device = placed(x, device)
    for ours, r in zip(make_operand_pair_gpu(on_device, *copies), copies, strict=True):
        assert_same_operand(f"{spec_id(spec)} along {r.along}", ours, reference(x, r))
    one = make_operand_gpu(on_device, spec, along=1, seed=copies[0].seed)
    assert_same_operand(f"{spec_id(spec)} alone", one, reference(x, copies[0]))
    for stored, r in zip(pack_gpu(on_device, copies), copies, strict=True):
        expected = packed_reference(x, r)
        for part in ("codes", "scales", "amax"):
            what = f"{spec_id(spec)} along {r.along}: {part}"
            assert_same(what, getattr(stored, part).cpu(), getattr(expected, part))


def check_odd_tile(device):
    """Tiles that are no powers of two are the reference's."""
    x = finite((32, 144), "normal", torch.bfloat16)
    spec = QuantSpec(dataclasses.replace(NVFP4, name="odd", tiles_1d=(1, 24)), (1, 24))
    r = request(spec, 1)
    assert_same_operand("1x24", make_operand_gpu(placed(x, device), spec, along=1), reference(x, r))
    assert binding._refusal(placed(x, device), r) == "format odd"


def interpreter_checks():
    yield "tiles of 1x24", lambda: check_odd_tile("cpu")
    for i, fmt in enumerate(formats()):
        dtype = (torch.bfloat16, torch.float32)[i // 3 % 2] if fmt.scale is not E4M3 else torch.bfloat16
        yield f"new format {fmt.name}", lambda f=fmt, d=dtype, r=("rne", "sr")[i % 2]: check(f, d, r, "cpu")
