"""Mechanisms (not in the paper): the reasons behind the four techniques as numbers, block by block. Claim C21.

Quantities are those of repro.mechanisms.measure, all relative (fractions of 1). Appendix E.2 says that the last
layers have the larger Wgrad quantisation error: C21 is judged by Kendall's rank correlation of that error with the
block's index, summed over layers of equal name so that kinds of layers are not compared with each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from repro.analysis import drawing, orders, rules
from repro.analysis.arms import scale
from repro.analysis.empty_figure import say_unrecorded
from repro.analysis.paper import Paper
from repro.analysis.results import NotRecorded, Results
from repro.analysis.trained_run import Run
from repro.analysis.verdicts import Verdict

MAIN, DEEP = "12b_nvfp4", "1p2b_last4"
# What the two runs are called in the picture, and their colours.
NAMES = {MAIN: "12B model, full method", DEEP: "1.2B model, last 4 blocks in BF16"}
COLORS = {MAIN: "green", DEEP: "blue"}
# Two-sided 95 % of a normal distribution.
Z = 1.96


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
    ("sr_floor", "left by unbiased draws", "grey"),
)
TRANSFORMS = (("none", "without the transform", "vermilion"), ("rht", "with it", "green"))
SCALES = (("1d", "scales 1x16", "vermilion"), ("2d", "scales 16x16", "green"))
FORMATS = (("mxfp4", "MXFP4", "vermilion"), ("nvfp4", "NVFP4", "green"))
ERROR = "error / weight gradient's norm"
PANELS = (
    Panel(
        "dgrad",
        "g",
        "gradient_bias",
        "stochastic rounding: bias of the gradient",
        "bias / gradient's norm",
        ROUNDINGS,
        logarithmic=True,
    ),
    Panel("wgrad", "dw", "wgrad_error", "Hadamard: error of the weight gradient", ERROR, TRANSFORMS),
    Panel(
        "dgrad",
        "w",
        "weight_mismatch",
        "2D scales: forward and backward weight",
        "distance / weight's norm",
        SCALES,
    ),
    Panel(
        "fprop",
        "x",
        "near_fp8_share",
        "largest of a block: values kept near FP8",
        "share of the activations",
        FORMATS,
    ),
)


def data(results: Results) -> pd.DataFrame:
    """The measured quantities of both runs, with the kind of each block and whether the run keeps it in BF16.

    A run that is not recorded, or not measured, is one row of role "missing" and quantity "none". Raises NotRecorded
    when neither is there.
    """
    tables, lost = [], {}
    for name in (MAIN, DEEP):
        try:
            run, measured = results.run(name), results.mechanisms(name)
        except NotRecorded:
            lost[name] = "its mechanisms" if results.has(name) else results.missing(name)["status"]
            continue
        kept, kinds = _kept_blocks(run), _kinds(run)
        tables.append(
            measured.assign(
                kind=measured["block"].map(dict(enumerate(kinds))),
                in_bf16=measured["block"].isin(kept),
                role="run",
                **run.meta(),
            )
        )
    if not tables:
        raise NotRecorded(f"mechanisms of {MAIN} and {DEEP}: not recorded")
    rows = [
        {"run": name, "role": "missing", "status": why, "quantity": "none", "tier": results.tier}
        for name, why in lost.items()
    ]
    return (
        pd.concat([*tables, pd.DataFrame(rows)], ignore_index=True)
        if rows
        else pd.concat(tables, ignore_index=True)
    )


def _kinds(run: Run) -> list[str]:
    model = run.frozen["model"]
    step = model["symbols_per_block"]
    return [model["pattern"][i : i + step] for i in range(0, len(model["pattern"]), step)]


def _kept_blocks(run: Run) -> set[int]:
    kept, number = run.frozen["recipe"]["bf16_blocks"], len(_kinds(run))
    return set(range(kept["first"])) | set(range(number - kept["last"], number))


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    measured = table[table["role"] != "missing"].astype({"in_bf16": bool})
    last = measured[measured["tokens"] == measured.groupby("run")["tokens"].transform("max")]
    main = last[last["run"] == MAIN]
    figure = drawing.new_figure(10.2, 6.6)
    *grid, depth, words = figure.subplots(2, 3).flat
    for axes, panel in zip(grid, PANELS, strict=True):
        if main.empty:
            axes.set_title(panel.title)
            say_unrecorded(axes, table, paper, width=45)
        else:
            _profile(axes, main, panel)
    for run, name in NAMES.items():
        rows = last[(last["run"] == run) & (last["quantity"] == "wgrad_quant_error")]
        means = rows.groupby("block")["value"].mean()
        label = name if len(rows) else f"{name}: not recorded"
        depth.plot(
            100 * means.index / max(1, means.index.max()) if len(rows) else [],
            means,
            marker="o",
            color=drawing.PALETTE[COLORS[run]],
            label=label,
        )
    depth.set(xlabel="depth (per cent of the blocks)", ylabel=ERROR)
    depth.set_title("plain NVFP4: error of the weight gradient")
    _legend(depth, columns=1)
    words.axis("off")
    if not main.empty:
        words.text(0, 1, _summary(main), va="top", fontsize=7, linespacing=1.6, transform=words.transAxes)
    at = ", ".join(
        f"{NAMES[run]}: {100 * rows['fraction'].iloc[0]:.3g} %"
        for run, rows in last.groupby("run", sort=False)
    )
    notes = [
        f"measured after these shares of the horizon: {at}",
        "the first four panels: the 12B model; M Mamba-2, - feed-forward, * attention",
    ]
    shown = pd.concat([last, table[table["role"] == "missing"]])
    return drawing.finish(figure, paper.title, drawing.provenance(shown, *notes))


def _profile(axes: Axes, main: pd.DataFrame, panel: Panel) -> None:
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
            color=drawing.PALETTE[color],
            label=label,
            clip_on=False,
        )
    for block in rows.loc[rows["in_bf16"], "block"].unique():
        axes.axvspan(block - 0.5, block + 0.5, color="#000000", alpha=0.07, lw=0)
    kinds = rows.drop_duplicates("block").set_index("block")["kind"].sort_index()
    if len(kinds) <= 32:
        axes.set_xticks(kinds.index, kinds, fontsize=7 if len(kinds) <= 20 else 5.5)
    axes.set_xlabel("block, from input to output")
    axes.set_ylabel(panel.axis)
    if panel.logarithmic and (rows["value"] > 0).any():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(0, 1.12 * rows["value"].max() or 1)
    axes.set_title(panel.title)
    extra = [drawing.band_handle("block kept in BF16")]
    if panel.quantity == "near_fp8_share":
        extra.insert(0, axes.axhline(1 / 16, color="black", ls=":", lw=0.9, label="1/16"))
    _legend(axes, extra)
    if panel.quantity == "wgrad_error":
        axes.get_legend().set_title(f"error {_effect_of_rht(main)} by the transform here", {"size": 7})


def _legend(axes: Axes, extra: Sequence[Artist] = (), *, columns: int = 2) -> None:
    """Below the panel, where no curve is."""
    handles = [handle for handle in axes.get_legend_handles_labels()[0] if handle not in extra]
    axes.legend(
        handles=[*handles, *extra],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.17),
        ncols=columns,
        columnspacing=1.2,
    )


def _means(main: pd.DataFrame, quantity: str, tensor: str, *variants: str) -> list[float]:
    """Mean of each variant over the layers that run in NVFP4."""
    rows = main[~main["in_bf16"] & (main["quantity"] == quantity) & (main["tensor"] == tensor)]
    return [float(rows.loc[rows["variant"] == variant, "value"].mean()) for variant in variants]


def _effect_of_rht(main: pd.DataFrame) -> str:
    without, with_it = _means(main, "wgrad_error", "dw", "none", "rht")
    return "raised" if with_it > without else "lowered"


def _summary(main: pd.DataFrame) -> str:
    """Means over the layers that run in NVFP4, in words."""
    bias = _means(main, "gradient_bias", "g", "rne", "sr", "sr_floor")
    error = _means(main, "gradient_error", "g", "rne", "sr")
    wgrad = _means(main, "wgrad_error", "dw", "none", "rht")
    weight = _means(main, "weight_mismatch", "w", "1d", "2d")
    share = _means(main, "near_fp8_share", "x", "mxfp4", "nvfp4")
    return "\n".join(
        [
            "12B model, means over its layers in NVFP4:",
            f"gradient bias: {bias[0]:.3g} to nearest, {bias[1]:.3g} stochastic",
            f"    (unbiased draws would leave {bias[2]:.3g})",
            f"gradient error of one draw: {error[0]:.3g} to nearest,",
            f"    {error[1]:.3g} stochastic",
            f"error of the weight gradient: {wgrad[0]:.3g} without the",
            f"    Hadamard transform, {wgrad[1]:.3g} with it: {_effect_of_rht(main)};",
            "    it helps where outliers share a block with",
            "    small values that add up",
            f"weight mismatch: {weight[0]:.3g} with 1x16, {weight[1]:.3g} with 16x16",
            f"activations near FP8: {100 * share[0]:.2g} % MXFP4,",
            f"    {100 * share[1]:.2g} % NVFP4",
        ]
    )


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    """C21 on the 1.2B model, where all blocks are alike, at its last checkpoint."""
    case = paper.case("C21", scale(table, [DEEP]), paper="larger in the last layers (no data)")
    if unrecorded := rules.not_recorded(case):
        return [unrecorded]
    rows = table[(table["run"] == DEEP) & (table["quantity"] == "wgrad_quant_error")]
    rows = rows[rows["tokens"] == rows["tokens"].max()]
    tau, z = rank_correlation(rows)
    half = rows["block"] > rows["block"].max() / 2
    later, earlier = float(rows[half]["value"].mean()), float(rows[~half]["value"].mean())
    ours = f"mean error {later:.3g} in the later half of the blocks, {earlier:.3g} in the earlier; tau {tau:+.2f}"
    numbers = {"tau": tau, "z": z, "later": later, "earlier": earlier}
    words = f"Kendall's tau {tau:+.2f}, {abs(z):.1f} standard deviations from none"
    outcome = "inside" if abs(z) <= Z else "held" if z > 0 else "failed"
    return [orders.direction(case, ours, words, outcome, **numbers)]


def rank_correlation(rows: pd.DataFrame) -> tuple[float, float]:
    """Kendall's tau of value with block, and its distance from zero in standard deviations.

    Concordant minus discordant pairs are summed over layers of equal name (the last part of it), and so is the
    variance under independence, n (n - 1) (2 n + 5) / 18.
    """
    score, pairs, variance = 0, 0, 0.0
    for _, layer in rows.groupby(rows["layer"].str.rsplit(".", n=1).str[-1]):
        values = layer.sort_values("block")["value"].tolist()
        n = len(values)
        score += sum(
            (values[j] > values[i]) - (values[j] < values[i]) for i in range(n) for j in range(i + 1, n)
        )
        pairs += n * (n - 1) // 2
        variance += n * (n - 1) * (2 * n + 5) / 18
    if not pairs:
        return 0.0, 0.0
    return score / pairs, score / math.sqrt(variance)
