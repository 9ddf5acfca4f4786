"""Whether another package's result is what Transformer Engine's arithmetic gives, and if not, where it parts.

The reference is `repro.numerics.quantize` in TE's order of operations (>= 2.14), which golden vectors of TE's own
reference pin. Counted over tensors of many magnitudes, half of them heavy-tailed:

    scales    block scale bytes that differ; of these, those that the paper's order of operations gives, and zero or
              subnormal scales that the package raised to its smallest
    codes     element codes that differ; of these, those under an equal scale, and of those signs of zero
    values    BF16 results that differ (for packages that give no codes)

Stochastic rounding draws its own bits: only scales are compared.
"""

from __future__ import annotations

import torch
from peer_adapters import Prepared
from torch import Tensor

from repro.numerics.formats import QuantSpec, block_format
from repro.numerics.quantize import Quantized, quantize


def spec_of(job: str, **options: str) -> QuantSpec:
    """ "nvfp4/1x16/rne" -> its specification; the rounding is always to nearest here."""
    name, tile, _ = job.split("/")
    rows, columns = tile.split("x")
    return QuantSpec(block_format(name), (int(rows), int(columns)), **options)


def samples(device: torch.device) -> list[Tensor]:
    """BF16 [256, 1024], each of another amax, every second one heavy-tailed; some blocks are zero, and some so small
    that their scale is subnormal or zero."""
    generator = torch.Generator().manual_seed(1)
    tensors = []
    for number in range(16):
        x = torch.randn(256, 1024, generator=generator)
        x = x * x.abs() if number % 2 else x
        x[:16, :64] = 0.0
        x[16:32, :512] *= 2.0 ** -torch.arange(10, 18).repeat_interleave(64)
        tensors.append((x * 3.0 ** (number - 8)).bfloat16().to(device))
    return tensors


def compare(prepared: Prepared, job: str, tensors: list[Tensor]) -> dict[str, int | str]:
    """The counts, and `verdict`: "same codes and scales", or what differs in words."""
    counts: dict[str, int] = {}
    for x in tensors:
        expected = quantize(x, spec_of(job))
        made = prepared.quantise(x)
        if prepared.parts is None:
            found = _values(prepared.dequantise(made), expected, x.dtype)
        else:
            found = _parts(prepared.parts(made), expected, quantize(x, spec_of(job, scale_order="paper")))
        for key, value in found.items():
            counts[key] = counts.get(key, 0) + value
    is_random = job.endswith("/sr")
    return {**counts, "verdict": _verdict(counts, is_random=is_random)}


def _values(got: Tensor, expected: Quantized, dtype: torch.dtype) -> dict[str, int]:
    right = expected.dequantize().to(dtype)
    return {"values": got.numel(), "values_differ": int((got != right).sum())}


def _parts(got: tuple[Tensor, Tensor], expected: Quantized, paper: Quantized) -> dict[str, int]:
    codes, scales = got
    other_scale = scales != expected.scales
    width = codes.shape[1] // scales.shape[1]
    other_code = codes != expected.codes
    alone = other_code & ~other_scale.repeat_interleave(width, dim=1)
    zeros = alone & (codes & 7 == 0) & (expected.codes & 7 == 0)
    return {
        "scales": scales.numel(),
        "scales_differ": int(other_scale.sum()),
        "scales_in_papers_order": int((other_scale & (scales == paper.scales)).sum()),
        "scales_raised": int((other_scale & (expected.scales < 8) & (scales > expected.scales)).sum()),
        "codes": codes.numel(),
        "codes_differ": int(other_code.sum()),
        "codes_differ_under_equal_scales": int(alone.sum()),
        "codes_differ_in_sign_of_zero": int(zeros.sum()),
    }


def _verdict(counts: dict[str, int], *, is_random: bool) -> str:
    if "values" in counts:
        differ = counts["values_differ"]
        return f"{differ} of {counts['values']} values differ" if differ else "same values"
    scales = counts["scales_differ"]
    parts = []
    if scales:
        why = []
        if paper := counts["scales_in_papers_order"]:
            why.append(f"{paper} as the paper's order gives")
        if raised := counts["scales_raised"]:
            why.append(f"{raised} zero or subnormal ones raised")
        reason = f" ({', '.join(why)})" if why else ""
        parts.append(f"{scales} of {counts['scales']} scales differ{reason}")
    if is_random:
        return parts[0] if parts else "same scales"
    if counts["codes_differ"]:
        alone, zeros = counts["codes_differ_under_equal_scales"], counts["codes_differ_in_sign_of_zero"]
        parts.append(
            f"{counts['codes_differ']} of {counts['codes']} codes differ, {alone} of them under equal scales"
            f" ({zeros} in the sign of zero)"
        )
    return "; ".join(parts) or "same codes and scales"
