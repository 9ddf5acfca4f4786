"""A results folder with invented numbers in the exact file formats, for tests only.

Runs are frozen by repro.experiments from the real configs of a tier; losses are a smooth made-up curve with a gap per
recipe and seeded noise, so that a test can say beforehand what must come out. Nothing here was trained.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml

from repro.experiments import freeze_all, load
from repro.experiments.recipe import GEMM_OPERANDS, Recipe

REPO = Path(__file__).resolve().parents[2]

Gap = Callable[[str, float], float]


GAPS = {
    "last4": 1.2,
    "2d": -0.3,
    "rht": -0.2,
    "sr": -0.2,
    "nvfp4": 0.8,
    "without": 0.5,
    "mxfp4": 1.5,
    "signs": 0.9,
}


def named_gap(run: str, fraction: float) -> float:
    """A gap that follows from the words of a run's name and opens along training."""
    return sum(size for word, size in GAPS.items() if word in run) * (0.5 + 0.7 * fraction)


def no_gap(run: str, fraction: float) -> float:
    return 0.0


def write_results(
    folder: Path,
    *,
    tier: str = "tiny",
    gap_percent: Gap = no_gap,
    noise_percent: float = 0.0,
    diverges: dict[str, float] | None = None,
    num_parameters: int = 300_000,
) -> Path:
    """Writes <folder>/<tier> with every run of the tier.

    gap_percent(run, fraction): how much worse than the baseline curve the run is, in per cent of the loss.
    noise_percent: size of a constant offset drawn per run and seed. diverges: run -> fraction of the horizon.
    """
    plan = load(tier, configs_dir=REPO / "configs")
    results = folder / tier
    freeze_all(plan, results)
    for path in sorted(results.glob("runs/*/*/run.yaml")):
        _write_segment(path, gap_percent, noise_percent, diverges or {}, num_parameters)
    return results


def _write_segment(
    path: Path, gap: Gap, noise: float, diverges: dict[str, float], num_parameters: int
) -> None:
    frozen = yaml.safe_load(path.read_text())
    run, schedule = frozen["run"], frozen["schedule"]
    step_tokens = schedule["batch_sequences"] * schedule["sequence_length_tokens"]
    horizon = schedule["horizon_tokens"]
    end_at = diverges.get(run, 2.0) * horizon
    offset = noise * np.random.default_rng(zlib.crc32(run.encode())).standard_normal()
    lines, status, tokens = [], "completed", schedule["start_tokens"]
    for tokens in range(schedule["start_tokens"] + step_tokens, schedule["end_tokens"] + 1, step_tokens):
        fraction = tokens / horizon
        loss = (4.2 + 2.5 * np.exp(-12 * fraction) - 0.5 * max(0.0, fraction - 0.8)) * (
            1 + (gap(run, fraction) + offset) / 100
        )
        wiggle = 0.05 * np.sin(tokens / step_tokens * 2.4)
        lines.append(
            {"kind": "train", "step": tokens // step_tokens, "tokens": tokens, "loss": loss + wiggle,
             "grad_norm": 1.0, "learning_rate": 1e-3, "nonfinite": 0, "seconds": 0.05,
             "tokens_per_second": 9000.0, "peak_memory_bytes": 1}
        )  # fmt: skip
        if tokens >= end_at:
            lines[-1]["loss"] = None
            lines.append({"kind": "event", "event": "diverged", "step": tokens // step_tokens, "tokens": tokens,
                          "reason": "invented"})  # fmt: skip
            status = "diverged"
            break
        if tokens % frozen["validation"]["every_tokens"] == 0 or tokens == schedule["end_tokens"]:
            lines.append({"kind": "validation", "step": tokens // step_tokens, "tokens": tokens, "loss": loss,
                          "loss_by_category": {"code": loss}, "seconds": 0.1})  # fmt: skip
    path.with_name("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = {
        "run": run,
        "segment": frozen["segment"],
        "run_hash": frozen["run_hash"],
        "status": status,
        "end_tokens": tokens,
        "final": {"train_loss": None, "validation_loss": None},
        "num_parameters": num_parameters,
        "precision": _precision(frozen),
        "provenance": {"git_commit": "0" * 40, "run_hash": frozen["run_hash"], "versions": {"torch": "0.0"},
                       "device": "invented", "seed": frozen["seed"], "threads": 1, "seconds": 1.0,
                       "tokens_per_second": 1.0, "peak_memory_bytes": 1, "date": "2000-01-01"},
    }  # fmt: skip
    path.with_name("done.json").write_text(json.dumps(done))


