"""Figure 6 (Section 5): NVFP4 and MXFP4 on the 8B model, and the tokens that MXFP4 needs more. Claims C27, C28."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.analysis import drawing, palette, rules, seed_marks, source_lines
from repro.analysis.arms import arm, noise_of, scale
from repro.analysis.curve_panels import beyond_axis, draw_ours, draw_papers, draws_means
from repro.analysis.curves import curve_table, missing_runs
from repro.analysis.noise import Noise
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.shown import (
    are_repeated,
    brackets_note,
    first_numbers_note,
    no_noise_note,
    ours_of,
    shared_seeds,
    smoothing_note,
)
from repro.analysis.tokens_to_match import Losses, Match, loss_noise, matching_budget
from repro.analysis.verdicts import Arm, Verdict

BASELINE, NVFP4, MXFP4 = "8b_bf16", "8b_nvfp4", "8b_mxfp4"
LONGER = ("8b_mxfp4_1p25x", "8b_mxfp4_1p5x")


def data(results: Results) -> pd.DataFrame:
    """Panel "main": training losses and gaps. Panel "budget": each run's last validation loss, at its own horizon."""
    curves = curve_table(results, [NVFP4, MXFP4], baseline=BASELINE, text="train")
    losses = curve_table(
        results,
        [NVFP4, MXFP4, *LONGER],
        baseline=BASELINE,
        text="validation",
        panel="budget",
        quantities=("loss",),
    )
    ends = losses.sort_values("tokens").groupby("run", sort=False).tail(1)
    return pd.concat([curves, ends.assign(quantity="final_loss")], ignore_index=True)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    curves = table[table["panel"] == "main"]
    ours = {series.run: ours_of(curves, series.run, "gap") for series in paper.series}
    theirs = {series.run: paper.curve(series.run, "a") for series in paper.series}
    start = drawing.SETTLED["gap"]
    ranges = [drawing.settled_range(list(rows.values()), start=start) for rows in (ours, theirs)]
    overlay = drawing.same_order(*ranges)
    noise = noise_of(curves, paper)

    figure = drawing.new_figure(8.6 if overlay else 10.4, 4.2)
    panels = figure.subplots(
        1, 3 if overlay else 4, width_ratios=[1.6, 1, 1] if overlay else [1.4, 1.4, 1, 1]
    )
    left, budget, paper_budget = panels[0], panels[-2], panels[-1]
    draw_ours(
        left,
        curves,
        paper,
        ours,
        quantity="gap",
        span=(0.0, 1.0),
        paper_ends=theirs,
        overlay=overlay,
    )
    extra = []
    if overlay:
        for series in paper.series:
            drawing.paper_curve(left, theirs[series.run], series, faint=True)
        extra.append(drawing.paper_handle())
    else:
        draw_papers(panels[1], paper, theirs, quantity="gap", span=(0.0, 1.0), panel="a")
    drawing.set_range(left, ranges[0], ranges[1] if overlay else None, (0.0, 0.0))
    beyond = beyond_axis(left, paper, ours, theirs=theirs.values() if overlay else ())
    tier = table["tier"].iloc[0]
    left.set_title(f"a  training loss, {tier} tier")
    if are_repeated(ours):
        extra += seed_marks.seeds_handles(
            means=draws_means(curves, paper), marked=shared_seeds(ours.values())
        )
    extra += seed_marks.noise_bracket(left, noise)

    _budget(budget, _final_losses(table))
    budget.set_title(f"b  final loss, {tier} tier")
    budgets = paper.stated["budgets"]
    _budget(paper_budget, {run: (budgets[run], {1: loss}) for run, loss in _paper_losses(paper).items()})
    paper_budget.set_title("b  final loss, the paper")
    for axes in (budget, paper_budget):
        axes.set_ylabel("final validation loss (nats a token)")
    drawing.make_room(figure, drawing.legend_below(figure, left, extra, columns=3))
    notes = [smoothing_note(ours, (0.0, 1.0), "gap"), noise.words() if noise else no_noise_note("gap")]
    notes += [
        first_numbers_note(ours.values()),
        brackets_note(paper, theirs),
        beyond,
        _match_words(table),
        _seed_marks(table),
    ]
    return drawing.finish(
        figure, paper.title, source_lines.provenance(table, *notes), source_lines.stand_in(table)
    )


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    curves = table[table["panel"] == "main"]
    stated = paper.claims["C27"].numbers["value"]
    runs = paper.judge["C27"]["arms"]
    noise = noise_of(curves, paper)
    gaps = rules.value(
        paper.case(
            "C27", scale(curves, runs.values()), paper="NVFP4 -1.5 %, MXFP4 -2.5 % (drawn -1.51, -2.54)"
        ),
        [arm(curves, run, paper.labels[run]) for run in runs.values()],
        [stated[key] for key in runs],
        tolerance=paper.judge["C27"]["tolerance"],
        noise=noise,
    )
    case = paper.case("C28", scale(table, [NVFP4, MXFP4, *LONGER]), paper="36 % more tokens (1.36T of 1T)")
    more, token_noise = _extra_tokens(table, paper)
    tokens = rules.value(
        case,
        [Arm("more tokens, per cent", more)],
        [100 * (paper.claims["C28"].numbers["value"] - 1)],
        tolerance=100 * paper.judge["C28"]["tolerance"],
        noise=token_noise,
    )
    return [gaps, tokens if more is None else replace(tokens, ours=_more_words(more, token_noise))]


def _final_losses(table: pd.DataFrame) -> dict[str, tuple[float, Losses]]:
    """run -> (budget in horizons of the baseline, last validation loss of each seed), without diverged ones."""
    is_end = (table["panel"] == "budget") & (table["quantity"] == "final_loss") & table["value"].notna()
    return {
        str(run): (
            float(rows["fraction"].iloc[0]),
            dict(zip(rows["replica"].astype(int), rows["value"], strict=True)),
        )
        for run, rows in table[is_end].groupby("replica_of", sort=False)
    }


