"""From a tidy curve table to what the rules compare: one arm a run, averaged over its seeds, and the common scale."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from repro.analysis import orders, rules
from repro.analysis.claims_file import groups_of
from repro.analysis.curves import missing_names, missing_runs
from repro.analysis.noise import PAPER_FLOOR, Noise, seed_noise
from repro.analysis.paper import Paper
from repro.analysis.readings import read_at
from repro.analysis.verdicts import Arm, Scale, Verdict

#: The forks of the 12B run: the paper's insets show 3.4T to 4.0T of 10T tokens.
FORK_SPAN = (0.34, 0.40)


def arm(
    table: pd.DataFrame,
    run: str,
    name: str,
    *,
    at: float | None = None,
    seeds: Collection[int] | None = None,
) -> Arm:
    """The end gap of a run, the mean over its seeds.

    Args:
        name: what the run is called in words.
        at: fraction of the horizon; None reads where each seed's curve ends.
        seeds: numbers of the replicas that count (1 is the run itself); None for all.

    The run counts as diverged at the earliest divergence among its seeds. Seeds that have no value at `at`,
    which they or their baseline did not reach, do not count; with none left the arm has no value.
    """
    rows = table[(table["replica_of"] == run) & (table["quantity"] == "gap")]
    if seeds is not None:
        rows = rows[rows["replica"].isin(list(seeds))]
    gaps: dict[int, float] = {}
    ends = []
    for number, own in rows.groupby("replica"):
        end = float(own["fraction"].max())
        # A divergence after the point that is read does not touch the value there.
        if (own["status"] == "diverged").any() and (at is None or end <= at):
            ends.append(end)
            gaps[int(number)] = -math.inf
        elif reading := read_at(own.sort_values("tokens"), at):
            gaps[int(number)] = reading.value
    known = {"by_seed": gaps, "is_paired": "paired" not in rows or bool(rows["paired"].all())}
    if ends:
        return Arm(name, None, diverged_fraction=min(ends), **known)
    return Arm(name, sum(gaps.values()) / len(gaps), len(gaps), **known) if gaps else Arm(name, None)


def arms(
    table: pd.DataFrame, runs: Mapping[str, str], labels: Mapping[str, str], *, at: float | None = None
) -> dict[str, Arm]:
    """Arms of key -> run, named by `labels` (run -> words), their means over the seeds that all of them have.

    Runs of one seed share data and initialisation, and a fork its parent: means over other seeds for some of the
    arms would not stand beside each other. Their `every_seed` is for pairs, which may share more than all do.
    """
    found = {key: arm(table, run, labels.get(run, run), at=at) for key, run in runs.items()}
    seeds = [set(one.by_seed) for one in found.values() if one.by_seed]
    common = set.intersection(*seeds) if seeds else set()
    if not common:
        return found
    return {
        key: replace(arm(table, runs[key], one.name, at=at, seeds=common), every_seed=one.by_seed)
        for key, one in found.items()
    }


def scale(table: pd.DataFrame, runs: Iterable[str]) -> Scale:
    """The smallest model and the fewest tokens among the runs; a diverged run's end is no limit of the tier."""
    names, lost = list(runs), missing_runs(table)
    unrecorded = tuple(missing_names(table, names))
    rows = table[table["run"].isin(names) & ~table["run"].isin(lost)]
    if unrecorded and rows.empty:
        return Scale(str(table["tier"].iloc[0]), 0, 0, unrecorded)
    assert not rows.empty, f"none of {names} in the table"
    ended = rows[rows["status"] != "diverged"]
    tokens = ended["end_tokens"].min() if not ended.empty else rows["horizon_tokens"].min()
    return Scale(str(rows["tier"].iloc[0]), int(rows["num_parameters"].min()), int(tokens), unrecorded)


def noise_of(table: pd.DataFrame, paper: Paper, *, at: float | None = None) -> Noise | None:
    """Seed noise from the table's replicas; at the paper's own size without replicas, its repetition's distance."""
    found = seed_noise(table, at=at)
    if found is not None:
        return found
    if missing_runs(table) and "num_parameters" not in table:
        return None
    size, horizon = paper.stated["parameters"], paper.stated["horizon_trillions"] * 1e12
    share = min(table["num_parameters"].min() / size, table["horizon_tokens"].min() / horizon)
    return PAPER_FLOOR if share >= rules.SAME_SIZE else None


def fork_end(table: pd.DataFrame, forks: Iterable[str]) -> float:
    """Fraction of the horizon at which forks are compared: where the first of those that ended well ends, and where
    the paper's end while none is recorded."""
    rows = table[table["run"].isin(list(forks)) & ~table["run"].isin(missing_runs(table))]
    if rows.empty:
        return FORK_SPAN[1]
    ended = rows[rows["status"] != "diverged"]
    return float((rows if ended.empty else ended).groupby("run")["fraction"].max().min())


def judge_event(table: pd.DataFrame, paper: Paper, claim: str, words: str) -> Verdict:
    """Verdict of an event claim whose paper.yaml names its arms and which of them stay finite.

    `words` is the paper's statement with its numbers.
    """
    rule = paper.judge[claim]
    runs = {key: rule["arms"][key] for key in rule["finite"]}
    case = paper.case(claim, scale(table, runs.values()), paper=words)
    # Each run ends for itself: a seed counts that the others lack.
    found = {key: arm(table, run, paper.labels.get(run, run)) for key, run in runs.items()}
    return rules.event(case, found, rule["finite"], paper_parameters=paper.stated["parameters"])


def judge_order(
    table: pd.DataFrame,
    paper: Paper,
    claim: str,
    *,
    at: float | None = None,
    order: list[Any] | None = None,
    comparisons: int | None = None,
    **equal: float | None,
) -> Verdict:
    """Verdict of an order claim whose paper.yaml names its arms (key -> run).

    The order is that of configs/claims.yaml unless judge.<claim>.order or `order` refines it;
    judge.<claim>.equal_within (or the argument of that name) is the margin, in %-points, of members that the paper
    calls equal. `comparisons` counts the pairs of all orders of a claim that has several.
    """
    rule = paper.judge[claim] | equal
    stated = paper.claims[claim].numbers
    groups = groups_of(order or rule.get("order") or stated["order"])
    named = {str(key): run for key, run in rule["arms"].items()}
    runs = {key: named[key] for group in groups for key in group}
    case = paper.case(claim, scale(table, runs.values()), paper=stated_order(groups, rule, claim, paper))
    return orders.order(
        case,
        arms(table, runs, paper.labels, at=at),
        groups,
        equal_within=rule.get("equal_within"),
        noise=noise_of(table, paper, at=at),
        comparisons=comparisons,
    )


def stated_order(groups: list[list[str]], rule: dict[str, Any], claim: str, paper: Paper) -> str:
    """The paper's order in words, best first, with the drawn end values where there are any."""
    drawn = paper.drawn_of(claim)
    equal = " = " if rule.get("equal_within") is not None else ", "
    named = {str(key): run for key, run in rule["arms"].items()}

    def word(key: str) -> str:
        label = paper.labels.get(named[key], key)
        return f"{label} {drawn[key]:+.2f}" if key in drawn else label

    return " > ".join(equal.join(word(key) for key in group) for group in groups)
