"""A training step of the stand-ins: the trainer's own step on random tokens, under each recipe.

    step/MODEL/RECIPE    forward, backward, clipping, AdamW, the loss read back; batches come from the host

On a GPU models of the proxy tier, and two of the same parts with 53 and 224 million parameters; on a CPU the tiny
tier's.
Blocks that keep BF16 follow the model's NVFP4 run. Floor: the BF16 step of the same model; `ratio` is the floor's
time over the row's, which is tokens per second over those of BF16. Random tokens cost what text costs.

Does not: time checkpoints or validation. Several GPUs: benchmarks/train_step.py under torchrun.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from repro.bench.machine import Machine
from repro.bench.rows import Case, Measurement, Target

if TYPE_CHECKING:  # these need pydantic, which a machine that only times passes may lack
    from repro.experiments.model import ModelSpec
    from repro.experiments.plan import Plan
    from repro.experiments.recipe import Recipe
    from repro.portable.parallel import Ranks
    from repro.recipes.apply import Record

#: Recipe -> a run that trains with it, in every tier.
RECIPE_RUNS = {"bf16": "8b_bf16", "nvfp4": "8b_nvfp4", "fp8_block": "12b_fp8", "mxfp4": "8b_mxfp4"}
#: Model -> a run whose model, schedule and BF16 blocks it takes, and what differs. "53m": millions of parameters.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "53m": ("8b_nvfp4", {"pattern": "M-M-M*-M-M-M*-M-", "ffn_hidden_size": 2304, "vocab_size": 16384}),
    "224m": (
        "12b_nvfp4",
        {
            "hidden_size": 768,
            "ffn_hidden_size": 4480,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "mamba_num_heads": 48,
        },
    ),
    "8b": ("8b_nvfp4", {}),
    "12b": ("12b_nvfp4", {}),
    "1p2b": ("1p2b_last4_2d_rht_sr", {}),
}
GPU_MODELS, CPU_MODELS = ("53m", "224m", "8b", "12b", "1p2b"), ("8b", "12b")
#: Tokens per second over BF16's that NVFP4 is to reach on an H200.
TARGETS = {"224m": 0.90, "53m": 0.80}


@dataclass(frozen=True)
class StepCase:
    """A model with a recipe."""

    model: str
    recipe_name: str
    spec: ModelSpec
    recipe: Recipe
    schedule: dict[str, Any]
    optimizer: dict[str, Any]


class RandomText:
    """Samples of tokens whose frequencies fall off as in text; a function of the sample's number."""

    def __init__(self, spec: ModelSpec, length: int) -> None:
        self._vocab, self._length = spec.vocab_size, length

    def batch(self, first_sample: int, num_samples: int) -> np.ndarray:
        uniform = np.random.default_rng(first_sample).random((num_samples, self._length + 1))
        return (self._vocab * uniform**3).astype(np.int64)


def make_case(plan: Plan, model: str, recipe_name: str, *, batch: int, micro: int) -> StepCase:
    """`plan` of a tier; `batch` and `micro` in sequences, 0: the tier's own.

    Raises ValueError when either is negative or the batch no multiple of the micro batch: a step would train fewer
    sequences than it counts.
    """
    from repro.experiments.model import ModelSpec
    from repro.experiments.recipe import Recipe

    run, changes = MODELS[model]
    own = plan.segment(run, 0).frozen
    recipe = {**plan.segment(RECIPE_RUNS[recipe_name], 0).frozen["recipe"]}
    recipe["bf16_blocks"] = own["recipe"]["bf16_blocks"] if recipe_name != "bf16" else {"first": 0, "last": 0}
    schedule = dict(own["schedule"])
    schedule["batch_sequences"] = batch or schedule["batch_sequences"]
    schedule["micro_batch_sequences"] = micro or schedule["micro_batch_sequences"]
    of_step, of_pass = schedule["batch_sequences"], schedule["micro_batch_sequences"]
    if of_step < 1 or of_pass < 1 or of_step % of_pass:
        raise ValueError(f"a step of {of_step} sequences cannot be made of micro batches of {of_pass}")
    spec = ModelSpec.model_validate({**own["model"], **changes, "name": model})
    return StepCase(model, recipe_name, spec, Recipe.model_validate(recipe), schedule, own["optimizer"])


def step_cases(machine: Machine) -> list[Case]:
    """One case a model and recipe. A short run on a GPU takes BF16 and NVFP4 of the smallest model."""
    bench = _Steps(machine)
    cases = []
    for model in GPU_MODELS if machine.is_gpu else CPU_MODELS:
        for recipe in ("bf16", "fp8_block", "mxfp4", "nvfp4"):
            target = TARGETS.get(model) if recipe == "nvfp4" and machine.is_gpu else None
            is_quick = model == "53m" and recipe in ("bf16", "nvfp4")
            cases.append(
                Case(
                    f"step/{model}/{recipe}",
                    f"training step, {model} stand-in, {recipe}",
                    lambda model=model, recipe=recipe: bench.measure(model, recipe),
                    Target(">=", target) if target else None,
                    is_long=machine.is_gpu and not is_quick,
                )
            )
    return cases


