"""Figure 4 (Section 4): leaving one technique out of the 12B run, from 3.43T of 10T tokens on. Claims C11, C12."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from repro.analysis import drawing, seed_marks, source_lines
from repro.analysis.arms import FORK_SPAN, fork_end, judge_event, judge_order, noise_of
from repro.analysis.bends import bend_rows, draw_bends
from repro.analysis.curve_panels import draw_ours, draw_papers, draw_seeds, draws_means
from repro.analysis.curves import curve_table
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.shown import (
    SMOOTHING,
    are_repeated,
    first_numbers_note,
    gap_words,
    no_noise_note,
    of_seeds,
    ours_of,
    paper_end,
    seeds_of,
    seeds_words,
    shared_seeds,
    shared_seeds_note,
    smoothing_note,
    tier_title,
    within,
)
from repro.analysis.verdicts import Verdict

BASELINE, MAIN = "12b_fp8", "12b_nvfp4"
FORKS = ("12b_without_2d", "12b_last4_bf16", "12b_without_rht", "12b_without_sr")
# The paper's main axis: 0 to 7T of 10T tokens.
MAIN_SPAN = (0.0, 0.7)
# The axis of the paper's inset, in per cent.
PAPER_RANGE = (-2.0, 0.1)
# Where the inset lies, as fractions of the axes.
INSET = (0.36, 0.40, 0.62, 0.52)
# Inches from the axes to their legend, for tick labels and the label of the axis.
LEGEND_BELOW = 0.4


def data(results: Results) -> pd.DataFrame:
    """Training losses and gaps to FP8 of the run that goes on and of its forks, replicas included, and panel
    "schedule" (repro.analysis.bends)."""
    curves = curve_table(results, [MAIN, *FORKS], baseline=BASELINE, text="train")
    return pd.concat([curves, bend_rows(results, MAIN, text="train")], ignore_index=True)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    losses = {series.run: ours_of(table, series.run, "loss") for series in paper.series}
    gaps = {series.run: ours_of(table, series.run, "gap") for series in paper.series}
    paper_losses = {series.run: within(paper.curve(series.run, "loss"), MAIN_SPAN) for series in paper.series}
    paper_gaps = {series.run: within(paper.curve(series.run, "gap"), FORK_SPAN) for series in paper.series}
    end = fork_end(table, FORKS)
    noise, shared = noise_of(table, paper, at=end), shared_seeds(gaps.values(), end)

    repeated = sum(len(seeds_of(rows)) > 1 for rows in gaps.values())
    figure = drawing.new_figure(8.6, 4.6 + 0.06 * repeated)
    left, right = figure.subplots(1, 2)
    draw_ours(left, table, paper, losses, quantity="loss", span=MAIN_SPAN, paper_ends=paper_losses)
    left.set_title(tier_title(table, paper, losses))
    seen = MAIN_SPAN[1] * (1 + SMOOTHING)  # so far looks the running mean at the right edge
    _make_room(left, [rows[rows["fraction"] <= seen] for rows in losses.values()])
    # Below the inset and its tick labels.
    draw_bends(left, table, named=True, top=INSET[1] - 0.15, upright=False)
    draw_papers(right, paper, paper_losses, quantity="loss", span=MAIN_SPAN, panel="loss")

    inset, means = _inset(left), draws_means(table, paper)
    for series in paper.series:
        rows = gaps[series.run]
        if len(rows):
            draw_seeds(
                inset, rows, series, span=FORK_SPAN, label=series.label, means=means, read=end, marked=shared
            )
    near = [
        rows[(rows["fraction"] >= FORK_SPAN[0]) & (rows["fraction"] <= FORK_SPAN[1])]
        for rows in gaps.values()
    ]
    drawing.set_range(inset, drawing.settled_range(near, start=0.0), (0.0, 0.0))
    paper_inset = _inset(right)
    for series in paper.series:
        drawing.paper_curve(paper_inset, paper_gaps[series.run], series, faint=False)
    low, high = inset.get_ylim()
    paper_inset.set_ylim(PAPER_RANGE)
    if drawing.same_order((low, high), PAPER_RANGE):  # else the curves of one would lie on each other
        for axes in (inset, paper_inset):
            axes.set_ylim(min(low, PAPER_RANGE[0]), max(high, PAPER_RANGE[1]))
    extra = seed_marks.seeds_handles(means=means, marked=shared) if are_repeated(gaps) else []
    extra += seed_marks.noise_bracket(inset, noise)

    def our_gap(run: str) -> str:
        seeds = seeds_words(gaps[run], "gap", end, shared)
        return gap_words(of_seeds(gaps[run], shared), end) + (seeds and f"\n{seeds}")

    for axes, gap_of in (
        (left, our_gap),
        (right, lambda run: f"{paper_end(paper, run, paper_gaps[run]):+.2f} %"),
    ):
        handles, _ = axes.get_legend_handles_labels()
        words = [
            f"{series.label}  {gap_of(series.run)}"
            for series in paper.series
            if len(paper_losses[series.run]) or (axes is left and len(losses[series.run]))
        ]
        below = axes.transAxes + ScaledTranslation(0, -LEGEND_BELOW, figure.dpi_scale_trans)
        axes.legend(
            handles, words, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below, ncols=2
        )
    if extra:
        drawing.make_room(figure, figure.legend(handles=extra, loc="lower center", ncols=len(extra)))
    notes = [
        smoothing_note(losses, MAIN_SPAN, "loss"),
        f"inset: {smoothing_note(gaps, FORK_SPAN, 'gap')}",
        f"in the legends: gap to FP8 at {100 * end:.3g} %; the paper's, read off its curves (configs/claims.yaml)",
        noise.words() if noise else no_noise_note("gap"),
        first_numbers_note(gaps.values(), end),
        shared_seeds_note(table, paper, end),
    ]
    return drawing.finish(
        figure, paper.title, source_lines.provenance(table, *notes), source_lines.stand_in(table)
    )


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    return [
        judge_order(table, paper, "C11", at=fork_end(table, FORKS)),
        judge_event(table, paper, "C12", "stays stable from 3.43T to 3.94T tokens"),
    ]


def _make_room(axes: Axes, losses: list[pd.DataFrame]) -> None:
    """y-limits that keep the curves below the inset where it stands, whatever way the loss falls."""
    start = INSET[0] * MAIN_SPAN[1] * 0.75  # its tick labels stand left of it
    beside = drawing.settled_range(losses, start=start)
    if beside is None:
        return
    low, high = beside
    room = max(high - low, 1e-6)
    axes.set_ylim(low - room / 12, low - room / 12 + (13 / 12) * room / (0.8 * INSET[1]))


def _inset(axes: Axes) -> Axes:
    inset = axes.inset_axes(INSET)
    inset.set_xlim(100 * FORK_SPAN[0], 100 * FORK_SPAN[1])
    inset.axhline(0, color="#000000", lw=0.8)
    inset.set_title("difference to FP8 (%) after the fork", fontsize=6.5, loc="center", pad=2)
    inset.tick_params(labelsize=6)
    inset.spines["top"].set_visible(False)
    axes.grid(False)  # its lines would run through the inset's tick labels
    return inset
