"""What of a curve is drawn, and the words about it: seeds, part, smoothing, end value, and what is recorded.

Does not: draw, read files or judge.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import pandas as pd

from repro.analysis.arms import arm, arms, groups_of
from repro.analysis.paper import Paper
from repro.analysis.readings import END_WINDOW, MIN_END_POINTS
from repro.analysis.verdicts import Arm

# Width of the running mean of training losses, as a share of the drawn span.
SMOOTHING = 0.02


def ours_of(table: pd.DataFrame, run: str, quantity: str, panel: str = "main") -> pd.DataFrame:
    """Rows of the run and of its replicas, one seed after the other (`seeds_of`); empty without the run itself."""
    rows = table[(table["replica_of"] == run) & (table["quantity"] == quantity) & (table["panel"] == panel)]
    return rows.sort_values(["replica", "fraction"]) if run in set(rows["run"]) else rows.iloc[:0]


def seeds_of(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The curve of each seed, that of the run itself first; rows that name no replica are one curve."""
    if rows.empty or "replica" not in rows:
        return [rows] if len(rows) else []
    return [own for _, own in rows.groupby("replica")]


def are_repeated(ours: dict[str, pd.DataFrame]) -> bool:
    """Whether any of the curves has a second seed."""
    return any(len(seeds_of(rows)) > 1 for rows in ours.values())


def have_diverged(ours: dict[str, pd.DataFrame]) -> bool:
    """Whether any of the curves ends because its run diverged."""
    return any((own["status"] == "diverged").all() for rows in ours.values() for own in seeds_of(rows))


def within(curve: pd.DataFrame, span: tuple[float, float]) -> pd.DataFrame:
    """The part of a paper's curve inside the span; a span that ends at the horizon keeps the paper's overhang."""
    end = span[1] if span[1] < 1 else float("inf")
    return curve[(curve["fraction"] >= span[0]) & (curve["fraction"] <= end)]


def smoothing_points(rows: pd.DataFrame, span: tuple[float, float]) -> int:
    """Width of the running mean of training losses: 2 % of what is drawn, an odd number of points, 1 for none.

    Validation losses are not smoothed: their text is fixed. A fork of few steps is not either, since a mean over
    fewer points at its ends would bend it.
    """
    if len(rows) < 2 or rows["text"].iloc[0] == "validation":
        return 1
    spacing = seeds_of(rows)[0]["fraction"].diff().median()
    points = round(SMOOTHING * (span[1] - span[0]) / spacing)
    return max(1, points + 1 - points % 2)


def smoothing_note(ours: dict[str, pd.DataFrame], span: tuple[float, float], quantity: str) -> str:
    """States the smoothing that the figure shows, and what its end values average."""
    curves = [rows for rows in ours.values() if len(rows)]
    if not curves:
        return ""
    text = {"train": "training", "validation": "validation"}[curves[0]["text"].iloc[0]]
    widths = sorted({smoothing_points(rows, span) for rows in curves})
    drawn = "as logged" if widths == [1] else f"running mean of {' to '.join(map(str, widths))} logged points"
    least = MIN_END_POINTS[curves[0]["text"].iloc[0]]
    points = f"of {least} points" if least > 1 else "of one validation"
    ends = f"mean over the last {100 * END_WINDOW:g} % of the horizon, {points} at least"
    return f"{text} {quantity}: {drawn}; end values: {ends}"


def no_noise_note(quantity: str) -> str:
    return "no run was repeated with another seed: the noise is unknown" if quantity == "gap" else ""


def end_of(rows: pd.DataFrame, at: float | None = None) -> Arm:
    """End value of a run, read and averaged over its seeds as the verdicts do it; of a loss just as of a gap."""
    run = str(rows["replica_of"].iloc[0])
    return arm(rows.assign(quantity="gap"), run, run, at=at)


def shared_seeds(curves: Iterable[pd.DataFrame], at: float | None = None) -> list[int]:
    """Numbers of the seeds that all recorded runs of a figure have an end value of: means over others for some of
    them would not stand beside each other."""
    seeds = [set(end_of(rows, at).by_seed) for rows in curves if len(rows)]
    return sorted(set.intersection(*seeds)) if seeds else []


def of_seeds(rows: pd.DataFrame, seeds: Collection[int]) -> pd.DataFrame:
    """Rows of these seeds; of all where none is given, which is what runs without a common one share."""
    return rows[rows["replica"].isin(list(seeds))] if seeds and len(rows) else rows


def shared_words(seeds: Collection[int]) -> str:
    """seed 1, or: means over seeds 1 and 2."""
    *first, last = map(str, seeds)
    return f"means over seeds {', '.join(first)} and {last}" if first else f"seed {last}"


def first_numbers_note(curves: Collection[pd.DataFrame], at: float | None = None) -> str:
    """Of which seeds the first numbers of the legend are, where a run has more than all share; else ""."""
    shared = shared_seeds(curves, at)
    recorded = [rows for rows in curves if len(rows)]
    if not shared or all(set(end_of(rows, at).by_seed) <= {*shared} for rows in recorded):
        return ""
    return f"first numbers of the legend: {shared_words(shared)}, which all its runs have"


def end_words(rows: pd.DataFrame, quantity: str, at: float | None = None) -> str:
    """Our value at a fraction of the horizon (None: at the curves' ends), the mean over the seeds, or where the run
    diverged."""
    if rows.empty:
        return "not recorded"
    end = end_of(rows, at)
    if end.diverged_fraction is not None:
        place = f"at {100 * end.diverged_fraction:.3g} %"
        if end.num_runs == 1:
            return f"diverged {place}"
        first = "" if end.num_diverged == 1 else ", the first"
        return f"{end.num_diverged} of {end.num_runs} seeds diverged{first} {place}"
    return "-" if end.value is None else _number(end.value, quantity)