def _paper_losses(paper: Paper) -> dict[str, float]:
    rows = paper.curves[paper.curves["panel"] == "b"]
    return dict(zip(rows["run"], rows["value"], strict=True))


def _mxfp4(losses: dict[str, tuple[float, Losses]]) -> list[tuple[float, Losses]]:
    return [losses[run] for run in (MXFP4, *LONGER) if run in losses]


def _match(losses: dict[str, tuple[float, Losses]]) -> Match | None:
    """Where the line through MXFP4's runs meets NVFP4's loss, in units of NVFP4's budget, over all seeds."""
    if NVFP4 not in losses:
        return None
    unit, target = losses[NVFP4]
    return matching_budget(target, [(budget / unit, own) for budget, own in _mxfp4(losses)])


def _mean(own: Losses, first: Losses) -> float:
    """A run's mean loss as the match takes it: that of the line's first run, and the mean distance to it over common
    seeds; without any its own mean."""
    shared = own.keys() & first.keys()
    if not shared:
        return mean(own.values())
    return mean(first.values()) + mean(own[seed] - first[seed] for seed in shared)


def _extra_tokens(table: pd.DataFrame, paper: Paper) -> tuple[float | None, Noise | None]:
    """Tokens that MXFP4 needs more, in per cent, and their noise, from the last validation losses of all seeds."""
    ends = _final_losses(table)
    found = _match(ends)
    if found is None:
        return None, None
    losses = {run: own for run, (_, own) in ends.items()}
    per_nat = 100 * found.sensitivity
    reference = losses.get(BASELINE, {})
    gaps = [
        [losses[run][seed] - reference[seed] for seed in losses[run].keys() & reference.keys()]
        for run in (NVFP4, MXFP4)
        if run in losses
    ]
    more = 100 * (found.budget - 1)
    if noise := loss_noise(losses[NVFP4], _mxfp4(ends)[0][1], gaps):
        return more, replace(noise, sd=per_nat * noise.sd)
    # This panel has no gaps, so no noise of its own: the paper's repetition at its size, or nothing.
    repetition = noise_of(table[table["panel"] == "budget"], paper)
    if repetition is None:
        return more, None
    assert repetition.flat is not None
    # Two runs, so sqrt(2) of one, apart in per cent of the loss.
    of_one = repetition.flat / 2**0.5 / 100 * mean(losses[NVFP4].values())
    return more, replace(repetition, flat=per_nat * of_one)


def _more_words(more: float, noise: Noise | None) -> str:
    """8 % more tokens [-3, +19]"""
    limit = None if noise is None else noise.limit(1)
    return f"{more:.0f} % more tokens" + (
        "" if limit is None else f" [{more - limit:+.0f}, {more + limit:+.0f}]"
    )


def _match_words(table: pd.DataFrame) -> str:
    losses = _final_losses(table)
    match = _match(losses)
    if match is None and not set(missing_runs(table)).isdisjoint((NVFP4, MXFP4, *LONGER)):
        found = len(_mxfp4(losses))
        runs = f"{found or 'no'} MXFP4 run{'s' if found > 1 else ''} {'are' if found > 1 else 'is'} recorded"
        runs = runs if NVFP4 in losses else "NVFP4's run is not recorded"
        return f"b: {runs}, so the budget that matches NVFP4's loss is unknown"
    if match is None:
        return "b: no MXFP4 run here reaches NVFP4's loss, so there is no budget that matches it"
    if match.budget == 1:
        return "b: MXFP4's loss is already as low at the same number of tokens"
    return f"b: the line through MXFP4's runs meets NVFP4's loss at {match.budget:.2f} times the tokens"


def _seed_marks(table: pd.DataFrame) -> str:
    losses = _final_losses(table)
    repeated = any(len(losses[run][1]) > 1 for run in (NVFP4, MXFP4, *LONGER) if run in losses)
    return "b: large marks are means over seeds, small ones each seed" if repeated else ""


def _budget(axes: Axes, losses: dict[str, tuple[float, Losses]]) -> None:
    """Means over the seeds, small marks of each where there are several, and where the line meets NVFP4's loss."""
    line, colors = _mxfp4(losses), palette.PALETTE
    first = line[0][1] if line else {}
    means = [(budget, _mean(own, first)) for budget, own in line]
    axes.plot(*zip(*means, strict=True), color=colors["vermilion"], marker="o", ms=4)
    for (budget, own), color in (
        *((entry, colors["vermilion"]) for entry in line),
        *((losses[run], colors["green"]) for run in (NVFP4,) if run in losses),
    ):
        if len(own) > 1:
            axes.plot(
                [budget] * len(own), [*own.values()], color=color, marker="o", ms=2.5, ls="none", alpha=0.5
            )
    if NVFP4 in losses:
        budget, own = losses[NVFP4]
        loss = _mean(own, first)
        axes.plot(budget, loss, color=colors["green"], marker="s", ms=5)
        axes.axhline(loss, color=colors["green"], ls="--", lw=0.9)  # dotted are seeds
        match = _match(losses)
        if match is not None and match.budget > 1:
            place = match.budget * budget
            axes.plot(place, loss, marker="o", ms=7, mfc="none", mec="black")
            # The line falls, so the upper right of the ring is free.
            axes.annotate(
                f"{match.budget:.2f}", (place, loss), (5, 3), textcoords="offset points", fontsize=7
            )
    axes.set(xlabel="tokens (times the horizon)", xlim=(0.9, 1.6), xticks=[1.0, 1.25, 1.5])
    axes.margins(y=0.15)