def write_evaluations(results: Path, *, code_drop: float = 0.0) -> None:
    """Scores of both 12B runs at five checkpoints; NVFP4's code tasks are `code_drop` (fraction of 1) lower."""
    groups = {
        "general": ["g1", "g2"],
        "math": ["m1"],
        "multilingual": ["l1"],
        "code": ["c1"],
        "commonsense": ["s1"],
    }
    (results / "evaluations").mkdir(exist_ok=True)
    for run in ("12b_fp8", "12b_nvfp4"):
        lines = ["run,tokens,fraction,task,group,metric,value,stderr,num_items,chance"]
        for fraction in (0.2, 0.4, 0.6, 0.8, 1.0):
            for group, tasks in groups.items():
                drop = code_drop if group == "code" and run == "12b_nvfp4" else 0.0
                for task in [*tasks, "mean"]:
                    metric = "mean" if task == "mean" else "acc"
                    value = 0.25 + 0.2 * fraction - drop
                    place = f"{run},{int(81920 * fraction)},{fraction}"
                    lines.append(f"{place},{task},{group},{metric},{value},0.02,1000,0.25")
        (results / "evaluations" / f"{run}.csv").write_text("\n".join(lines) + "\n")


def write_mechanisms(results: Path, *, rising: float = 0.0) -> None:
    """Every quantity of repro.mechanisms; wgrad_quant_error rises by `rising` from the first to the last block."""
    (results / "mechanisms").mkdir(exist_ok=True)
    variants = {
        ("dgrad", "g", "gradient_bias"): {"rne": 0.1, "sr": 0.02, "sr_floor": 0.015},
        ("dgrad", "g", "gradient_error"): {"rne": 0.1, "sr": 0.14},
        ("wgrad", "dw", "wgrad_error"): {"rht": 0.09, "none": 0.11},
        ("wgrad", "dw", "wgrad_quant_error"): {"base": 0.1},
        ("dgrad", "w", "weight_mismatch"): {"1d": 0.12, "2d": 0.0},
        ("fprop", "x", "near_fp8_share"): {"nvfp4": 0.07, "mxfp4": 0.02},
    }
    for run, layers in (("12b_nvfp4", ["in_proj", "out_proj"]), ("1p2b_last4", ["q_proj", "down_proj"])):
        blocks = 16 if run.startswith("12b") else 10
        lines = ["run,tokens,fraction,layer,block,gemm,tensor,quantity,variant,value"]
        for fraction in (0.343, 1.0):
            for block in range(blocks):
                for layer in layers:
                    for (gemm, tensor, quantity), values in variants.items():
                        for variant, value in values.items():
                            if quantity == "wgrad_quant_error":
                                value += rising * block / (blocks - 1) + 0.001 * ((7 * block) % 5)
                            lines.append(
                                f"{run},{int(81920 * fraction)},{fraction},model.layers.{block}.{layer},{block},"
                                f"{gemm},{tensor},{quantity},{variant},{value:.6g}"
                            )
        (results / "mechanisms" / f"{run}.csv").write_text("\n".join(lines) + "\n")


def write_bench(results: Path) -> None:
    """Rates and packed sizes as `repro bench` writes them."""
    (results / "bench").mkdir(exist_ok=True)
    shape = {"m": 1024, "n": 1024, "k": 1024}
    emulated, absent = ("fp8_block", "mxfp8", "mxfp4", "nvfp4"), ("mxfp8", "mxfp4", "nvfp4")
    rows = [_bench_row("product/bf16/native", 0.1, 1.0, "", {"tflops": 0.02, **shape})]
    rows += [
        _bench_row(f"product/{name}/emulated", 0.2, 0.5, "", {"tflops": 0.01, **shape}) for name in emulated
    ]
    rows += [
        _bench_row(f"product/{name}/native", None, None, "needs compute capability 10.0 or 10.3: FP4", {})
        for name in absent
    ]
    for name, bits, tensor_bytes in (
        ("nvfp4/1x16", 4.5, 4),
        ("mxfp4/1x32", 4.25, 0),
        ("fp8_block/1x128", 8.25, 0),
        ("mxfp8/1x32", 8.25, 0),
    ):
        num_values = 2**20
        num_bytes = int(num_values * bits / 8) + tensor_bytes
        details = {"num_values": num_values, "bits_per_value": 8 * num_bytes / num_values}
        details["over_fp8"] = num_bytes / (num_values * 8.25 / 8)
        rows.append(_bench_row(f"storage/{name}", num_bytes, 1.0, "", details))
    report = {
        "git_commit": "0" * 40,
        "versions": {"torch": "0.0"},
        "device": "invented",
        "threads": 1,
        "date": "2000-01-01",
        "rows": rows,
    }
    (results / "bench" / "gemm.json").write_text(json.dumps(report))


def _bench_row(
    name: str, measured: float | None, ratio: float | None, note: str, details: dict[str, float]
) -> dict:
    """The keys of a row that figures read."""
    return {"name": name, "measured": measured, "ratio": ratio, "note": note, "details": details}


def _precision(frozen: dict) -> list[dict]:
    """One made-up layer a block, as the trainer records it."""
    recipe = Recipe.model_validate(frozen["recipe"])
    model = frozen["model"]
    num_blocks = len(model["pattern"]) // model["symbols_per_block"]
    kept = recipe.blocks_in_bf16(num_blocks)
    return [
        {
            "layer": f"layers.{block}.in_proj",
            "block": block,
            "gemm": gemm,
            "operand": operand,
            **(recipe.in_bf16() if block in kept else recipe).rule(gemm, operand).model_dump(),
        }
        for block in range(num_blocks)
        for gemm, operands in GEMM_OPERANDS.items()
        for operand in operands
    ]
