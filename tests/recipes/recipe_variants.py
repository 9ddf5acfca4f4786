"""Every run of the paper (arXiv 2509.25149) as changes to a base recipe, and what must enter each GEMM.

The changes say how a recipe is written; the six operands were written down from the paper's text on their own, in the
order fprop x, w | dgrad g, w | wgrad x, g. An operand reads "blocks rounding [Hsize signs]", "bf16" is unquantised,
"shared" means scales along the tensor's last dimension whichever dimension the GEMM contracts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.experiments.recipe import Recipe, load_recipe

RECIPES = Path(__file__).parents[2] / "configs" / "recipes"

#: (gemm, operand) in the order of the tables below.
OPERANDS = (("fprop", "x"), ("fprop", "w"), ("dgrad", "g"), ("dgrad", "w"), ("wgrad", "x"), ("wgrad", "g"))


@dataclass(frozen=True)
class Variant:
    base: str
    changes: dict[str, Any]
    #: Blocks in BF16 at the (start, end) of the model.
    bf16_blocks: tuple[int, int]
    operands: tuple[str, str, str, str, str, str]

    def recipe(self) -> Recipe:
        first, last = self.bf16_blocks
        blocks = {"bf16_blocks": {"first": first, "last": last}}
        return load_recipe(RECIPES / f"{self.base}.yaml").with_changes({**self.changes, **blocks})


ONE_D = {"*.w.blocks": "1d"}
NO_SR = {"*.g.rounding": "rne"}
NO_RHT = {"wgrad.*.hadamard": 0}
BASE = {**ONE_D, **NO_SR, **NO_RHT}  # E.1: 1x16 scales, nearest even, no transform
ALL_BF16 = {"fprop": "bf16", "dgrad": "bf16", "wgrad": "bf16"}
WEIGHTS_ONLY = {"fprop.x": "bf16", "dgrad.g": "bf16", "wgrad": "bf16"}
ACTIVATIONS_ONLY = {"fprop.w": "bf16", "dgrad": "bf16", "wgrad.g": "bf16", "wgrad.x.hadamard": 0}

N, F = "nvfp4", "fp8_block"
FULL = ("1d rne", "2d rne", "1d sr", "2d rne", "1d rne H16 fixed", "1d sr H16 fixed")
MX = ("1d rne", "2d rne", "1d sr", "2d rne", "1d rne H32 fixed", "1d sr H32 fixed")
PLAIN = ("1d rne", "1d rne", "1d rne", "1d rne", "1d rne", "1d rne")
BF16 = ("bf16", "bf16", "bf16", "bf16", "bf16", "bf16")


def _rht(size: int, signs: str) -> tuple[str, str, str, str, str, str]:
    return (*FULL[:4], f"1d rne H{size} {signs}", f"1d sr H{size} {signs}")


# fmt: off
VARIANTS: dict[str, Variant] = {
    # Figures 2, 3; Section 3
    "12b_fp8": Variant(F, {}, (1, 2), ("1d rne", "2d rne", "1d rne", "2d rne", "1d rne", "1d rne")),
    "12b_nvfp4": Variant(N, {}, (2, 8), FULL),
    # Figure 4: the full method with one technique removed
    "12b_without_2d": Variant(N, ONE_D, (2, 8),
        ("1d rne", "1d rne", "1d sr", "1d rne", "1d rne H16 fixed", "1d sr H16 fixed")),
    "12b_without_rht": Variant(N, NO_RHT, (2, 8),
        ("1d rne", "2d rne", "1d sr", "2d rne", "1d rne", "1d sr")),
    "12b_without_sr": Variant(N, NO_SR, (2, 8),
        ("1d rne", "2d rne", "1d rne", "2d rne", "1d rne H16 fixed", "1d rne H16 fixed")),
    "12b_last4_bf16": Variant(N, {}, (0, 4), FULL),
    # Figures 12 and 13: size and signs of the transform
    "12b_rht4": Variant(N, {"wgrad.*.hadamard": 4}, (2, 8), _rht(4, "fixed")),
    "12b_rht128": Variant(N, {"wgrad.*.hadamard": 128}, (2, 8), _rht(128, "fixed")),
    "12b_signs_none": Variant(N, {"wgrad.*.signs": "none"}, (2, 8), _rht(16, "none")),
    "12b_signs_per_transform": Variant(N, {"wgrad.*.signs": "per_transform"}, (2, 8), _rht(16, "per_transform")),
    # E.3: stochastic rounding on the gradient of one GEMM only
    "12b_sr_dgrad_only": Variant(N, {"wgrad.g.rounding": "rne"}, (2, 8),
        ("1d rne", "2d rne", "1d sr", "2d rne", "1d rne H16 fixed", "1d rne H16 fixed")),
    "12b_sr_wgrad_only": Variant(N, {"dgrad.g.rounding": "rne"}, (2, 8),
        ("1d rne", "2d rne", "1d rne", "2d rne", "1d rne H16 fixed", "1d sr H16 fixed")),
    # Figure 7, Appendix D: what runs after the switch; 1-D weight scales when the backward pass is switched
    "12b_switch_both_82": Variant(N, ALL_BF16, (2, 8), BF16),
    "12b_switch_both_99": Variant(N, ALL_BF16, (2, 8), BF16),
    "12b_switch_forward_82": Variant(N, {"fprop": "bf16"}, (2, 8),
        ("bf16", "bf16", "1d sr", "2d rne", "1d rne H16 fixed", "1d sr H16 fixed")),
    "12b_switch_backward_82": Variant(N, {"dgrad": "bf16", "wgrad": "bf16", "fprop.w.blocks": "1d"}, (2, 8),
        ("1d rne", "1d rne", "bf16", "bf16", "bf16", "bf16")),
    # Figure 6, Section 5
    "8b_bf16": Variant("bf16", {}, (0, 0), BF16),
    "8b_nvfp4": Variant(N, {}, (0, 8), FULL),
    "8b_mxfp4": Variant("mxfp4", {}, (0, 8), MX),
    "8b_mxfp4_1p25x": Variant("mxfp4", {}, (0, 8), MX),
    "8b_mxfp4_1p5x": Variant("mxfp4", {}, (0, 8), MX),
    # Figure 8, E.1: techniques added in turn
    "1p2b_bf16": Variant("bf16", {}, (0, 0), BF16),
    "1p2b_last4": Variant(N, BASE, (0, 4), PLAIN),
    "1p2b_last4_2d": Variant(N, {**NO_SR, **NO_RHT}, (0, 4),
        ("1d rne", "2d rne", "1d rne", "2d rne", "1d rne", "1d rne")),
    "1p2b_last4_2d_rht": Variant(N, NO_SR, (0, 4),
        ("1d rne", "2d rne", "1d rne", "2d rne", "1d rne H16 fixed", "1d rne H16 fixed")),
    "1p2b_last4_2d_rht_sr": Variant(N, {}, (0, 4), FULL),
    # Figure 9, E.2: which blocks stay in BF16
    "1p2b_first2_last2": Variant(N, BASE, (2, 2), PLAIN),
    "1p2b_last2": Variant(N, BASE, (0, 2), PLAIN),
    "1p2b_last1": Variant(N, BASE, (0, 1), PLAIN),
    "1p2b_first4": Variant(N, BASE, (4, 0), PLAIN),
    # Figure 10, E.3: stochastic rounding on some tensors, in each GEMM that takes them
    "1p2b_sr_gradients": Variant(N, {**BASE, "*.g.rounding": "sr"}, (0, 4),
        ("1d rne", "1d rne", "1d sr", "1d rne", "1d rne", "1d sr")),
    "1p2b_sr_backward": Variant(N, {**BASE, "dgrad.*.rounding": "sr", "wgrad.*.rounding": "sr"}, (0, 4),
        ("1d rne", "1d rne", "1d sr", "1d sr", "1d sr", "1d sr")),
    "1p2b_sr_activations": Variant(N, {**BASE, "*.x.rounding": "sr"}, (0, 4),
        ("1d sr", "1d rne", "1d rne", "1d rne", "1d sr", "1d rne")),
    "1p2b_sr_weights": Variant(N, {**BASE, "*.w.rounding": "sr"}, (0, 4),
        ("1d rne", "1d sr", "1d rne", "1d sr", "1d rne", "1d rne")),
    # Figure 11, E.4.1: the transform on the inputs of one GEMM
    "1p2b_rht_wgrad": Variant(N, {**BASE, "wgrad.*.hadamard": 16, "wgrad.*.signs": "fixed"}, (0, 4),
        (*PLAIN[:4], "1d rne H16 fixed", "1d rne H16 fixed")),
    "1p2b_rht_dgrad": Variant(N, {**BASE, "dgrad.*.hadamard": 16, "dgrad.*.signs": "fixed"}, (0, 4),
        (*PLAIN[:2], "1d rne H16 fixed", "1d rne H16 fixed", *PLAIN[4:])),
    "1p2b_rht_fprop": Variant(N, {**BASE, "fprop.*.hadamard": 16, "fprop.*.signs": "fixed"}, (0, 4),
        ("1d rne H16 fixed", "1d rne H16 fixed", *PLAIN[2:])),
    # Figure 14, E.5: only weights or only activations quantised (the paper does not state the BF16 blocks)
    "1p2b_weights_different": Variant(N, {**WEIGHTS_ONLY, "*.w.blocks": "1d"}, (0, 4),
        ("bf16", "1d rne", "bf16", "1d rne", "bf16", "bf16")),
    "1p2b_weights_same": Variant(N, {**WEIGHTS_ONLY, "*.w.blocks": "1d_shared"}, (0, 4),
        ("bf16", "shared rne", "bf16", "shared rne", "bf16", "bf16")),
    "1p2b_weights_2d": Variant(N, WEIGHTS_ONLY, (0, 4),
        ("bf16", "2d rne", "bf16", "2d rne", "bf16", "bf16")),
    "1p2b_activations_different": Variant(N, ACTIVATIONS_ONLY, (0, 4),
        ("1d rne", "bf16", "bf16", "bf16", "1d rne", "bf16")),
    "1p2b_activations_same": Variant(N, {**ACTIVATIONS_ONLY, "*.x.blocks": "1d_shared"}, (0, 4),
        ("shared rne", "bf16", "bf16", "bf16", "shared rne", "bf16")),
    # E.1 in words: no technique at all, and stochastic rounding alone
    "1p2b_base_all": Variant(N, BASE, (0, 0), PLAIN),
    "1p2b_sr_all": Variant(N, {**ONE_D, **NO_RHT}, (0, 0),
        ("1d rne", "1d rne", "1d sr", "1d rne", "1d rne", "1d sr")),
    # E.4.2 and E.4.3 in words: sizes and signs at 1.2B
    "1p2b_rht_size2": Variant(N, {"wgrad.*.hadamard": 2}, (0, 4), _rht(2, "fixed")),
    "1p2b_rht_size4": Variant(N, {"wgrad.*.hadamard": 4}, (0, 4), _rht(4, "fixed")),
    "1p2b_rht_size128": Variant(N, {"wgrad.*.hadamard": 128}, (0, 4), _rht(128, "fixed")),
    "1p2b_signs_none": Variant(N, {"wgrad.*.signs": "none"}, (0, 4), _rht(16, "none")),
    "1p2b_signs_per_transform": Variant(N, {"wgrad.*.signs": "per_transform"}, (0, 4), _rht(16, "per_transform")),
}
# fmt: on