def gap_words(rows: pd.DataFrame, at: float | None = None, stated: float | None = None) -> str:
    """`end_words` of a gap with its unit, and in brackets what the paper states: -1.36 (-2.11) %."""
    words = end_words(rows, "gap", at)
    bracket = "" if stated is None else f" ({stated:+.2f}"
    if words[-1].isdigit():
        return f"{words}{bracket}{bracket and ')'} %"
    return f"{words}{bracket}{bracket and ' %)'}"  # no number of ours: diverged, or not recorded


def seeds_words(
    rows: pd.DataFrame, quantity: str, at: float | None = None, shared: Collection[int] = ()
) -> str:
    """Of how many seeds a run has a mean, with the lowest and the highest; "" of one seed.

    The mean itself stands with it where the run has more seeds than the `shared` ones that the number before is of.
    """
    by_seed = end_of(rows, at).by_seed if len(rows) else {}
    has_more = bool(shared) and not set(by_seed) <= {*shared}
    values = sorted(by_seed.values())
    if len(values) < 2:
        return ""
    if not math.isfinite(values[0]):
        return end_words(rows, quantity, at) if has_more else ""
    lowest, highest = (_number(value, quantity) for value in (values[0], values[-1]))
    mean = f" {end_words(rows, quantity, at)}" if has_more else ""
    return f"mean of {len(values)} seeds{mean}, {lowest} to {highest}{' %' if quantity == 'gap' else ''}"


def shared_seeds_note(table: pd.DataFrame, paper: Paper, at: float | None = None) -> str:
    """The values of the verdicts on orders where the seeds that all compared runs share make others than the first
    numbers of the legend, which are over the seeds that all drawn runs share.

    "" where there are none. Only orders whose runs are all drawn, and read at `at` as the legend is: one that
    compares runs where the first of them stops is not.
    """
    notes = []
    shared = shared_seeds((ours_of(table, series.run, "gap") for series in paper.series), at)
    for claim, rule in paper.judge.items():
        named = {str(key): run for key, run in rule.get("arms", {}).items()}
        stated = [rule.get("order") or paper.claims[claim].numbers.get("order"), rule.get("late_order")]
        for order in stated if set(named.values()) <= set(paper.labels) else []:
            runs = {key: named[key] for group in groups_of(order or []) for key in group}
            curves = {run: ours_of(table, run, "gap") for run in runs.values()}
            if at is None and any(ends_early(rows, curves.values()) for rows in curves.values()):
                continue
            found = arms(table, runs, paper.labels, at=at)
            own = {key: end_words(of_seeds(curves[run], shared), "gap", at) for key, run in runs.items()}
            other = [
                one for key, one in found.items() if one.value is not None and _gap(one.value) != own[key]
            ]
            if other:
                seeds = ", ".join(map(str, sorted(other[0].by_seed)))
                values = ", ".join(f"{one.name} {_gap(one.value)}" for one in other if one.value is not None)
                notes.append(f"{claim} seed{'s' if ',' in seeds else ''} {seeds}: {values} %")
    start = "in the verdicts, values of an order are over the seeds that all its runs share"
    return f"{start}: {'; '.join(notes)}" if notes else ""


def _gap(value: float) -> str:
    return _number(value, "gap")


def _number(value: float, quantity: str) -> str:
    return format(value, "+.2f" if quantity == "gap" else ".3f")


def paper_end(paper: Paper, run: str, curve: pd.DataFrame, at: float | None = None) -> float | None:
    """The paper's value beside ours: the end value that a claim states for the run.

    Where none does, the mean of `curve` over END_WINDOW before `at`, a fraction of the horizon (None, or beyond it:
    where the curve ends); None for an empty curve.
    """
    if run in paper.drawn_ends:
        return paper.drawn_ends[run]
    if curve.empty:
        return None
    end = min(curve["fraction"].max(), float("inf") if at is None else at)
    inside = (curve["fraction"] > end - END_WINDOW) & (curve["fraction"] <= end)
    return float(curve.loc[inside, "value"].mean())


def brackets_note(paper: Paper, curves: dict[str, pd.DataFrame]) -> str:
    """Says what stands in brackets: values of the claims, and of which curves this project's own reading."""
    if all(curve.empty for curve in curves.values()):
        return ""
    read = [s.label for s in paper.series if len(curves[s.run]) and s.run not in paper.drawn_ends]
    note = "in brackets: the paper's end values, read off its curves (configs/claims.yaml)"
    return note + (f"; {', '.join(read)}: its curve's mean over the same 2 % as ours" if read else "")


def ends_early(rows: pd.DataFrame, curves: Iterable[pd.DataFrame]) -> float | None:
    """Where a run that did not diverge ends, a fraction of the horizon, if that is before the others do."""
    ended = rows[rows["status"] != "diverged"]
    if ended.empty:
        return None
    end = float(ended["fraction"].max())
    return end if end < max(curve["fraction"].max() for curve in curves if len(curve)) - END_WINDOW else None


def tier_title(table: pd.DataFrame, paper: Paper, ours: dict[str, pd.DataFrame]) -> str:
    """Names the tier over its panel, and where some runs are not recorded how many are, the baseline among them."""
    drawn = {series.run for series in paper.series}
    baseline = (
        set(table.loc[table["role"] == "baseline", "run"]) - drawn
    )  # recorded, or there is nothing to draw
    there = sum(len(ours[run]) > 0 for run in drawn) + len(baseline)
    needed = len(drawn) + len(baseline)
    some = f", {there} of {needed} runs recorded so far" if there < needed else ""
    return f"{table['tier'].iloc[0]} tier{some}"
