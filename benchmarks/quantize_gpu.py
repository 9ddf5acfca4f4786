"""Time the fused GPU quantisers and the quantised linear layer against what the device can do.

    python benchmarks/quantize_gpu.py [--size 8192] [--recipes nvfp4,mxfp4] [--out rows.json]

The rows qdq, pair, amax and layer of `repro bench --full`, with another size of the tensors or some recipes only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from repro.bench.__main__ import describe, run_cases
from repro.bench.layers import RECIPES, layer_cases
from repro.bench.machine import FULL, Machine
from repro.bench.passes import pass_cases
from repro.bench.report import ResultsFile


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--recipes", default=",".join(RECIPES), help="of the layers, with commas between")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    try:
        machine = Machine(torch.device("cuda"), effort=FULL)
        kept = ResultsFile(options.out) if options.out else None
    except ValueError as error:
        parser.error(str(error))
    recipes = ("bf16_tensors", *options.recipes.split(","))
    layers = [case for case in layer_cases(machine) if case.name.split("/")[1] in recipes]
    facts = describe(machine, is_full=True)
    return run_cases([*pass_cases(machine, size=options.size), *layers], machine, facts, kept)


if __name__ == "__main__":
    raise SystemExit(main())