def load_plan(machine: Machine) -> Plan:
    """The tier whose models are trained on this machine. Raises ValueError naming what is wrong in its files."""
    from repro.experiments.plan import load

    return load("proxy" if machine.is_gpu else "tiny", configs_dir=machine.configs)


def products_of(record: Record) -> str:
    """What multiplies the operands of a precision record: "card", "emulated", or both; "" where all are BF16."""
    found = {str(row.get("product", "emulated")) for row in record if row["format"] != "bf16"}
    return " and ".join(sorted(found))


class _Steps:
    """Median seconds of steps, kept, so that BF16's serve as floors."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._found: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}

    def measure(self, model: str, recipe: str) -> Measurement:
        floor, _ = self.timed(model, "bf16")
        seconds, details = self.timed(model, recipe)
        return Measurement(
            measured=seconds,
            floor=floor,
            floor_from="BF16 step of this model, measured here",
            ratio=floor / seconds,
            note=f"{recipe} products: {details['products']}" if details["products"] else "",
            details=details,
        )

    def timed(self, model: str, recipe: str) -> tuple[float, dict[str, Any]]:
        if (model, recipe) not in self._found:
            case = make_case(load_plan(self.machine), model, recipe, batch=0, micro=0)
            is_full = self.machine.effort.min_repeats > 3
            self._found[model, recipe] = time_steps(
                case, self.machine.device, warmup=3, steps=12 if is_full else 5
            )
        return self._found[model, recipe]


class TrainingRun:
    """The trainer's step on random tokens, ready to be taken. On a GPU the process is the trainer's from here on."""

    def __init__(self, case: StepCase, device: torch.device, ranks: Ranks, *, fuse: bool = True) -> None:
        """`fuse`: pointwise stretches compiled on a GPU, as the trainer does."""
        from repro.models import build_model
        from repro.portable import gpu
        from repro.portable.batches import Batches
        from repro.portable.optimizer import Optimizer
        from repro.portable.step import Stepper
        from repro.recipes.apply import apply_recipe
        from repro.recipes.context import RunContext

        self.case, self.device, self.ranks = case, device, ranks
        if device.type == "cuda":
            gpu.prepare_process(device)
        self.model = build_model(case.spec, seed=1, device=device)
        if device.type == "cuda":
            gpu.prepare_model(self.model, fuse=fuse)
            torch.cuda.reset_peak_memory_stats(device)
        context = RunContext(1)
        self._products = products_of(apply_recipe(self.model, case.recipe, context=context))
        schedule = case.schedule
        optimizer = Optimizer(self.model, case.optimizer)
        self.stepper = Stepper(self.model, optimizer, context, schedule, ranks)
        self._length = schedule["sequence_length_tokens"]
        stride = schedule["micro_batch_sequences"] * ranks.size
        text = RandomText(case.spec, self._length)
        self._batches = Batches(text, device, stride=stride, end=1 << 30)

    def step(self, number: int) -> tuple[float, float]:
        """Takes step `number`: seconds until its loss is here, and the loss."""
        began = time.perf_counter()
        loss = self.stepper.train(number, self._batches, 1e-4).loss
        return time.perf_counter() - began, loss

    def describe(self, seconds: float) -> dict[str, Any]:
        """What a step of so many seconds means."""
        from repro.portable import provenance

        schedule = self.case.schedule
        num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        num_tokens = schedule["batch_sequences"] * self._length
        return {
            "model": self.case.model,
            "recipe": self.case.recipe_name,
            "parameters": num_parameters,
            "bf16_blocks": self.case.recipe.bf16_blocks.model_dump(),
            "products": self._products,
            "processes": self.ranks.size,
            "tokens_per_step": num_tokens,
            "micro_batch_tokens": schedule["micro_batch_sequences"] * self._length,
            "tokens_per_second": round(num_tokens / seconds),
            "flops_per_second_6nd": 6 * num_parameters * num_tokens / seconds,
            "peak_memory_bytes": provenance.peak_memory_bytes(self.device),
            "graphs": self.stepper.uses_graphs,
            "scan": "mamba_ssm" if "mamba_ssm" in sys.modules else "PyTorch",
        }


def time_steps(
    case: StepCase, device: torch.device, *, warmup: int, steps: int
) -> tuple[float, dict[str, Any]]:
    """Median seconds of `steps` optimizer steps after `warmup` (which compile), and what they mean."""
    from repro.portable.parallel import Ranks

    run = TrainingRun(case, device, Ranks())
    seconds = [run.step(number)[0] for number in range(warmup + steps)]
    median = statistics.median(seconds[warmup:])
    details = {**run.describe(median), "first_step_seconds": seconds[0]}
    del run
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return median, details
