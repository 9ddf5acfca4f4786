"""Whether a run fits a cluster: every piece of its model must have a size that its precision can run.

Section 4 and Appendix A of arXiv 2509.25149; the sizes are Transformer Engine's and the hardware's. T tokens of a
micro batch, K input and N output features of a linear layer, per GPU:

    4-bit GEMM      contracts K (Fprop), N (Dgrad) and T (Wgrad) in rows of 16 bytes: multiples of 32
    native RHT      fused into the quantiser where T is a multiple of 64 and the features one of 128; slower elsewhere
    FP8 blocks      documented for multiples of 128 in both dimensions
    emulated RHT    whole groups along the contraction

An error stops a run before it starts; a warning is printed. Memory is that of the states alone, without activations.
Reads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from repro.cluster.layout import Layout, LinearShape, Spread, linear_shapes, state_bytes
from repro.cluster.paths import Decision
from repro.experiments.model import ModelSpec
from repro.experiments.recipe import GEMM_OPERANDS
from repro.portable.frozen import FrozenSegment

# Megatron's Mamba-2 mixer fixes it in its signature. (Also chunks of 128 tokens, which change speed alone.)
_MAMBA_CONV_KERNEL = 4


@dataclass(frozen=True)
class Finding:
    """One thing about a layout: an error, or a warning."""

    level: Literal["error", "warning"]
    text: str


def check(
    segment: FrozenSegment, layout: Layout, decision: Decision, *, num_gpus: int | None = None
) -> list[Finding]:
    """Everything that does not fit, errors first. `num_gpus`: of this launch; default: what the layout states."""
    family = segment.content["family"]
    spread, model = layout.spread(family), segment.model
    findings = [
        *_machine(layout, decision),
        *_batch(segment, spread, layout, num_gpus),
        *_model(model, spread),
    ]
    if decision.path == "emulated" and spread.tensor > 1:
        findings.append(
            Finding(
                "error",
                f"{family}: tensor: {spread.tensor}: emulated operands need whole tensors; set it to 1",
            )
        )
    try:
        shapes = linear_shapes(model, spread.tensor)
    except ValueError as error:
        return [*findings, Finding("error", str(error))]
    tokens = segment.schedule["sequence_length_tokens"] * segment.schedule["micro_batch_sequences"]
    for shape in shapes:
        where = f"{shape.name} [{shape.outputs}, {shape.inputs}] of {model.name} (tensor: {spread.tensor})"
        findings += [
            Finding(level, f"{where}: {text}") for level, text in _sizes(segment, decision, shape, tokens)
        ]
    return sorted(findings, key=lambda finding: finding.level)


def raise_errors(findings: list[Finding], layout: Layout) -> None:
    """Raises one ValueError with every error of `findings`."""
    errors = [finding.text for finding in findings if finding.level == "error"]
    if errors:
        raise ValueError(f"layout {layout.name}: " + "; ".join(errors))


def _machine(layout: Layout, decision: Decision) -> Iterator[Finding]:
    if decision.path == "te_nvfp4" and not layout.has_fp4:
        major, minor = layout.compute_capability
        yield Finding(
            "error",
            f"native NVFP4 needs compute capability 10.0 or 10.3 (B200, GB200, B300, GB300); {layout.device} "
            f"has {major}.{minor}. Pass --emulate to compute the same operands in software, exactly and more slowly",
        )
    if decision.path == "te_fp8" and layout.compute_capability < (9, 0):
        yield Finding("error", f"FP8 blocks need compute capability 9.0; {layout.device} has less")


def _batch(segment: FrozenSegment, spread: Spread, layout: Layout, num_gpus: int | None) -> Iterator[Finding]:
    schedule = segment.schedule
    gpus = num_gpus or spread.nodes * layout.gpus_per_node
    one = spread.tensor * spread.pipeline
    if gpus % one:
        yield Finding("error", f"{gpus} GPUs do not divide into replicas of {one}")
        return
    per_step = (gpus // one) * schedule["micro_batch_sequences"]
    if schedule["batch_sequences"] % per_step:
        yield Finding(
            "error",
            f"a batch of {schedule['batch_sequences']} sequences does not divide by {per_step} "
            f"({gpus // one} replicas x {schedule['micro_batch_sequences']} of a micro batch)",
        )
    needed = state_bytes(segment.model, spread, gpus // one) / 1e9
    if needed > layout.memory_gb:
        yield Finding(
            "error",
            f"weights, gradients and optimizer states take {needed:.0f} GB of {layout.memory_gb:g} GB a GPU; "
            "raise pipeline",
        )


def _model(model: ModelSpec, spread: Spread) -> Iterator[Finding]:
    if "M" in model.pattern and model.mamba_conv_kernel != _MAMBA_CONV_KERNEL:
        yield Finding(
            "error",
            f"mamba_conv_kernel: {model.mamba_conv_kernel}; Megatron's Mamba-2 has {_MAMBA_CONV_KERNEL}",
        )
    if spread.pipeline > len(model.pattern):
        yield Finding("error", f"pipeline: {spread.pipeline} stages for {len(model.pattern)} layers")
    for key in ("num_attention_heads", "num_key_value_heads"):
        if getattr(model, key) % spread.tensor:
            yield Finding("error", f"{key} {getattr(model, key)} does not divide by tensor: {spread.tensor}")


def _sizes(
    segment: FrozenSegment, decision: Decision, shape: LinearShape, tokens: int
) -> Iterator[tuple[Literal["error", "warning"], str]]:
    named = {"K": shape.inputs, "N": shape.outputs, "T": tokens}
    contracted = {"fprop": "K", "dgrad": "N", "wgrad": "T"}
    if decision.path == "te_nvfp4":
        for name, size in named.items():
            if size % 32:
                yield "error", f"{name} = {size} is no multiple of 32, as 4-bit GEMMs need; lower tensor"
        if segment.recipe.wgrad.x.hadamard and (tokens % 64 or shape.outputs % 128):
            yield (
                "warning",
                f"N = {shape.outputs}, T = {tokens}: its RHT is not fused into the quantiser (slower)",
            )
    if decision.path == "te_fp8":
        for name, size in named.items():
            if size % 128:
                yield (
                    "warning",
                    f"{name} = {size} is no multiple of 128, the sizes FP8 blocks are documented for",
                )
    if decision.path == "emulated":
        for gemm, operands in GEMM_OPERANDS.items():
            size = named[contracted[gemm]]
            hadamard = segment.recipe.rule(gemm, operands[0]).hadamard
            if hadamard and size % hadamard:
                yield "error", f"{gemm} transforms groups of {hadamard} along {contracted[gemm]} = {size}"
        if shape.outputs % 8 or shape.inputs % 16:
            yield "error", "Transformer Engine takes N in multiples of 8 and K in multiples of 16"
