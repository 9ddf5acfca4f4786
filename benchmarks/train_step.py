"""Time training steps of the proxy tier's models: tokens per second of BF16, NVFP4, FP8 and MXFP4 in one run.

    python benchmarks/train_step.py [--models 224m 8b 53m] [--recipes bf16 nvfp4] [--steps 10] [--out results.json]
    torchrun --nproc-per-node 2 benchmarks/train_step.py ...        the same batch per GPU on two
    python benchmarks/train_step.py --runs-per-gpu 1 2 3 ...        so many runs at once on one GPU: their sum

What is timed is the trainer's own step (repro.portable.step): batches from the host, forward, backward, clipping,
AdamW, the loss read back; checkpoints and validation are not. Tokens are random, which costs what text costs.
Columns: median over the steps, spread (10th to 90th percentile), ratio to BF16 of the same model, TFLOP/s by
6 N D and their share of the measured BF16 product, peak memory of a process. On a CPU it runs too (--micro 1
--batch 2). REPRO_CUDA_GRAPHS=0 times steps without CUDA graphs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from repro.bench.machine import Machine
from repro.bench.options import check_batch
from repro.bench.report import ResultsFile, results_file
from repro.bench.steps import MODELS, RECIPE_RUNS, RandomText, StepCase, TrainingRun, make_case
from repro.experiments.plan import load
from repro.models.fragments import is_fusing
from repro.options import OneLineParser, amount, whole_number
from repro.portable import gpu, provenance
from repro.portable.parallel import ProcessLost, Ranks, launched_as

__all__ = ["RandomText", "make_case", "profile"]  # for train_step_megatron.py


class RunFailed(RuntimeError):  # noqa: N818 - what happened, in the words of the message
    """One of several runs on a GPU did not end well; it has said why."""


def time_case(
    case: StepCase, ranks: Ranks, device: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    """Seconds of each timed step and what they mean; the first steps, which compile, are told apart."""
    run = TrainingRun(case, device, ranks, fuse=options.compile)
    taken = []
    for number in range(options.warmup + options.steps):
        if number == options.warmup and options.gate:
            pass_gate(options.gate)
        taken.append(run.step(number))
    if options.profile and ranks.is_first:
        profile(lambda: run.step(number + 1))
    seconds, losses = zip(*taken, strict=True)
    timed = seconds[options.warmup :]
    return {
        **run.describe(statistics.median(timed)),
        "compiled": is_fusing(),
        "seconds": [round(value, 5) for value in timed],
        "first_step_seconds": round(seconds[0], 2),
        "losses": losses,
    }


def pass_gate(folder: Path) -> None:
    """Says that the timed steps could begin, and waits until they may."""
    (folder / f"ready.{os.getpid()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)


def time_shared(count: int, model: str, recipe: str, options: argparse.Namespace) -> dict[str, Any]:
    """`count` runs at once on this GPU, each in a process of its own; they start their timed steps together."""
    with tempfile.TemporaryDirectory() as name:
        gate = Path(name)
        files = [gate / f"{number}.json" for number in range(count)]
        runs = [
            subprocess.Popen(
                child_command(model, recipe, options, gate=gate, out=file), stdout=subprocess.DEVNULL
            )
            for file in files
        ]
        while len(list(gate.glob("ready.*"))) < count and all(run.poll() is None for run in runs):
            time.sleep(0.05)
        (gate / "go").touch()
        codes = [run.wait() for run in runs]  # all have ended before the folder goes
        if any(codes):
            raise RunFailed(f"{count} runs of {model} {recipe} on one GPU: one failed")
        return merge([json.loads(file.read_text(encoding="utf-8"))["cases"][0] for file in files])


def child_command(
    model: str, recipe: str, options: argparse.Namespace, *, gate: Path, out: Path
) -> list[str]:
    """One of several runs on a GPU as a command: one case, timed as `options` say, its row written to `out`."""
    command = [sys.executable, __file__, "--models", model, "--recipes", recipe]
    for key in ("steps", "warmup", "batch", "micro"):
        command += [f"--{key}", str(getattr(options, key))]
    command.append("--compile" if options.compile else "--no-compile")
    return [*command, "--gate", str(gate), "--out", str(out)]


def merge(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """One row for the runs that shared a GPU: their tokens and FLOP/s added, the steps of all of them.

    What they have in common (losses, `compiled`, `scan`) is the first one's; the first step and the peak memory are
    the largest of one process.
    """
    rates = [case["tokens_per_second"] for case in cases]
    return {
        **cases[0],
        "runs_per_gpu": len(cases),
        "tokens_per_second": sum(rates),
        "tokens_per_second_of_runs": rates,
        "flops_per_second_6nd": sum(case["flops_per_second_6nd"] for case in cases),
        "seconds": [value for case in cases for value in case["seconds"]],
        "first_step_seconds": max(case["first_step_seconds"] for case in cases),
        "peak_memory_bytes": max(case["peak_memory_bytes"] for case in cases),
    }


def profile(step: Any) -> None:
    """Where the GPU's time of one step goes, by kernel; printed, and how busy the GPU was."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        began = time.perf_counter()
        step()
        wall = time.perf_counter() - began
    rows = [
        row
        for row in recorded.key_averages()
        if row.self_device_time_total and row.device_type.name == "CUDA"
    ]
    busy = sum(row.self_device_time_total for row in rows) * 1e-6
    print(f"  profile: GPU busy {busy * 1e3:.1f} ms of {wall * 1e3:.1f} ms (recording slows the host)")
    for row in sorted(rows, key=lambda row: -row.self_device_time_total)[:45]:
        print(f"  {row.self_device_time_total * 1e-3:8.2f} ms {row.count:5d} x {row.key[:100]}")


