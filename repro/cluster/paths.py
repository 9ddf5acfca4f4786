"""Which path the precision of a run takes on a cluster, and why: decided from the recipe alone, before anything runs.

Section 4 of arXiv 2509.25149 asks for variants that Transformer Engine (TE) cannot express. Three native paths, and
one for all else:

    bf16       no quantised operand: no autocast
    te_fp8     TE's Float8BlockScaling with E4M3: weights 128x128, activations and gradients 1x128
    te_nvfp4   TE's NVFP4BlockScaling with its switches (no RHT, no SR, no 2D weights, BF16 backward pass)
    emulated   TE's CustomRecipe with repro's own quantisers (repro.cluster.quantizers): exact, on any card, slower

What a native path can express is data: for each operand the values that its fields may have. A recipe outside gets
the emulated path and one reason for each field that does not fit. Nothing is approximated, nothing is left out.

Not here: the arguments that follow (repro.cluster.arguments), or proof of what ran (repro.cluster.precision).
Reads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from repro.experiments.operand_rule import OperandRule
from repro.experiments.plan import Plan
from repro.experiments.recipe import GEMM_OPERANDS, Recipe

Path = Literal["bf16", "te_fp8", "te_nvfp4", "emulated"]

#: Values that one operand's fields may take on a native path; a field that is not named must have its default.
_Allowed = Mapping[str, Mapping[str, tuple[Any, ...]]]

_NVFP4: dict[str, tuple[Any, ...]] = {"format": ("nvfp4",)}
_NVFP4_ALLOWED: _Allowed = {
    "fprop.x": {**_NVFP4},
    "fprop.w": {**_NVFP4, "blocks": ("1d", "2d")},
    "dgrad.g": {**_NVFP4, "rounding": ("rne", "sr")},
    "dgrad.w": {**_NVFP4, "blocks": ("1d", "2d")},
    "wgrad.x": {**_NVFP4, "hadamard": (0, 16), "signs": ("none", "fixed")},
    "wgrad.g": {**_NVFP4, "hadamard": (0, 16), "signs": ("none", "fixed"), "rounding": ("rne", "sr")},
}
_FP8: dict[str, tuple[Any, ...]] = {"format": ("fp8_block",)}
_FP8_ALLOWED: _Allowed = {
    name: {**_FP8, "blocks": ("2d",)} if name.endswith(".w") else _FP8
    for name in ("fprop.x", "fprop.w", "dgrad.g", "dgrad.w", "wgrad.x", "wgrad.g")
}

#: Why a value outside the table has no native path, by field.
_WHY = {
    "format": "no native GEMM takes it there",
    "hadamard": "the native transform has size 16 and acts on the operands of Wgrad alone",
    "blocks": "native scales run along each GEMM's own dimension, or 16x16 for weights",
    "rounding": "natively only gradients round stochastically",
    "signs": "the native transform has one constant sign vector",
    "scale_order": "the native kernels have one order of operations",
}
#: A field out of the table settles the operand: what follows from it is no further reason.
_SETTLES = ("format", "hadamard")

#: Environment of NVFP4BlockScaling, read once when transformer_engine is imported. None: must not be set.
_SWITCH_VARIABLES = (
    "NVTE_NVFP4_DISABLE_RHT",
    "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING",
    "NVTE_NVFP4_DISABLE_2D_QUANTIZATION",
)
_OVERRIDE_VARIABLE = "NVTE_BACKWARD_OVERRIDE"
#: As these, of Float8BlockScaling: "1" for FP32 scales, else powers of two. Set by card (arguments.environment).
FP8_SCALES_VARIABLE = "NVTE_FP8_BLOCK_SCALING_FP32_SCALES"


@dataclass(frozen=True)
class Decision:
    """A path, the reasons for it (one a line), the switches it needs, and what the user should know about it."""

    path: Path
    reasons: tuple[str, ...]
    environment: Mapping[str, str | None]
    notes: tuple[str, ...] = ()


def decide(recipe: Recipe, *, emulate: bool = False) -> Decision:
    """The path of a recipe.

    `emulate`: make 4-bit operands in software although a native path exists, as for a card without FP4. FP8 blocks
    stay native: cards that need emulation for NVFP4 have them, Hopper with the paper's FP32 scales.
    Raises ValueError for a recipe that the emulation cannot honour either.
    """
    switches = dict.fromkeys((*_SWITCH_VARIABLES, _OVERRIDE_VARIABLE))
    operands = _operands(recipe)
    if all(rule == OperandRule(format="bf16") for rule in operands.values()):
        return Decision("bf16", ("every operand is BF16",), switches, (_GRADIENTS_NOTE,))
    notes = (_WEIGHTS_NOTE, _GRADIENTS_NOTE)
    obstacles_fp8, obstacles_fp4 = _obstacles(operands, _FP8_ALLOWED), _nvfp4_obstacles(operands)
    if not obstacles_fp8:
        return Decision("te_fp8", ("every operand fits Float8BlockScaling",), switches, (_FP8_NOTE, *notes))
    if not emulate and not obstacles_fp4:
        reasons, own = ("every operand fits NVFP4BlockScaling",), _switches(operands)
        return Decision("te_nvfp4", reasons, {**switches, **own}, notes)
    _check_emulation(operands)
    formats = {rule.format for rule in operands.values()}
    nearest = obstacles_fp8 if "fp8_block" in formats else obstacles_fp4
    return Decision("emulated", tuple(nearest) or ("asked for",), switches, notes)


def emulated_runs(plan: Plan, *, emulate: bool = False) -> frozenset[str]:
    """Names of the runs of a cluster tier that take the emulated path; none where another backend trains."""
    if plan.backend != "cluster":
        return frozenset()
    runs = plan.runs.items()
    return frozenset(name for name, run in runs if decide(run.recipe, emulate=emulate).path == "emulated")


_FP8_NOTE = (
    "Appendix A.1 states FP32 scales. Hopper has them (NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1); on Blackwell "
    "Transformer Engine rounds them down to powers of two and runs MXFP8 GEMMs"
)
# Section 4.1 and Figure 5 have FP32 weights quantised, and FP32 weight gradients.
_WEIGHTS_NOTE = "weights are quantised from the BF16 copy once a step"
_GRADIENTS_NOTE = "the weight gradient of a micro batch is rounded to BF16, then summed in FP32"


def _operands(recipe: Recipe) -> dict[str, OperandRule]:
    """{"fprop.x": rule, ...} in the order of the products."""
    return {
        f"{gemm}.{name}": recipe.rule(gemm, name) for gemm, names in GEMM_OPERANDS.items() for name in names
    }


def _obstacles(operands: Mapping[str, OperandRule], allowed: _Allowed) -> list[str]:
    """One line for each value that the table does not have, naming the operands that ask for it."""
    asked: dict[tuple[str, Any], list[str]] = {}
    for name, rules in allowed.items():
        rule = operands[name]
        default = OperandRule(format=rules["format"][0])
        for field in _WHY:
            value = getattr(rule, field)
            if value not in rules.get(field, (getattr(default, field),)):
                asked.setdefault((field, value), []).append(name)
                if field in _SETTLES:
                    break
    return [
        f"{field} is {value} in {', '.join(names)}: {_WHY[field]}" for (field, value), names in asked.items()
    ]


def _nvfp4_obstacles(operands: Mapping[str, OperandRule]) -> list[str]:
    """Obstacles to NVFP4BlockScaling: single fields, then what its few switches set together."""
    backward = [name for name in operands if not name.startswith("fprop.")]
    in_bf16 = [name for name in backward if operands[name].format == "bf16"]
    if len(in_bf16) == len(backward):
        forward: _Allowed = {name: _NVFP4_ALLOWED[name] for name in ("fprop.x", "fprop.w")}
        return _obstacles(operands, forward)
    lines = _obstacles(operands, _NVFP4_ALLOWED)
    if lines:
        return lines
    if operands["wgrad.x"].hadamard and operands["wgrad.x"].signs != "fixed":
        lines.append(
            "signs is none in wgrad.x, wgrad.g: NVFP4BlockScaling always multiplies by its sign vector"
        )
    if operands["fprop.w"].blocks != operands["dgrad.w"].blocks:
        lines.append("fprop.w.blocks and dgrad.w.blocks differ: one switch sets both")
    if operands["dgrad.g"].rounding != operands["wgrad.g"].rounding:
        lines.append("dgrad.g.rounding and wgrad.g.rounding differ: one switch sets both")
    return lines


def _switches(operands: Mapping[str, OperandRule]) -> dict[str, str | None]:
    """Every switch with an explicit value, so that an inherited variable changes nothing."""
    backward_in_bf16 = operands["wgrad.g"].format == "bf16"
    disabled = (
        operands["wgrad.x"].hadamard == 0,
        operands["dgrad.g"].rounding == "rne",
        operands["fprop.w"].blocks == "1d",
    )
    return {
        **{name: "1" if off else "0" for name, off in zip(_SWITCH_VARIABLES, disabled, strict=True)},
        _OVERRIDE_VARIABLE: "high_precision" if backward_in_bf16 else None,
    }


def _check_emulation(operands: Mapping[str, OperandRule]) -> None:
    """A weight is quantised once a step but an activation every micro batch: fresh signs would not cancel."""
    for name in ("fprop.w", "dgrad.w"):
        if operands[name].signs == "per_transform":
            raise ValueError(
                f"{name}.signs is per_transform: the cluster backend quantises weights once a step, so signs that "
                "change with every micro batch would not cancel in the product; say fixed"
            )
