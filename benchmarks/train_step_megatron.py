"""Time megatron-core's training step on the model that benchmarks/train_step.py times on the portable trainer.

    torchrun --standalone --nproc-per-node 1 benchmarks/train_step_megatron.py --layout h200x8 --out results.json
        [--model 8b] [--recipe bf16] [--emulate] [--batch 128] [--micro 16 32 64]
        [--also="--cross-entropy-loss-fusion"]

Same model, sequence length, batch, optimizer and random tokens; megatron-core's own `train_step`, with the arguments
that the cluster backend gives it (repro.cluster.arguments), once for each size of micro batch: the fastest counts.
`--also`: options of megatron-core that are added, which may make it faster. What is timed: batches from the host,
forward, backward, clipping, AdamW, the loss read back.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from train_step import RandomText, make_case, profile

from repro.bench.options import check_batch, check_gpu
from repro.bench.report import results_file
from repro.bench.steps import MODELS, RECIPE_RUNS
from repro.cluster import stack
from repro.cluster.data import as_sample
from repro.cluster.entry import build_model
from repro.cluster.frozen import segment_of
from repro.cluster.job import LAUNCH, Job
from repro.cluster.layout import load_layout
from repro.cluster.loop import MegatronLoop
from repro.cluster.state import find_start
from repro.experiments.plan import load
from repro.options import OneLineParser, whole_number
from repro.portable import gpu, provenance
from repro.portable.parallel import variable

#: Options that hide the exchange between GPUs; of one they only cost.
_OF_SEVERAL_GPUS = ("--overlap-grad-reduce", "--overlap-param-gather")


def connect(model: list[Any], optimizer: Any) -> None:
    """What megatron-core's `train` does before its first step."""
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.utils import get_model_config

    config = get_model_config(model[0])
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    for chunk in model:
        chunk.train()


def make_job(options: argparse.Namespace) -> Job:
    plan = load("proxy")
    case = make_case(plan, options.model, options.recipe, batch=options.batch, micro=options.micro[0])
    step = options.batch * case.schedule["sequence_length_tokens"]
    # The tier's positions are whole steps of its own batch; rates do not matter here.
    schedule = {
        key: value // step * step if key.endswith("_tokens") and key != "sequence_length_tokens" else value
        for key, value in case.schedule.items()
    }
    content = {
        **plan.segment("8b_nvfp4", 0).frozen,
        "model": case.spec.model_dump(),
        "recipe": case.recipe.model_dump(),
        "schedule": schedule,
    }
    segment = segment_of(content, Path("benchmark"))
    layout = load_layout(options.layout)
    return Job(segment, layout, Path(), Path("no-state"), emulate=options.emulate)


def micro_batches(text: RandomText, rows: int, first: int) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of `rows` sequences on the CPU, in pinned memory, without end."""
    while True:
        samples = [as_sample(window) for window in text.batch(first, rows)]
        yield {key: torch.stack([s[key] for s in samples]).pin_memory() for key in samples[0]}
        first += rows


def time_steps(job: Job, micro: int, parts: tuple[Any, ...], options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each timed step with micro batches of `micro` sequences."""
    from megatron.core.num_microbatches_calculator import reconfigure_num_microbatches_calculator
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.utils import get_model_config
    from megatron.training.training import train_step

    model, optimizer, scheduler, args, loop = parts
    reconfigure_num_microbatches_calculator(0, None, options.batch, micro, 1)
    args.micro_batch_size = micro
    length = job.segment.schedule["sequence_length_tokens"]
    batches = micro_batches(RandomText(job.segment.model, length), micro, 0)
    torch.cuda.reset_peak_memory_stats()

    def step(number: int) -> float:
        args.curr_iteration = number
        losses, *_ = train_step(
            loop.forward_step, batches, model, optimizer, scheduler, get_model_config(model[0]),
            get_forward_backward_func(), iteration=number,
        )  # fmt: skip
        return float(losses["lm loss"])

    seconds, read = [], []
    for number in range(options.warmup + options.steps):
        began = time.perf_counter()
        read.append(step(number))
        seconds.append(time.perf_counter() - began)
    if options.profile:
        profile(lambda: step(options.warmup + options.steps))
    timed = seconds[options.warmup :]
    return {
        "micro_batch_sequences": micro,
        "tokens_per_second": round(options.batch * length / statistics.median(timed)),
        "seconds": [round(value, 5) for value in timed],
        "first_step_seconds": round(seconds[0], 2),
        "peak_memory_bytes": torch.cuda.max_memory_allocated(),
        "losses": read,
    }


def parser_of_options() -> OneLineParser:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="8b", choices=list(MODELS))
    parser.add_argument("--recipe", default="bf16", choices=list(RECIPE_RUNS))
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--layout", required=True)
    parser.add_argument("--batch", type=whole_number(), default=128, help="sequences of a step")
    parser.add_argument(
        "--micro", type=whole_number(), nargs="+", default=[16, 32, 64], help="sequences of a micro batch"
    )
    parser.add_argument("--steps", type=whole_number(), default=6)
    parser.add_argument("--warmup", type=whole_number(0), default=3)
    parser.add_argument("--also", default="", help="further options of megatron-core, in one string")
    parser.add_argument("--profile", action="store_true", help="print where one step's time goes")
    parser.add_argument("--out", type=Path)
    return parser


def prepare(words: list[str]) -> tuple[argparse.Namespace, Job]:
    """The options and the job, checked; what is wrong ends the process in one line, before anything is built."""
    parser = parser_of_options()
    options = parser.parse_args(words)
    with parser.telling():
        check_batch(options.batch, options.micro)
        job = make_job(options)
        stack.check_packages(job.segment.model)
        check_gpu("megatron-core's steps")
        if missing := [name for name in LAUNCH if name not in os.environ]:
            raise ValueError(f"{', '.join(missing)} is not set; start it by torchrun --nproc-per-node 1")
        if variable("WORLD_SIZE") != 1:
            raise ValueError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but batches here are those of one process"
            )
        gpu.device_of("cuda")
        options.out = results_file(options.out)
    return options, job


def main() -> int:
    options, job = prepare(sys.argv[1:])
    job.set_environment()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    start = find_start(job.segment, job.state_root)
    given = [a for a in job.arguments(start) if a.option not in _OF_SEVERAL_GPUS]
    words = [word for argument in given for word in argument.words]
    model, optimizer, scheduler, args = build_model([*words, *options.also.split()])
    connect(model, optimizer)
    loop = MegatronLoop(job.segment, job.decision, Path())
    loop.precision_before(model)
    about = {
        **provenance.describe(device),
        "stack": {
            name: stack.installed(name) for name in ("megatron-core", "transformer-engine", "causal-conv1d")
        },
        "model": options.model,
        "recipe": options.recipe,
        "path": job.decision.path,
        "parameters": loop.num_parameters(model),
        "also": options.also,
        "memory_efficient_mamba": args.use_mamba_mem_eff_path,
    }
    rows = []
    for micro in options.micro:
        rows.append(time_steps(job, micro, (model, optimizer, scheduler, args, loop), options))
        print(json.dumps({k: v for k, v in rows[-1].items() if k not in ("losses", "seconds")}), flush=True)
        if options.out:  # after every case, so that what was measured stays when a later one fails
            options.out.write({**about, "cases": rows})
    loop.precision_after(model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