def product_rate(device: torch.device) -> float | None:
    """FLOP/s of an 8192^3 BF16 product; None on a CPU."""
    if device.type != "cuda":
        return None
    return 2 * 8192**3 / Machine(device).bf16_product_seconds(8192, 8192, 8192)


def show(rows: list[dict[str, Any]], product: float | None) -> None:
    print(
        f"{'model':6} {'recipe':10} n {'params':>7} {'tokens/s':>9} {'10-90 %':>15} {'/ bf16':>6} {'TFLOP/s':>8} "
        f"{'of mm':>6} {'GiB':>6} {'first s':>8}"
    )
    for row in rows:
        bf16 = [r["tokens_per_second"] for r in rows if r["model"] == row["model"] and r["recipe"] == "bf16"]
        ratio = row["tokens_per_second"] / bf16[0] if bf16 else float("nan")
        share_of_gpu = row.get("runs_per_gpu", 1)
        rates = sorted(share_of_gpu * row["tokens_per_step"] / value for value in row["seconds"])
        low, high = rates[len(rates) // 10], rates[-1 - len(rates) // 10]
        flops = row["flops_per_second_6nd"]
        share = flops / row["processes"] / product if product else float("nan")
        print(
            f"{row['model']:6} {row['recipe']:10} {share_of_gpu} {row['parameters'] / 1e6:6.1f}M "
            f"{row['tokens_per_second']:9,d} "
            f"{low / 1e3:7.1f}k-{high / 1e3:.1f}k {ratio:6.3f} {flops / 1e12:8.1f} {share:6.3f} "
            f"{(row['peak_memory_bytes'] or 0) / 2**30:6.1f} {row['first_step_seconds']:8.1f}"
        )


def write(kept: ResultsFile, rows: list[dict[str, Any]], device: torch.device, product: float | None) -> None:
    """After every case, so that a run that is cut short leaves what it measured.

    How a case ran (`compiled`, `scan`, `graphs`) stands in its row: it may have run in another process.
    """
    content = {
        **provenance.describe(device),
        "bf16_product_flops_per_second": product,
        "cases": rows,
    }
    kept.write(content)


def parse(words: list[str]) -> argparse.Namespace:
    """The options, checked; what is wrong ends the process in one line, before anything is measured."""
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["224m", "8b", "53m"], choices=list(MODELS))
    parser.add_argument("--recipes", nargs="+", default=list(RECIPE_RUNS), choices=list(RECIPE_RUNS))
    parser.add_argument("--steps", type=whole_number(), default=10)
    parser.add_argument("--warmup", type=whole_number(0), default=3)
    parser.add_argument("--batch", type=whole_number(), default=64, help="sequences of a step, per process")
    parser.add_argument("--micro", type=whole_number(), default=32, help="sequences of a micro batch")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--profile", action="store_true", help="print where one step's time goes")
    parser.add_argument("--runs-per-gpu", type=whole_number(), nargs="+", default=None)
    parser.add_argument("--gate", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument(
        "--seconds", type=amount("seconds"), default=1e9, help="start no further case after this"
    )
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(words)
    if options.profile and options.runs_per_gpu:
        parser.error("--profile shows a run that has the GPU to itself: not with --runs-per-gpu")
    with parser.telling():
        check_batch(options.batch, [options.micro])
        rank, size = launched_as()
        if size > 1 and options.runs_per_gpu:
            raise ValueError(f"--runs-per-gpu starts the runs itself: not with WORLD_SIZE {size}")
        if options.profile and not torch.cuda.is_available():
            raise ValueError("--profile shows where a GPU's time goes, and there is none here")
        options.out = results_file(options.out) if rank == 0 else None
    return options


def main() -> int:
    """The exit code: 0 measured, 1 a run failed or none was started, 2 wrong options."""
    options = parse(sys.argv[1:])
    try:
        return measure(options)
    except (ValueError, RunFailed, ProcessLost) as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr, flush=True)
        return 1


def measure(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(gpu.device_of("cuda") if kind == "cuda" else "cpu")
    if kind == "cuda":
        gpu.prepare_process(device)
    ranks = Ranks.join(kind)
    plan = load("proxy")
    product = product_rate(device)
    rows: list[dict[str, Any]] = []
    for model in options.models:
        for recipe in options.recipes:
            if ranks.any(time.perf_counter() - began > options.seconds):
                break
            if options.runs_per_gpu:
                rows += [time_shared(count, model, recipe, options) for count in options.runs_per_gpu]
            else:
                case = make_case(plan, model, recipe, batch=options.batch * ranks.size, micro=options.micro)
                rows.append(time_case(case, ranks, device, options))
            gc.collect()
            if kind == "cuda":
                torch.cuda.empty_cache()
            if options.out:
                write(options.out, rows, device, product)
            if ranks.is_first:
                print(
                    json.dumps({k: v for k, v in rows[-1].items() if k not in ("losses", "seconds")}),
                    flush=True,
                )
    if not rows:
        raise ValueError(f"no case could be started within --seconds {options.seconds:g}")
    if ranks.is_first:
        show(rows, product)
        print("scan:", ", ".join(sorted({row["scan"] for row in rows})))
    ranks.leave()
    return 0


def end(code: int) -> None:
    """Ends the process; one of several without Python's tidying up, which PyTorch's process groups abort (134)."""
    if launched_as()[1] == 1:
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
