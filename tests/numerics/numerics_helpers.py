"""Shared by the numerics tests: golden cases, tensors of every magnitude, comparison to the bit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib.npyio import NpzFile

from repro.numerics.formats import BLOCK_FORMATS, QuantSpec
from repro.numerics.hadamard import sign_vector
from repro.numerics.random_bits import random_bits

GOLDEN = Path(__file__).parents[1] / "golden"
GOLDEN_NVFP4 = sorted(path.stem for path in GOLDEN.glob("[0-8]*.npz"))
GOLDEN_MXFP4 = sorted(path.stem for path in GOLDEN.glob("90_mxfp4*.npz"))

#: Every specification there is: formats x tiles x roundings, and both scale orders where they matter.
ALL_SPECS = [
    QuantSpec(fmt, tile, rounding=rounding, scale_order=order)
    for fmt in BLOCK_FORMATS.values()
    for tile in fmt.tiles
    for rounding in ("rne", "sr")
    for order in (("te", "paper") if fmt.tensor_scale else ("te",))
]


def spec_id(spec: QuantSpec) -> str:
    rows, columns = spec.tile
    return f"{spec.format.name}-{rows}x{columns}-{spec.rounding}-{spec.scale_order}"


def from_bf16_bits(bits: np.ndarray) -> torch.Tensor:
    """uint16 BF16 bits as a bfloat16 tensor."""
    return torch.from_numpy((bits.astype(np.uint32) << 16).view(np.float32)).bfloat16()


@dataclass(frozen=True)
class GoldenCase:
    config: dict
    arrays: NpzFile
    #: bfloat16 or float32 [M, N]
    x: torch.Tensor


def load_golden(name: str) -> GoldenCase:
    arrays = np.load(GOLDEN / f"{name}.npz")
    is_bf16 = "x_bf16_bits" in arrays
    x = from_bf16_bits(arrays["x_bf16_bits"]) if is_bf16 else torch.from_numpy(arrays["x_fp32"])
    return GoldenCase(json.loads(str(arrays["config"])), arrays, x)


def assert_same(what: str, ours, expected) -> None:
    """Equal dtype kind, shape and bits (so -0.0 is not 0.0); any NaN equals any NaN. Names the first difference."""
    ours, expected = np.asarray(ours), np.asarray(expected)
    assert ours.shape == expected.shape, f"{what}: shape {ours.shape}, expected {expected.shape}"
    if ours.dtype.kind == "f":
        expected = expected.astype(ours.dtype)
        same = (ours == expected) & (np.signbit(ours) == np.signbit(expected))
        same |= np.isnan(ours) & np.isnan(expected)
    else:
        same = ours == expected
    if not same.all():
        first = tuple(int(i) for i in np.argwhere(~same)[0])
        raise AssertionError(
            f"{what}: {int((~same).sum())} of {same.size} differ, first at {first}: "
            f"{ours[first]!r}, expected {expected[first]!r}"
        )


#: Ways to fill a tensor, each aimed at another part of the arithmetic.
REGIMES = ("normal", "bf16", "every_exponent", "subnormal", "huge", "ties", "sparse", "mixed_blocks")


def make_signs(size: int, kind: str, seed: int = 5) -> torch.Tensor:
    """Signs of any kind; the seed is for those that take one."""
    return sign_vector(size, kind=kind, seed=seed if kind == "random" else None)


def make_tensor(seed: int, shape: tuple[int, ...], regime: str) -> torch.Tensor:
    """A finite float32 tensor of `shape`; the same for the same arguments."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(shape)
    if regime == "every_exponent":
        x = normal * 2.0 ** rng.uniform(-149, 126, shape)
    elif regime == "subnormal":
        x = rng.integers(-40, 41, shape) * 2.0**-149 * 2.0 ** rng.integers(0, 22)
    elif regime == "huge":
        x = normal * 1e38
    elif regime == "ties":  # quarters of small integers, with an amax that makes the scales powers of two
        x = rng.integers(-28, 29, shape) / 4.0 * 2.0 ** rng.integers(-130, 120)
        x.flat[0] = np.abs(x).max() or 1.0
    elif regime == "sparse":
        x = np.where(rng.random(shape) < 0.9, np.where(rng.random(shape) < 0.5, 0.0, -0.0), normal)
    elif regime == "mixed_blocks":  # every 16 columns another magnitude
        per_block = 2.0 ** rng.uniform(-60, 20, -(-shape[-1] // 16))
        x = normal * np.repeat(per_block, 16)[: shape[-1]]
    else:
        x = normal * 2.0 ** rng.integers(-20, 20)
    limit = float(np.finfo(np.float32).max)
    tensor = torch.from_numpy(np.clip(x, -limit, limit).astype(np.float32))
    if regime in ("bf16", "mixed_blocks"):
        tensor = tensor.bfloat16().float()
    return tensor


def bits_for(x, spec, seed=0):
    """What `quantize` wants of `spec`: random bits where it rounds stochastically, else None."""
    return random_bits(seed, x.shape) if spec.rounding == "sr" else None


def tensor_with(amax, *blocks):
    """One row a block of 16, after a row that holds nothing but the tensor's amax."""
    x = torch.zeros(1 + len(blocks), 16)
    x[0, 0] = amax
    for row, block in enumerate(blocks, 1):
        x[row, : len(block)] = torch.tensor(block)
    return x
