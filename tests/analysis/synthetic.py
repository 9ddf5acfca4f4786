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

REPO = Path(__file__).resolve().parents[2]

Gap = Callable[[str, float], float]


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
        "precision": [],
        "provenance": {"git_commit": "0" * 40, "run_hash": frozen["run_hash"], "versions": {"torch": "0.0"},
                       "device": "invented", "seed": frozen["seed"], "threads": 1, "seconds": 1.0,
                       "tokens_per_second": 1.0, "peak_memory_bytes": 1, "date": "2000-01-01"},
    }  # fmt: skip
    path.with_name("done.json").write_text(json.dumps(done))
