"""The FP8 baseline on a GPU: its products and their errors, and its layer, with the card's product and emulated.

    python benchmarks/fp8_layer.py [--shapes 8192x5120x20480,...] [--out fp8.json]

Shapes are tokens T x input features K x output features N. For each shape: the relative error of sums of length K
against exact sums; the three products (fprop, dgrad, wgrad) in BF16, by the card and emulated, in TFLOP/s; and the
layer forward and backward, all quantisation included, as a multiple of the time of three BF16 products.

Does not: time other formats or the passes that write the copies (`repro bench`), or check bits (tests/numerics,
tests/recipes).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repro.bench.layers import GPU_SHAPES, Layers
from repro.bench.machine import FULL, Machine
from repro.bench.options import check_gpu, device_named
from repro.bench.report import results_file
from repro.experiments.recipe import load_recipe
from repro.numerics.gpu.fp8_emulation import emulated_product
from repro.numerics.gpu.fp8_operand import Fp8Operand, fp8_copies
from repro.numerics.gpu.fp8_product import block_scaled_product, obstacle
from repro.options import OneLineParser
from repro.portable import provenance
from repro.recipes import QuantizedLinear, RunContext

RECIPE = Path(__file__).parents[1] / "configs" / "recipes" / "fp8_block.yaml"
#: Rows and columns of the products whose errors are measured: exact sums are slow.
ERROR_SIZE = 1024

_Product = Callable[..., Tensor]
_Shape = tuple[int, int, int]


def products(machine: Machine) -> dict[str, _Product]:
    """The products there are here, by the name that a run's record gives them."""
    found: dict[str, _Product] = {} if obstacle(machine.device) else {"card": block_scaled_product}
    return {**found, "emulated": emulated_product}


def operands(machine: Machine, m: int, n: int, k: int, *, square: bool) -> tuple[Fp8Operand, Fp8Operand]:
    """a [m, k] in 1x128 blocks, b [n, k] in either kind, of normal numbers."""
    a = fp8_copies(machine.randn(m, k, seed=1)).rows
    b = fp8_copies(machine.randn(n, k, seed=2).float(), square=square).rows
    assert a is not None
    assert b is not None
    return a, b


def rates(machine: Machine, shape: _Shape) -> Iterator[dict[str, Any]]:
    """TFLOP/s of the three products."""
    t, k, n = shape
    sizes = {
        "fprop": (t, n, k, torch.bfloat16),
        "dgrad": (t, k, n, torch.bfloat16),
        "wgrad": (n, k, t, torch.float32),
    }
    for gemm, (rows, columns, length, dtype) in sizes.items():
        a, b = operands(machine, rows, columns, length, square=gemm != "wgrad")
        x, w = machine.randn(rows, length, seed=1), machine.randn(columns, length, seed=2)
        seconds = {"bf16": machine.seconds(lambda _, x=x, w=w: x @ w.t())}
        for name, product in products(machine).items():
            seconds[name] = machine.seconds(lambda _, p=product, a=a, b=b, d=dtype: p(a, b, dtype=d))
        flops = 2 * rows * columns * length
        yield {"shape": shape, "product": gemm, **{name: flops / s / 1e12 for name, s in seconds.items()}}


def errors(machine: Machine, length: int) -> Iterator[dict[str, Any]]:
    """||D - exact|| / ||exact|| of FP32 results, and the mean of (D - exact) toward larger magnitudes."""
    for square in (True, False):
        a, b = operands(machine, ERROR_SIZE, ERROR_SIZE, length, square=square)
        exact = a.values().double() @ b.values().double().t()
        sums = {"fp32 product of scaled operands": a.values() @ b.values().t()}
        sums |= {name: product(a, b, dtype=torch.float32) for name, product in products(machine).items()}
        for name, found in sums.items():
            difference = found.double() - exact
            yield {
                "k": length,
                "square": square,
                "product": name,
                "relative_error": float(difference.norm() / exact.norm()),
                "bias": float((difference * exact.sign()).sum() / exact.abs().sum()),
            }


def layers(machine: Machine, shape: _Shape) -> Iterator[dict[str, Any]]:
    """Forward and backward as a CUDA graph, and eagerly."""
    bench = Layers(machine)
    x, grad, weight = bench.tensors(shape)
    found = bench.measure_floor(shape)
    yield {"shape": shape, "product": "bf16", "ms": found.measured * 1e3, **found.details}
    for name in products(machine):
        context = RunContext(1, emulate_fp8=name == "emulated")
        layer = QuantizedLinear(
            nn.Parameter(weight), load_recipe(RECIPE), name="layer", block=0, context=context
        )

        def step(_: int, layer: QuantizedLinear = layer, context: RunContext = context) -> object:
            context.step = 0
            return torch.autograd.grad(layer(x), (x, layer.weight), grad)

        found = bench.compare(step, shape)
        row = {"shape": shape, "product": name, "ms": found.measured * 1e3, "over_bf16": found.ratio}
        yield {**row, **found.details}


def shape_of(words: str) -> _Shape:
    """ "8192x5120x20480" -> tokens, input and output features."""
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)", words, re.ASCII)
    shape = tuple(map(int, found.groups())) if found else (0,)
    if min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{words!r}: tokens x input x output features, e.g. 8192x4096x4096")
    return shape  # type: ignore[return-value]


def prepare(words: list[str]) -> tuple[argparse.Namespace, Machine]:
    """The options, checked; what is wrong ends the process in one line, before anything is measured."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ",".join("x".join(map(str, shape)) for shape in GPU_SHAPES)
    parser.add_argument(
        "--shapes", type=lambda words: [shape_of(word) for word in words.split(",")], default=known
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(words)
    with parser.telling():
        device = device_named(options.device)
        check_gpu("the kernels of the FP8 baseline")
        if device.type != "cuda":
            raise ValueError(f"--device {options.device!r}: the kernels of the FP8 baseline run on a GPU")
        machine = Machine(device, effort=FULL)
        options.out = results_file(options.out)
    return options, machine


def main() -> None:
    options, machine = prepare(sys.argv[1:])
    shapes = options.shapes
    report = {**provenance.describe(machine.device), "obstacle": obstacle(machine.device)}
    parts: dict[str, Iterator[dict[str, Any]]] = {
        "errors": (row for shape in shapes for row in errors(machine, shape[1])),
        "rates": (row for shape in shapes for row in rates(machine, shape)),
        "layers": (row for shape in shapes for row in layers(machine, shape)),
    }
    for part, rows in parts.items():
        report[part] = []
        for row in rows:
            report[part].append(row)
            print(
                part,
                *(f"{key} {value:.4g}" if isinstance(value, float) else value for key, value in row.items()),
            )
    if options.out:
        options.out.write(report)


if __name__ == "__main__":
    main()
