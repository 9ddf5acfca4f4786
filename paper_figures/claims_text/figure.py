"""Claims that the paper makes in words only (Sections 4.1, 4.2, Appendix E): C16, C17, C18, C24, C25."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.analysis import drawing, seed_marks, source_lines
from repro.analysis.arms import FORK_SPAN, arm, fork_end, judge_event, judge_order, noise_of
from repro.analysis.curve_panels import beyond_axis, draw_ours, draws_means
from repro.analysis.curves import curve_table
from repro.analysis.empty_figure import say_unrecorded
from repro.analysis.noise import Noise
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.shown import (
    are_repeated,
    first_numbers_note,
    have_diverged,
    no_noise_note,
    ours_of,
    shared_seeds,
    shared_seeds_note,
    smoothing_note,
    within,
)
from repro.analysis.verdicts import CONTRADICTED, REPRODUCED, Verdict

FULL = "1p2b_last4_2d_rht_sr"
FORKS = ("12b_sr_dgrad_only", "12b_sr_wgrad_only")
# panel -> quantity drawn
PANELS = {"sr": "gap", "all": "loss", "size": "gap", "signs": "gap"}


def data(results: Results) -> pd.DataFrame:
    """Four panels of curves: training losses of the 12B forks, validation losses of the 1.2B runs."""
    small = {"baseline": "1p2b_bf16", "text": "validation", "noise_from": ["1p2b_last4", FULL]}
    sizes = ["1p2b_rht_size2", "1p2b_rht_size4", FULL, "1p2b_rht_size128"]
    tables = [
        curve_table(results, ["12b_nvfp4", *FORKS], baseline="12b_fp8", text="train", panel="sr"),
        curve_table(results, ["1p2b_last4", "1p2b_base_all", "1p2b_sr_all"], panel="all", **small),
        curve_table(results, sizes, panel="size", **small),
        curve_table(results, [FULL, "1p2b_signs_per_transform", "1p2b_signs_none"], panel="signs", **small),
    ]
    return pd.concat(tables, ignore_index=True)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    verdicts = {verdict.claim: verdict.verdict for verdict in claims(table, paper)}
    repeated = table.loc[table["role"] == "replica", "replica_of"].nunique()  # each a second line in legends
    figure, notes = drawing.new_figure(9.0, 7.8 + 0.15 * repeated), []
    figure.get_layout_engine().set(h_pad=0.1)  # inches: a legend ends above the next panel's title
    for axes, (panel, quantity) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        notes.append(_panel(axes, table[table["panel"] == panel], paper.only(panel), panel, quantity))
    notes.append("; ".join(f"{claim} {verdict}" for claim, verdict in verdicts.items()))
    forks = {series.run: ours_of(table, series.run, "gap", "sr") for series in paper.only("sr").series}
    if words := smoothing_note(forks, FORK_SPAN, "gap"):
        notes.append(f"C16: {words}; the others: validation loss as logged")
    for panel, model in (("sr", "12B"), ("size", "1.2B")):
        noise = _noise(table, paper, panel)
        notes.append(f"{model}: {noise.words() if noise else no_noise_note('gap')}")
    for panel in ("size", "signs"):
        rows = table[table["panel"] == panel].assign(panel="main")
        notes.append(shared_seeds_note(rows, paper.only(panel)))
    lines = source_lines.provenance(table.drop_duplicates("run"), *notes)
    return drawing.finish(figure, paper.title, lines, source_lines.stand_in(table))


def _panel(axes: Axes, table: pd.DataFrame, paper: Paper, panel: str, quantity: str) -> str:
    """Draws one panel; returns the notes on it. One without a curve names the runs it waits for."""
    ours = {series.run: ours_of(table, series.run, quantity, panel) for series in paper.series}
    axes.set_title(paper.stated["title"])
    if all(rows.empty for rows in ours.values()):
        say_unrecorded(axes, table, paper, width=45)
        return ""
    span = FORK_SPAN if panel == "sr" else (0.0, 1.0)
    at = fork_end(table, FORKS) if panel == "sr" else None
    noise = noise_of(table, paper, at=at) if quantity == "gap" else None
    nothing = {series.run: pd.DataFrame() for series in paper.series}
    draw_ours(axes, table, paper, ours, quantity=quantity, span=span, paper_ends=nothing, read=at)
    shown = [within(rows, span) for rows in ours.values()]
    settled = drawing.settled_range(shown, start=drawing.SETTLED[quantity])
    drawing.set_range(axes, settled, (0.0, 0.0) if quantity == "gap" else None)
    handles = axes.get_legend_handles_labels()[0]
    extra = []
    if are_repeated(ours):
        marked = shared_seeds(ours.values(), at) if quantity == "gap" else ()
        extra += seed_marks.seeds_handles(means=draws_means(table, paper), marked=marked)
    extra += [drawing.diverged_handle()] if have_diverged(ours) else []
    words = beyond_axis(axes, paper, ours, span) if quantity == "gap" else ""
    extra += seed_marks.noise_bracket(axes, noise)
    axes.legend(handles=[*handles, *extra], loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2)
    found = [word for word in (first_numbers_note(ours.values(), at), words) if word]
    return f"{paper.stated['title']}: {'; '.join(found)}" if found else ""


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    sr, every, size, signs = (table[table["panel"] == panel] for panel in PANELS)
    every_paper = paper.only("all")
    return [
        judge_order(sr, paper.only("sr"), "C16", at=fork_end(sr, FORKS)),
        judge_event(every, every_paper, "C17", "diverges early (no number)"),
        _later(every, every_paper),
        judge_order(size, paper.only("size"), "C24"),
        judge_order(signs, paper.only("signs"), "C25"),
    ]


def _later(table: pd.DataFrame, paper: Paper) -> Verdict:
    """C18: with SR it diverges too, and later than without."""
    verdict = judge_event(table, paper, "C18", "diverges later than without SR (no number)")
    if verdict.verdict != REPRODUCED:
        return verdict
    ends = {key: arm(table, run, key) for key, run in paper.judge["C18"]["arms"].items()}
    with_sr, without = (ends[key].diverged_fraction or 0.0 for key in ("sr_all", "base_all"))
    if with_sr > without:
        return verdict
    return replace(verdict, verdict=CONTRADICTED, reason="diverges no later than without SR")


def _noise(table: pd.DataFrame, paper: Paper, panel: str) -> Noise | None:
    rows = table[table["panel"] == panel]
    return noise_of(rows, paper.only(panel), at=fork_end(rows, FORKS) if panel == "sr" else None)
