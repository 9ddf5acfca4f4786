"""Time the fused GPU quantisers and the quantised linear layer against what the device can do.

    python benchmarks/quantize_gpu.py [--size 8192] [--out benchmarks/results/quantize_gpu.json]

Passes over a BF16 matrix [size, size]: the floor is the bytes that must move (each input read once, each output
written once) over the device's copy rate; the ratio is floor over measured. Passes run from CUDA graphs that hold
several calls on different tensors, so that neither launches nor the cache count; medians of the replays.

Linear layer, forward and backward, three GEMMs, all quantisation included, against the same three BF16 products:
    "bf16 tensors"   BF16 weight and BF16 weight gradient: the fastest that BF16 can be
    "bf16 recipe"    our layer under the BF16 recipe: FP32 main weight cast in each step, weight gradient left in FP32
Measured twice: as CUDA graphs (GPU time), and eagerly (what Python's launches leave of it).

Does not: warm a cold machine (it runs each thing before it times it), or check results (tests/numerics does).
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import platform
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import triton
from torch import Tensor, nn

from repro.experiments.recipe import Recipe, load_recipe
from repro.numerics import CopyRequest, QuantSpec, sign_vector
from repro.numerics.formats import FP8_BLOCK, MXFP4, NVFP4, BlockFormat
from repro.numerics.gpu import binding
from repro.numerics.gpu import passes as passes_module
from repro.recipes import QuantizedLinear, RunContext

RECIPES = Path(__file__).parents[1] / "configs" / "recipes"
#: Tokens, input features, output features.
LAYERS = ((8192, 5120, 20480), (8192, 4096, 4096), (16384, 1024, 4096))
#: Of the ratios that this benchmark is to reach on an H200; None where none is set.
PASS_TARGETS = {
    "nvfp4 1x16 rne": 0.90,
    "nvfp4 16x16 rne": 0.90,
    "nvfp4 row + column rne": 0.85,
    "nvfp4 row + column sr": 0.80,
    "nvfp4 amax of both": 0.85,
}
LAYER_TARGETS = {("nvfp4", LAYERS[0]): 1.02, ("nvfp4", LAYERS[1]): 1.15, ("nvfp4", LAYERS[2]): 1.35}
SEED = 0x123456789ABCDEF


def replayed(call: Callable[[int], object], *, calls: int = 8, replays: int = 15) -> float:
    """Median seconds of one of `calls` calls (i = 0, 1 ...) in a CUDA graph."""
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    graph.replay()
    return timed(graph.replay, repeats=replays) / calls


def timed(call: Callable[[], object], *, repeats: int) -> float:
    """Median seconds of a call by device events."""
    call()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1000)
    return statistics.median(seconds)


def copy_rate(size: int) -> dict[str, float]:
    """Bytes read plus written per second by PyTorch's copy: of 2 GiB, and of tensors as large as the others."""
    large = torch.randn(2**30, device="cuda").bfloat16()
    other = torch.empty_like(large)
    rates = {"2 GiB": 4 * 2**30 / timed(functools.partial(other.copy_, large), repeats=25)}
    tensors = [torch.randn(size, size, device="cuda").bfloat16() for _ in range(4)]
    seconds = replayed(lambda i: tensors[i % 2].copy_(tensors[2 + i % 2]))
    return {**rates, "same size": 4 * size * size / seconds}


def request(
    form: BlockFormat, along: int, *, square: bool = False, sr: bool = False, size: int = 0
) -> CopyRequest:
    spec = QuantSpec(form, form.tiles_2d if square else form.tiles_1d, rounding="sr" if sr else "rne")
    signs = sign_vector(size, kind="fixed").cuda() if size else None
    return CopyRequest(spec, along, size, signs, SEED + along if sr else None)


def passes() -> dict[str, tuple[list[CopyRequest], torch.dtype]]:
    """Name -> copies that one pass makes, and the input's dtype."""
    bf16, fp32 = torch.bfloat16, torch.float32
    rows = {
        "nvfp4 1x16 rne": ([request(NVFP4, 1)], bf16),
        "nvfp4 1x16 sr": ([request(NVFP4, 1, sr=True)], bf16),
        "nvfp4 16x16 rne": ([request(NVFP4, 1, square=True)], bf16),
        "nvfp4 16x16 rne, fp32 weight": ([request(NVFP4, 1, square=True)], fp32),
        "nvfp4 column, transformed, rne": ([request(NVFP4, 0, size=16)], bf16),
    }
    for form, size in ((NVFP4, 16), (MXFP4, 32), (FP8_BLOCK, 0)):
        for sr in (False, True) if form is not FP8_BLOCK else (False,):
            pair = [request(form, 1, sr=sr), request(form, 0, sr=sr, size=size)]
            rows[f"{form.name} row + column {'sr' if sr else 'rne'}"] = (pair, bf16)
    for form in (MXFP4, FP8_BLOCK):
        rows[f"{form.name} row rne"] = ([request(form, 1)], bf16)
        rows[f"{form.name} square rne, fp32 weight"] = ([request(form, 1, square=True)], fp32)
    return rows


