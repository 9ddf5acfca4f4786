"""Time training steps of a Llama of transformers: as it is, and with each recipe put into it (docs/own_model.md).

    python benchmarks/any_model_step.py [--recipes bf16 nvfp4] [--compile] [--out steps.json]
    python benchmarks/any_model_step.py --hidden 256 --blocks 4 --length 128 --batch 1 --steps 2       a CPU, 1 minute

Rows: `nn.Linear` is the model under autocast to BF16, the floor of the others; then the recipes of configs/recipes,
the last 15 % of the blocks in BF16, without autocast for the layers that carry them. A step is one forward and
backward pass of random tokens, clipping and a fused AdamW step, in eager PyTorch; with --compile each block is
compiled, and calls quantised layers as they stand (repro/recipes/compiled.py). Columns: tokens per second by the
median step, its ratio to `nn.Linear`, peak memory, first and last loss.

Does not: use what this project's own trainer has besides (CUDA graphs, joined passes): that is train_step.py.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repro.bench.report import results_file
from repro.options import OneLineParser, whole_number
from repro.portable import provenance
from repro.recipes import RunContext, apply_recipe, blocks_of, follow_training, load_recipe

PLAIN = "nn.Linear"
RECIPES = ("bf16", "fp8_block", "mxfp4", "nvfp4")
VOCABULARY, HEAD_DIM = 32_000, 64


def build(options: argparse.Namespace, device: torch.device) -> nn.Module:
    """A Llama with FP32 weights, the same for every row."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
        num_hidden_layers=options.blocks,
        num_attention_heads=options.hidden // HEAD_DIM,
        max_position_embeddings=options.length,
        use_cache=False,
    )
    with device:
        return transformers.LlamaForCausalLM(config).train()


def time_case(name: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Seconds of each timed step of one row, and what they mean."""
    model = build(options, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if name != PLAIN:
        last = math.ceil(0.15 * options.blocks)
        recipe = load_recipe(Path("configs/recipes") / f"{name}.yaml")
        context = RunContext(run_seed=1)
        apply_recipe(
            blocks_of(model),
            recipe.with_changes({"bf16_blocks": {"first": 0, "last": last}}),
            context=context,
        )
        follow_training(context, model, optimizer)
    if options.compile:
        for block in model.model.layers:
            block.compile()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    generator = torch.Generator().manual_seed(1)
    seconds, losses = [], []
    for _ in range(options.warmup + options.steps):
        tokens = torch.randint(VOCABULARY, (options.batch, options.length), generator=generator)
        began = time.perf_counter()
        losses.append(_step(model, optimizer, tokens.to(device)))  # read back: the device has finished
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds[options.warmup :])
    return {
        "row": name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokens_per_second": round(options.batch * options.length / median),
        "seconds": [round(value, 5) for value in seconds[options.warmup :]],
        "first_step_seconds": round(seconds[0], 2),
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        "losses": losses,
    }


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> float:
    optimizer.zero_grad()
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def parse(words: list[str]) -> argparse.Namespace:
    """The options, checked; what is wrong ends the process in one line, before anything is measured."""
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--hidden", type=whole_number(), default=1024, help=f"a multiple of {HEAD_DIM}")
    parser.add_argument("--blocks", type=whole_number(), default=16)
    parser.add_argument("--length", type=whole_number(), default=1024, help="tokens of a sequence")
    parser.add_argument("--batch", type=whole_number(), default=16, help="sequences of a step")
    parser.add_argument("--steps", type=whole_number(), default=10)
    parser.add_argument("--warmup", type=whole_number(0), default=3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    with parser.telling():
        if options.hidden % HEAD_DIM:
            raise ValueError(f"--hidden {options.hidden} is no multiple of {HEAD_DIM}, the size of a head")
        if options.batch * options.length % 16:
            raise ValueError(
                f"--batch {options.batch} of --length {options.length}: {options.batch * options.length} tokens "
                "are no multiple of 16, the size of Wgrad's transform"
            )
        if importlib.util.find_spec("transformers") is None:
            raise ValueError("needs transformers, whose Llama it times")
        options.out = results_file(options.out)
    return options


def main(time_one: Callable[..., dict[str, Any]] = time_case) -> int:
    options = parse(sys.argv[1:])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{'row':12} {'tokens/s':>10} {'/ nn.Linear':>11} {'GiB':>6}  loss")
    rows: list[dict[str, Any]] = []
    for name in (PLAIN, *options.recipes):
        rows.append(time_one(name, options, device))
        row = rows[-1]
        row["ratio"] = row["tokens_per_second"] / rows[0]["tokens_per_second"]
        print(
            f"{name:12} {row['tokens_per_second']:10,d} {row['ratio']:11.3f} "
            f"{(row['peak_memory_bytes'] or 0) / 2**30:6.1f}  {row['losses'][0]:.4f} to {row['losses'][-1]:.4f}",
            flush=True,
        )
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if options.out:
            asked = {key: value for key, value in vars(options).items() if key != "out"}
            options.out.write({**provenance.describe(device), "options": asked, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
