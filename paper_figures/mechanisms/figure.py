"""Mechanisms (not in the paper): the reasons behind the four techniques as numbers, block by block. Claim C21.

Quantities are those of repro.mechanisms.measure, all relative (fractions of 1). Appendix E.2 says that the last
layers have the larger Wgrad quantisation error: C21 is judged by Kendall's rank correlation of that error, a block's
mean over its linear layers, with the block's index (paper_figures.mechanisms.trend). The statement is about blocks,
and the layers of a block move together along the depth: as observations of their own they would make the correlation
look surer than it is. Neighbouring blocks do too, which its variance takes into account. What else was measured of
the same trend, at other checkpoints and in the other run, stands in the reason.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figures.mechanisms.panels import (
    ERROR,
    PANELS,
    PLAIN,
    bf16_handles,
    draw_legend,
    draw_profile,
    effect_of_rht,
    means_of,
)
from paper_figures.mechanisms.trend import profile, tau_within_kinds, trend
from repro.analysis import drawing, orders, palette, rules, source_lines
from repro.analysis.arms import scale
from repro.analysis.empty_figure import say_unrecorded
from repro.analysis.paper import Paper
from repro.analysis.results import NotRecorded, Results
from repro.analysis.trained_run import Run
from repro.analysis.verdicts import Verdict

MAIN, DEEP = "12b_nvfp4", "1p2b_last4"
# What the two runs are called in the picture, and their colours.
NAMES = {MAIN: "12B model, full method", DEEP: "1.2B model, last 4 blocks in BF16"}
COLORS = {MAIN: "green", DEEP: "vermilion"}
# Inches; README shows the picture about 830 pixels wide, and its smallest letters shall be read there.
WIDTH = 8.6
# What C21 is about.
ERROR_OF_PLAIN = "wgrad_quant_error"
# Two-sided 95 % of a normal distribution.
Z = 1.96


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
    return pd.concat([*tables, pd.DataFrame(rows)] if rows else tables, ignore_index=True)


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
    figure = drawing.new_figure(WIDTH, 7.4)
    figure.get_layout_engine().set(h_pad=0.1)  # inches: a legend ends above the next panel's title
    *grid, depth, words = figure.subplots(2, 3).flat
    for axes, panel in zip(grid, PANELS, strict=True):
        if main.empty:
            axes.set_title(panel.title)
            say_unrecorded(axes, table, paper, width=45)
        else:
            draw_profile(axes, main, panel)
    _draw_depth(depth, last)
    words.axis("off")
    if not main.empty:
        words.text(0, 1, _summary(main), va="top", fontsize=7, linespacing=1.6, transform=words.transAxes)
    figure.legend(handles=bf16_handles(), loc="lower center", ncols=2)
    at = ", ".join(
        f"{NAMES[run]}: {100 * rows['fraction'].iloc[0]:.3g} %"
        for run, rows in last.groupby("run", sort=False)
    )
    notes = [
        f"measured after these shares of the horizon: {at}",
        "the first four panels: the 12B model; M Mamba-2, - feed-forward, * attention",
    ]
    shown = pd.concat([last, table[table["role"] == "missing"]])
    return drawing.finish(
        figure, paper.title, source_lines.provenance(shown, *notes), source_lines.stand_in(shown)
    )


def _draw_depth(axes: Axes, last: pd.DataFrame) -> None:
    """The error that is judged, both runs over their own depth; blocks that a run keeps in BF16 are hollow."""
    for run, name in NAMES.items():
        rows = last[(last["run"] == run) & (last["quantity"] == ERROR_OF_PLAIN)]
        means = rows.groupby("block")["value"].mean()
        depth = 100 * means.index / max(1, means.index.max() if len(rows) else 1)
        look = {"color": palette.PALETTE[COLORS[run]], "marker": palette.MARKERS[COLORS[run]]}
        label = name if len(rows) else f"{name}: not recorded"
        axes.plot(depth, means, label=label, **look)
        kept = means.index.isin(rows.loc[rows["in_bf16"], "block"])
        axes.plot(depth[kept], means[kept], ls="none", mfc="white", label="_hollow", **look)
    axes.set(xlabel="depth (per cent of the blocks)", ylabel=ERROR)
    axes.set_ylim(bottom=0)
    axes.set_title(f"plain NVFP4: weight gradient's error,\n{PLAIN}")
    draw_legend(axes)


def _summary(main: pd.DataFrame) -> str:
    """Means over the layers that run in NVFP4, in words."""
    bias = means_of(main, "gradient_bias", "g", "rne", "sr", "sr_floor")
    error = means_of(main, "gradient_error", "g", "rne", "sr")
    wgrad = means_of(main, "wgrad_error", "dw", "none", "rht")
    weight = means_of(main, "weight_mismatch", "w", "1d", "2d")
    share = means_of(main, "near_fp8_share", "x", "mxfp4", "nvfp4")
    return "\n".join(
        [
            "12B model, means over its layers in NVFP4:",
            f"gradient bias: {bias[0]:.3g} to nearest, {bias[1]:.3g} stochastic",
            f"    (unbiased draws would leave {bias[2]:.3g})",
            f"gradient error of one draw: {error[0]:.3g} to nearest,",
            f"    {error[1]:.3g} stochastic",
            f"error of the weight gradient: {wgrad[0]:.3g} without the",
            f"    Hadamard transform, {wgrad[1]:.3g} with it: {effect_of_rht(main)};",
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
    rows = _errors(table, DEEP)
    last = rows[rows["tokens"] == rows["tokens"].max()]
    found = trend(profile(last))
    half = last["block"] > last["block"].max() / 2
    later, earlier = float(last[half]["value"].mean()), float(last[~half]["value"].mean())
    ours = f"mean error {later:.3g} in the later half of the blocks, {earlier:.3g} in the earlier"
    ours += f"; tau {found.tau:+.2f}"
    words = (
        f"Kendall's tau {found.tau:+.2f}, {abs(found.z):.1f} standard deviations from none "
        f"(neighbouring blocks correlate by {found.neighbours:.2f})"
    )
    words = "; ".join([words, *_other_trends(table, last, found.tau)])
    outcome = "inside" if abs(found.z) <= Z else "held" if found.z > 0 else "failed"
    numbers = {
        "tau": found.tau,
        "z": found.z,
        "neighbours": found.neighbours,
        "later": later,
        "earlier": earlier,
    }
    return [orders.direction(case, ours, words, outcome, **numbers)]


def _other_trends(table: pd.DataFrame, last: pd.DataFrame, judged: float) -> list[str]:
    """The same trend where it is not judged: without the blocks in BF16, at earlier checkpoints, in the other run.

    `judged`: the tau that is, whose sign the other run's are compared with.
    """
    words = []
    kept = last["in_bf16"].astype(bool)
    if number := last.loc[kept, "block"].nunique():
        words.append(f"without the {number} blocks kept in BF16 {trend(profile(last[~kept])).tau:+.2f}")
    earlier = _errors(table, DEEP)
    earlier = earlier[earlier["tokens"] < last["tokens"].max()]
    words += [f"at {at} {trend(profile(rows)).tau:+.2f}" for at, rows in _checkpoints(earlier)]
    others = [(at, tau_within_kinds(rows)) for at, rows in _checkpoints(_errors(table, MAIN))]
    if others:
        told = ", ".join(f"{tau:+.2f} at {at}" for at, tau in others)
        same = [tau * judged > 0 for _, tau in others]
        verb = (
            "has the same sign" if all(same) else "changes its sign" if any(same) else "shows no such trend"
        )
        words.append(f"the {NAMES[MAIN]}, {verb}: {told} of the horizon, among blocks of one kind")
    return words


def _errors(table: pd.DataFrame, run: str) -> pd.DataFrame:
    return table[(table["run"] == run) & (table["quantity"] == ERROR_OF_PLAIN)]


def _checkpoints(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """(share of the horizon in words, rows) of each checkpoint, in order of tokens."""
    return [(f"{100 * own['fraction'].iloc[0]:.3g} %", own) for _, own in rows.groupby("tokens")]
