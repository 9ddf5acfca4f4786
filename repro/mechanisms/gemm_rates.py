"""Table 1 as far as this machine goes: rates of matrix products, and bytes of quantised tensors.

Command: ``python -m repro.mechanisms.gemm_rates --out results/tiny/bench/gemm.json``. The paper's Table 1 gives the
rates of Blackwell tensor cores (4x and 6x BF16 for FP4); this measures y [M, N] = x [M, K] w [N, K]^T here.

    kind "native"     the library multiplies in this format
    kind "emulated"   operands are quantised on the fly and multiplied in a wider format: what training here costs
    kind "absent"     not possible here; `note` says what it needs

The file: {provenance..., shape: {m, n, k}, rates: [{format, kind, seconds, tflops, over_bf16, note}], storage:
[{format, tile, num_values, bytes, bits_per_value, over_fp8}]}. `seconds` is the fastest of the repetitions, `tflops`
is 2 M N K / seconds / 10^12, `over_bf16` the ratio of rates. `bytes` is what packing really stores. Not here: FP4
tensor cores, which need sm_100 and a library that drives them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from repro.numerics.formats import BLOCK_FORMATS, FP8_BLOCK, MXFP4, MXFP8, NVFP4, BlockFormat, QuantSpec
from repro.numerics.operand import make_operand
from repro.numerics.packing import stored_bytes
from repro.numerics.quantize import quantize
from repro.portable import provenance

# Large enough that a product dwarfs its call, small enough for seconds on one core and tenths on a GPU.
CPU_SHAPE = (1024, 1024, 1024)
GPU_SHAPE = (8192, 8192, 8192)
SECONDS_PER_FORMAT = 0.6

NEEDS_BLACKWELL = "needs sm_100 (Blackwell) and a library that drives its FP4 and MX tensor cores"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="repro.mechanisms.gemm_rates", description="Rates for Table 1.")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--device", default="cpu", help="torch device to measure (default: cpu)")
    options = parser.parse_args(argv)
    report = measure_all(torch.device(options.device))
    temporary = options.out.with_name(f".{options.out.name}.writing")
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, options.out)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        print(f"repro.mechanisms.gemm_rates: {options.out}: cannot be written ({error})", file=sys.stderr)
        return 2
    for rate in report["rates"]:
        speed = (
            f"{rate['tflops']:.4f} TFLOP/s, {rate['over_bf16']:.2f} x BF16"
            if rate["tflops"]
            else rate["note"]
        )
        print(f"{rate['format']:10} {rate['kind']:9} {speed}")
    return 0


def measure_all(device: torch.device, *, shape: tuple[int, int, int] | None = None) -> dict[str, Any]:
    """The whole report; ``shape`` (M, N, K) defaults to one that fits the device."""
    m, n, k = shape or (GPU_SHAPE if device.type == "cuda" else CPU_SHAPE)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(m, k, generator=generator).to(device, torch.bfloat16)
    w = torch.randn(n, k, generator=generator).to(device, torch.bfloat16)
    return {
        **provenance.describe(device),
        "shape": {"m": m, "n": n, "k": k},
        "rates": rates(x, w),
        "storage": storage(x),
    }


def rates(x: torch.Tensor, w: torch.Tensor) -> list[dict[str, Any]]:
    """One record a format, BF16 first; x [M, K], w [N, K] in BF16."""
    native: dict[str, Callable[[], Any]] = {"bf16": lambda: x @ w.t()}
    x_fp32, w_fp32 = x.float(), w.float()
    native["fp32"] = lambda: x_fp32 @ w_fp32.t()
    x_fp8, w_fp8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
    one = torch.ones((), device=x.device)
    # One scale a tensor: the rate of the multiplication, which is what Table 1 is about.
    native["fp8_e4m3"] = lambda: torch._scaled_mm(x_fp8, w_fp8.t(), one, one, out_dtype=torch.bfloat16)
    records = [_record(name, "native", run, x, w) for name, run in native.items()]
    for form in (FP8_BLOCK, MXFP8, MXFP4, NVFP4):
        records.append(_record(form.name, "emulated", lambda form=form: emulated_product(x, w, form), x, w))
    records += [_absent(form.name, NEEDS_BLACKWELL) for form in (MXFP8, MXFP4, NVFP4)]
    bf16 = records[0]["tflops"]
    for record in records:
        record["over_bf16"] = round(record["tflops"] / bf16, 4) if record["tflops"] and bf16 else None
    return records


def emulated_product(x: torch.Tensor, w: torch.Tensor, form: BlockFormat) -> torch.Tensor:
    """x [M, K] w [N, K]^T with both operands quantised along K; float32 [M, N]."""
    spec = QuantSpec(form, form.tiles_1d)
    a, b = make_operand(x, spec, along=1), make_operand(w, spec, along=1)
    product = a.values.float() @ b.values.float().t()
    for scale in (a.scale, b.scale):
        if scale is not None:
            product *= scale
    return product


def storage(x: torch.Tensor) -> list[dict[str, Any]]:
    """Bytes that each block format takes for x, codes packed, scales and tensor scale included."""
    records = []
    for form in BLOCK_FORMATS.values():
        num_bytes = stored_bytes(quantize(x, QuantSpec(form, form.tiles_1d)))
        records.append(
            {
                "format": form.name,
                "tile": "x".join(map(str, form.tiles_1d)),
                "num_values": x.numel(),
                "bytes": num_bytes,
                "bits_per_value": round(8 * num_bytes / x.numel(), 6),
            }
        )
    fp8 = next(record["bytes"] for record in records if record["format"] == FP8_BLOCK.name)
    for record in records:
        record["over_fp8"] = round(record["bytes"] / fp8, 6)
    return records


def _record(name: str, kind: str, run: Callable[[], Any], x: torch.Tensor, w: torch.Tensor) -> dict[str, Any]:
    """Times one product; a library that refuses it is recorded as absent with its own words."""
    try:
        seconds = fastest(run, x.device)
    except (RuntimeError, NotImplementedError) as error:
        return _absent(name, str(error).splitlines()[0])
    flops = 2 * x.shape[0] * w.shape[0] * x.shape[1]
    note = "operands quantised on the fly" if kind == "emulated" else ""
    tflops = flops / seconds / 1e12
    return {"format": name, "kind": kind, "seconds": seconds, "tflops": tflops, "note": note}


def _absent(name: str, note: str) -> dict[str, Any]:
    return {"format": name, "kind": "absent", "seconds": None, "tflops": None, "note": note}


def fastest(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds of the fastest call out of those that fit ``SECONDS_PER_FORMAT`` (at least two), after a first one."""
    run()
    times: list[float] = []
    while len(times) < 2 or sum(times) < SECONDS_PER_FORMAT:
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - started)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.exit(main())
