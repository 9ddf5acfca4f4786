"""The panels of the mechanisms: what each shows of the 12B model, block by block, and how it is drawn.

Does not: read files, judge, or know the second run.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from repro.analysis import drawing, palette


@dataclass(frozen=True)
class Panel:
    """One quantity of one operand of one GEMM, what its axis says, its variants as (variant, words, colour)."""

    gemm: str
    tensor: str
    quantity: str
    title: str
    axis: str
    variants: tuple[tuple[str, str, str], ...]
    logarithmic: bool = False


ROUNDINGS = (
    ("rne", "round to nearest", "vermilion"),
    ("sr", "stochastic, mean of draws", "green"),
    ("sr_floor", "left by unbiased draws", "black"),
)
TRANSFORMS = (("none", "without the transform", "vermilion"), ("rht", "with it", "green"))
SCALES = (("1d", "scales 1x16", "vermilion"), ("2d", "scales 16x16", "green"))
FORMATS = (("mxfp4", "MXFP4", "vermilion"), ("nvfp4", "NVFP4", "green"))
ERROR = "error / weight gradient's norm"
# Both errors of the weight gradient are of the same runs with other operands: titles and axes say with which.
AS_TRAINED, PLAIN = "gradient rounded stochastically", "all rounded to nearest, no transform"
PANELS = (
    Panel(
        "dgrad",
        "g",
        "gradient_bias",
        "stochastic rounding:\nbias of the gradient",
        "bias / gradient's norm (log)",
        ROUNDINGS,
        logarithmic=True,
    ),
    Panel(
        "wgrad",
        "dw",
        "wgrad_error",
        f"Hadamard: weight gradient's error,\n{AS_TRAINED}",
        ERROR,
        TRANSFORMS,
    ),
    Panel(
        "dgrad",
        "w",
        "weight_mismatch",
        "2D scales: forward and\nbackward weight",
        "distance / weight's norm",
        SCALES,
    ),
    Panel(
        "fprop",
        "x",
        "near_fp8_share",
        "largest of a block: values\nkept near FP8",
        "share of the activations",
        FORMATS,
    ),
)


def draw_profile(axes: Axes, main: pd.DataFrame, panel: Panel) -> None:
    """One quantity block by block, the mean over a block's layers."""
    rows = main[
        (main["quantity"] == panel.quantity) & (main["tensor"] == panel.tensor) & (main["gemm"] == panel.gemm)
    ]
    for variant, label, color in panel.variants:
        means = rows[rows["variant"] == variant].groupby("block")["value"].mean()
        marker, width = ("", 1.0) if variant == "sr_floor" else ("o", 1.2)
        axes.plot(
            means.index,
            means,
            marker=marker,
            lw=width,
            color=palette.PALETTE[color],
            label=label,
            clip_on=False,
        )
    for block in rows.loc[rows["in_bf16"], "block"].unique():
        axes.axvspan(block - 0.5, block + 0.5, color="#000000", alpha=0.07, lw=0)
    kinds = rows.drop_duplicates("block").set_index("block")["kind"].sort_index()
    if len(kinds) <= 32:
        axes.set_xticks(kinds.index, kinds, fontsize=7 if len(kinds) <= 20 else 6.2)
    axes.set_xlabel("block, from input to output")
    axes.set_ylabel(panel.axis)
    if panel.logarithmic and (rows["value"] > 0).any():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 4, 6, 8)))  # labels of all ten would touch
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(0, 1.12 * rows["value"].max() or 1)
    axes.set_title(panel.title)
    if panel.quantity == "near_fp8_share":
        axes.axhline(1 / 16, color="black", ls=":", lw=0.9, label="1/16")
    draw_legend(axes)
    if panel.quantity == "wgrad_error":
        axes.get_legend().set_title(f"error {effect_of_rht(main)} by the transform here", {"size": 7})


def draw_legend(axes: Axes) -> None:
    """Below the panel, where no curve is."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.19))


def bf16_handles() -> list[Artist]:
    """What all panels show of the blocks that are kept in BF16, for one legend of the figure."""
    band = drawing.band_handle("grey band: block kept in BF16")
    hollow = Line2D([], [], ls="none", marker="o", color="#000000", mfc="white", label="hollow: the same")
    return [band, hollow]


def means_of(main: pd.DataFrame, quantity: str, tensor: str, *variants: str) -> list[float]:
    """Mean of each variant over the layers that run in NVFP4."""
    rows = main[~main["in_bf16"] & (main["quantity"] == quantity) & (main["tensor"] == tensor)]
    return [float(rows.loc[rows["variant"] == variant, "value"].mean()) for variant in variants]


def effect_of_rht(main: pd.DataFrame) -> str:
    without, with_it = means_of(main, "wgrad_error", "dw", "none", "rht")
    return "raised" if with_it > without else "lowered"