def measure_passes(size: int, rate: float) -> list[dict]:
    """The quantising pass alone (the amax is there), the amax pass alone, and both as `make_operand` runs them."""
    tensors = [torch.randn(size, size, device="cuda") for _ in range(3)]
    inputs = {torch.float32: tensors, torch.bfloat16: [x.bfloat16() for x in tensors]}
    rows = []

    def add(name: str, call: Callable[[int], object], bytes_per_element: int) -> None:
        seconds, floor = replayed(call), bytes_per_element * size * size / rate
        row = {"what": name, "bytes_per_element": bytes_per_element, "floor_us": floor * 1e6}
        row |= {"us": seconds * 1e6, "ratio": floor / seconds, "target": PASS_TARGETS.get(name)}
        rows.append(row)
        target = f"  (target {row['target']:.2f})" if row["target"] else ""
        print(f"{name:44s} {row['floor_us']:8.1f} {row['us']:8.1f} {row['ratio']:6.3f}{target}", flush=True)

    print(f"{'pass':44s} {'floor us':>8s} {'us':>8s} {'ratio':>6s}")
    for name, (requests, dtype) in passes().items():
        x = inputs[dtype]
        asked = tuple(requests)
        plan = binding.plan_pass(x[0], asked)
        signs = tuple(passes_module.signs_of(r, x[0]) for r in asked)
        seeds = tuple(passes_module.seed_words(r.seed) for r in asked)
        read = x[0].element_size()
        written = sum(passes_module.carrier_dtype(r.spec.format).itemsize for r in asked)
        amaxes = [plan.partial_amaxes(t, signs) if plan.has_tensor_scale else None for t in x]
        add(
            name,
            lambda i, p=plan, a=(x, signs, seeds, amaxes): p.quantise(a[0][i % 3], a[1], a[2], a[3][i % 3]),
            read + written,
        )
        if plan.has_tensor_scale:
            add(
                f"{name}, with its amax pass",
                lambda i, p=plan, x=x, r=asked: p.run(x[i % 3], r),
                2 * read + written,
            )
        if name in ("nvfp4 1x16 rne", "nvfp4 row + column rne"):
            add(
                "nvfp4 amax of both" if len(asked) == 2 else "nvfp4 amax",
                lambda i, p=plan, a=(x, signs): p.partial_amaxes(a[0][i % 3], a[1]),
                read,
            )
    return rows


class _Bf16Products(torch.autograd.Function):
    """y = x w^T and its two gradients in BF16, nothing else."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:  # noqa: ANN001
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN001
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


def layer_step(recipe: Recipe | None, shape: tuple[int, int, int]) -> Callable[[int], object]:
    """A forward and backward pass of one layer; recipe None: BF16 tensors throughout."""
    num_tokens, num_inputs, num_outputs = shape
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(num_tokens, num_inputs, device="cuda", generator=generator).bfloat16().requires_grad_()
    grad = torch.randn(num_tokens, num_outputs, device="cuda", generator=generator).bfloat16() * 1e-4
    weight = torch.randn(num_outputs, num_inputs, device="cuda", generator=generator) / num_inputs**0.5
    if recipe is None:
        w = weight.bfloat16().requires_grad_()
        return lambda _: torch.autograd.grad(_Bf16Products.apply(x, w), (x, w), grad)
    context = RunContext(1)
    layer = QuantizedLinear(nn.Parameter(weight), recipe, name="layer", block=0, context=context)

    def step(_: int) -> object:
        context.step = 0
        return torch.autograd.grad(layer(x), (x, layer.weight), grad)

    return step


def measure_layers(recipes: list[str]) -> list[dict]:
    rows = []
    print(
        f"\n{'layer: tokens x in x out':28s} {'recipe':14s} {'ms':>8s} {'/ bf16':>9s} {'eager ms':>8s} {'/ bf16':>9s}"
    )
    for shape in LAYERS:
        base: tuple[float, float] | None = None
        for name in ("bf16 tensors", "bf16 recipe", *recipes):
            recipe = None if name == "bf16 tensors" else load_recipe(RECIPES / f"{name.split()[0]}.yaml")
            step = layer_step(recipe, shape)
            is_slow = name == "fp8_block"
            graph = replayed(step, calls=1 if is_slow else 3, replays=4 if is_slow else 15)
            eager = timed(lambda s=step: [s(0) for _ in range(4)], repeats=3 if is_slow else 9) / 4
            base = base or (graph, eager)
            target = LAYER_TARGETS.get((name, shape))
            row = {"shape": shape, "recipe": name, "ms": graph * 1e3, "over_bf16": graph / base[0]}
            row |= {"eager_ms": eager * 1e3, "eager_over_bf16": eager / base[1], "target": target}
            rows.append(row)
            print(
                f"{'x'.join(map(str, shape)):28s} {name:14s} {row['ms']:8.3f} {row['over_bf16']:9.3f} "
                f"{row['eager_ms']:8.3f} {row['eager_over_bf16']:9.3f}"
                + (f"  (target {target:.2f})" if target else ""),
                flush=True,
            )
            del step
            torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--recipes", default="nvfp4,mxfp4,fp8_block")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    rates = copy_rate(arguments.size)
    print("copy rate, TB/s: " + ", ".join(f"{k} {v / 1e12:.3f}" for k, v in rates.items()))
    record = {
        "device": torch.cuda.get_device_name(),
        "date": datetime.date.today().isoformat(),
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
        },
        "size": arguments.size,
        "copy_bytes_per_second": rates,
        "passes": measure_passes(arguments.size, max(rates.values())),
        "layers": measure_layers(arguments.recipes.split(",")),
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
