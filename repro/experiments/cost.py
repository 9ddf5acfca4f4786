"""What a plan costs: tokens, steps, FLOPs, device-hours, checkpoint bytes. Estimates, with every assumption stated.

FLOPs of one training token = 3 x forward (forward + two products of the same size backward):

    matrix products   2 x (parameters that multiply: everything but the input embedding)
    attention         per layer 2 x S x heads x head_dim: QK^T and AV over half of S tokens (causal mask)
    Mamba-2 scan      per layer 2 x [Q (groups x state + heads x head_dim) + 2 x heads x head_dim x state]:
                      inside chunks of Q tokens, then into and out of the state

S sequence length, Q chunk length. Each of the three products of a linear layer takes a third of the FLOPs at the
tier's sustained rate for the format of its operands, or at its rate "emulated" where a backend computes them in
software. With one operand in BF16 it runs as BF16, but for emulated runs, which quantise the other all the same; with
operands of two block formats at the slower one's rate. The few blocks that a recipe keeps in BF16 are priced as the
others.
A checkpoint = parameters x `state_bytes_per_parameter`. Not measured here: real rates (done.json records those).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from repro.experiments.model import ModelSpec
from repro.experiments.plan import Plan
from repro.experiments.recipe import GEMM_OPERANDS, Recipe
from repro.experiments.run import Run


@dataclass(frozen=True)
class Cost:
    """Sums over one run or many. `checkpoint_bytes`: kept for good + the newest few, as they stand at the end."""

    num_runs: int = 0
    num_segments: int = 0
    tokens: int = 0
    steps: int = 0
    flops: float = 0.0
    device_hours: float = 0.0
    checkpoint_bytes: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f) + getattr(other, f) for f in self.__dataclass_fields__))


def flops_per_token(model: ModelSpec, *, sequence_length_tokens: int) -> float:
    """Floating-point operations of training on one token; see the module docstring."""
    products = 2.0 * (model.num_parameters() - model.vocab_size * model.hidden_size)
    num_attention, num_mamba = model.pattern.count("*"), model.pattern.count("M")
    attention = 2.0 * sequence_length_tokens * model.num_attention_heads * model.head_dim
    forward = products + num_attention * attention
    if num_mamba:
        inner = model.mamba_inner_size
        chunk, state = model.mamba_chunk_size or 0, model.mamba_state_size or 0
        inside = chunk * ((model.mamba_num_groups or 0) * state + inner)
        forward += num_mamba * 2.0 * (inside + 2 * inner * state)
    return 3.0 * forward


def cost_of(plan: Plan, run: Run, *, emulated: Collection[str] = ()) -> Cost:
    """Cost of the tokens that `run` trains itself; `emulated`: names of the runs whose 4-bit products are.

    Raises ValueError when the tier states no rate for a format that the run uses.
    """
    rates = plan.spec.cost
    formats = _product_formats(run.recipe, rates.flops_per_second, is_emulated=run.name in emulated)
    for name in formats:
        if name not in rates.flops_per_second:
            raise ValueError(
                f"{plan.configs_dir}/tiers/{plan.tier}.yaml: cost.flops_per_second has no rate for {name!r}, "
                f"which {run.name} uses"
            )
    model = plan.models[run.family]
    settings = plan.spec.families[run.derived.family]
    flops = run.num_tokens * flops_per_token(model, sequence_length_tokens=settings.sequence_length_tokens)
    kept = sum(len(segment.frozen["checkpoints"]["keep_tokens"]) for segment in run.segments)
    return Cost(
        num_runs=1,
        num_segments=len(run.segments),
        tokens=run.num_tokens,
        steps=run.num_tokens // run.step_tokens,
        flops=flops,
        device_hours=sum(flops / len(formats) / rates.flops_per_second[name] for name in formats) / 3600.0,
        checkpoint_bytes=(kept + settings.checkpoints.keep_last)
        * model.num_parameters()
        * rates.state_bytes_per_parameter,
    )


def _product_formats(recipe: Recipe, rates: Mapping[str, float], *, is_emulated: bool) -> list[str]:
    """Format by whose rate each of the three products is priced; one without a rate stands before all others."""
    formats = []
    for gemm, operands in GEMM_OPERANDS.items():
        used = sorted(recipe.rule(gemm, operand).format for operand in operands)
        if is_emulated and set(used) != {"bf16"}:
            formats.append("emulated")
            continue
        formats.append("bf16" if "bf16" in used else min(used, key=lambda name: rates.get(name, 0.0)))
    return formats


def with_lineage(plan: Plan, names: Iterable[str]) -> list[str]:
    """`names` and every run that they continue, in the plan's order: what has to be trained for them."""
    wanted: set[str] = set()
    for name in names:
        wanted.update(segment.run for segment in plan.lineage(name))
    return [name for name in plan.runs if name in wanted]


def total(plan: Plan, names: Iterable[str], *, emulated: Collection[str] = ()) -> Cost:
    """Sum over `names`, each once."""
    return sum((cost_of(plan, plan.run(name), emulated=emulated) for name in names), Cost())
