"""Table 1 on the card at hand, through Transformer Engine (TE): rates of y [M, N] = x [M, K] w [N, K]^T by format.

    python -m repro.cluster.gemm_rates [--shape 8192 8192 8192] [--out rates.json]

Table 1 of arXiv 2509.25149 gives 4x (GB200) and 6x (GB300) the rate of BF16 for FP4, and 2x for FP8. A row holds
`seconds` of the product alone and `seconds_with_quantisation` of the activation's quantisation and the product (as a
forward pass pays them, weights being quantised once a step), medians of the repetitions; what the card or TE cannot
do has a `note` instead. Emulation has its rates in repro.bench.

Written for TE 2.20.2, which is imported inside functions; run on an H200, on no Blackwell yet (docs/records).
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repro.cluster import stack
from repro.options import OneLineParser, whole_number

#: Format -> (TE's recipe, the function that says whether the card can run it); None: no recipe of TE has the format.
_RECIPES: dict[str, tuple[str, str] | None] = {
    "fp8_e4m3": ("Float8CurrentScaling", "is_fp8_available"),
    "fp8_block": ("Float8BlockScaling", "is_fp8_block_scaling_available"),
    "mxfp8": ("MXFP8BlockScaling", "is_mxfp8_available"),
    "nvfp4": ("NVFP4BlockScaling", "is_nvfp4_available"),
    "mxfp4": None,
}
REPETITIONS, WARMUP = 20, 5

Call = Callable[[], Any]


def rates(
    shape: tuple[int, int, int], *, time: Callable[[Call], float] | None = None
) -> list[dict[str, Any]]:
    """One record a format, BF16 first: format, seconds, seconds_with_quantisation, tflops, over_bf16, note.

    `shape` is (M, N, K). `time`: seconds of a call; by default the median on the GPU.
    """
    time = time or median_seconds
    records = [_record("bf16", shape, *_calls(shape, None), time=time)]
    for name, entry in _RECIPES.items():
        if entry is None:
            records.append(_absent(name, "Transformer Engine has no such recipe"))
            continue
        recipe, available = entry
        import transformer_engine.pytorch as te

        can, reason = getattr(te, available)(return_reason=True)
        if can:
            records.append(_record(name, shape, *_calls(shape, recipe), time=time))
        else:
            records.append(_absent(name, reason))
    for record in records:
        if record["seconds"]:
            record["over_bf16"] = round(records[0]["seconds"] / record["seconds"], 4)
    return records


def _calls(shape: tuple[int, int, int], recipe: str | None) -> tuple[Call, Call]:
    """(the product alone, quantisation of x and the product) in one of TE's recipes; None: BF16."""
    import transformer_engine.common.recipe as recipes
    import transformer_engine.pytorch as te
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    m, n, k = shape
    x, w = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    if recipe is None:
        product = _product(general_gemm, w, x)
        return product, product
    layer = te.Linear(k, n, bias=False, params_dtype=torch.bfloat16, device="cuda")
    with torch.no_grad(), te.autocast(enabled=True, recipe=getattr(recipes, recipe)()):
        layer(x)  # makes the recipe's quantisers
    for_x, for_w = layer.quantizers["scaling_fwd"][:2]
    for quantizer in (for_x, for_w):
        quantizer.set_usage(rowwise=True, columnwise=False)
    w_quantised = for_w(w)
    product = _product(general_gemm, w_quantised, for_x(x))
    return product, lambda: _product(general_gemm, w_quantised, for_x(x))()


def _product(general_gemm: Callable[..., Any], w: Tensor, x: Tensor) -> Call:
    return lambda: general_gemm(w, x, out_dtype=torch.bfloat16, layout="TN")


def median_seconds(call: Call) -> float:
    """Median time on the GPU of REPETITIONS calls after WARMUP."""
    for _ in range(WARMUP):
        call()
    seconds = []
    for _ in range(REPETITIONS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(seconds)


def _record(
    name: str, shape: tuple[int, int, int], product: Call, whole: Call, *, time: Callable[[Call], float]
) -> dict[str, Any]:
    m, n, k = shape
    seconds = time(product)
    return {
        "format": name,
        "seconds": seconds,
        "seconds_with_quantisation": time(whole),
        "tflops": 2 * m * n * k / seconds / 1e12,
        "over_bf16": None,
        "note": "",
    }


def _absent(name: str, note: str) -> dict[str, Any]:
    keys = ("seconds", "seconds_with_quantisation", "tflops", "over_bf16")
    return {"format": name, **dict.fromkeys(keys), "note": note}


def main(arguments: list[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m repro.cluster.gemm_rates", description="Rates for Table 1.")
    parser.add_argument(
        "--shape", type=whole_number(), nargs=3, default=[8192, 8192, 8192], metavar=("M", "N", "K")
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("error: no GPU is visible; `repro bench` measures a CPU", file=sys.stderr)
        return 1
    from repro.portable import provenance

    records = rates(tuple(options.shape))
    for record in records:
        told = (
            f"{record['tflops']:8.1f} TFLOP/s, {record['over_bf16']:.2f} x BF16"
            if record["tflops"]
            else record["note"]
        )
        print(f"{record['format']:10} {told}")
    if options.out:
        made_with = provenance.describe(torch.device("cuda", torch.cuda.current_device()))
        made_with["versions"]["transformer-engine"] = stack.installed("transformer-engine")
        content = {**made_with, "shape": dict(zip("mnk", options.shape, strict=True)), "rates": records}
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
