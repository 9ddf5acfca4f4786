"""docs/campaign.md says what more would settle: checked by asking the rules for their best verdict on every claim."""

from __future__ import annotations

import csv
import importlib
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pandas as pd
import pytest
from readme_text import ROOT, claims_table
from recorded_runs import RECORDED

from repro.analysis import orders, rules
from repro.analysis.noise import Noise, own_limit
from repro.analysis.paper import Paper, load_paper
from repro.analysis.verdicts import NOT_MEASURABLE, REPRODUCED, UNRESOLVED, Arm, Case, Scale, Verdict
from repro.experiments import load
from repro.experiments.elements import load_elements

PAGE = (ROOT / "docs" / "campaign.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## GPU time, and what more would settle\n")[2].partition("\n## ")[0]
WORDS = " ".join(SECTION.split())
FIGURES, CLAIMS = ROOT / "paper_figures", ROOT / "configs" / "claims.yaml"
ROWS = claims_table("recorded/proxy/claims.md")[1]
VERDICTS, REASONS = ({row[0]: row[column] for row in ROWS} for column in (4, 5))
QUIET = Noise(sd=1e-6, dof=4, num_runs=6)  # the seeds hardly scatter


def small() -> Scale:
    """Of the 1.2B stand-in, whose claims lack runs."""
    table = pd.read_csv(FIGURES / "fig8" / "recorded" / "proxy.csv")
    row = table[table["run"] == "1p2b_bf16"].iloc[0]
    return Scale("proxy", int(row["num_parameters"]), int(row["end_tokens"]))


def recorded(case: Case) -> Case:
    """The case as if all its runs were recorded, at the size that they have here."""
    return replace(case, scale=replace(case.scale if case.scale.parameters else small(), unrecorded=()))


def best_order(rule: Callable[..., Verdict], case: Case, arms: object, groups: Any, **rest: Any) -> Verdict:
    asked = {key: Arm(key, -float(place), 3) for place, group in enumerate(groups) for key in group}
    return rule(recorded(case), asked, groups, **rest | {"noise": QUIET})


def best_event(rule: Callable[..., Verdict], case: Case, arms: object, finite: Any, **rest: Any) -> Verdict:
    asked = {key: Arm(key, -1.0, 3, None if ends else 0.5) for key, ends in finite.items()}
    return rule(recorded(case), asked, finite, **rest)


def best_value(rule: Callable[..., Verdict], case: Case, arms: object, stated: Any, **rest: Any) -> Verdict:
    asked = [Arm(str(number), number, 3) for number in stated]
    return rule(recorded(case), asked, stated, **rest | {"noise": QUIET})


def best_bound(
    rule: Callable[..., Verdict], case: Case, arm: object, *, above: float, **rest: Any
) -> Verdict:
    return rule(recorded(case), Arm("run", above + 0.1, 3), above=above, **rest | {"noise": QUIET})


@pytest.fixture(scope="module")
def papers() -> dict[str, tuple[Paper, pd.DataFrame]]:
    """Element -> what it judges and the table of what is recorded, of all elements with trained runs."""
    found = {}
    for name in load_elements(FIGURES):
        paper, path = load_paper(FIGURES / name, CLAIMS), FIGURES / name / "recorded" / "proxy.csv"
        if paper.claims and path.is_file():
            found[name] = paper, pd.read_csv(path, dtype={"git_commit": str, "run_hash": str})
    return found


@pytest.fixture(scope="module")
def best(papers) -> dict[str, Verdict]:
    """Claim -> its verdict if every run of this size ended as the paper's and the seeds hardly scattered."""
    ruled = {
        "event": partial(best_event, rules.event),
        "value": partial(best_value, rules.value),
        "bound": partial(best_bound, rules.bound),
    }
    with (
        mock.patch.multiple(rules, **ruled),
        mock.patch.object(orders, "order", partial(best_order, orders.order)),
    ):
        verdicts = [
            verdict
            for name, (paper, table) in papers.items()
            for verdict in importlib.import_module(f"paper_figures.{name}.figure").claims(table, paper)
        ]
    return {verdict.claim: verdict for verdict in verdicts}


def told(words: str) -> list[str]:
    """Claims of the row of the page's table whose second column begins with these words."""
    (row,) = re.findall(rf"^\| ([^|]+) \| {re.escape(words)}[^|]*\|$", SECTION, re.MULTILINE)
    return sorted(row.split(", "))


def runs() -> list[dict[str, str]]:
    with (RECORDED / "runs.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_minutes_by_family_are_those_of_the_run_list():
    spent = dict.fromkeys(("sweep", "12b", "8b", "1p2b"), 0.0)
    for row in runs():
        family = "sweep" if "_rate_" in row["run"] else row["run"].partition("_")[0]
        spent[family] += float(row["seconds"]) * int(row["processes"]) / 60
    assert (
        "| " + " | ".join(f"{minutes:.1f}" for minutes in [*spent.values(), sum(spent.values())]) + " |"
        in SECTION
    )


def test_the_seeds_of_every_run_are_told():
    repeated = Counter(row["run"].partition("_seed")[0] for row in runs() if "_seed" in row["run"])
    assert repeated == {
        "1p2b_bf16": 2, "1p2b_last4": 2, "1p2b_last4_2d": 1, "1p2b_last4_2d_rht": 1, "1p2b_last4_2d_rht_sr": 2,
        "8b_bf16": 2, "8b_nvfp4": 2, "8b_mxfp4": 1,
    }  # fmt: skip
    assert (
        "Of the 1.2B stand-in BF16, the last 4 blocks in BF16 and the full method have three seeds, Figure 8's other "
        "two runs two; of the 8B stand-in BF16 and NVFP4 three, MXFP4 two; every other run has one." in WORDS
    )


def test_seeds_settle_the_orders_that_the_rules_would_confirm(best):
    confirmed = {name for name, verdict in best.items() if verdict.verdict == REPRODUCED}
    found = {name for name in confirmed if best[name].kind == "order" and VERDICTS[name] != REPRODUCED}
    assert told("other seeds.") == sorted(found)
    assert not any(REASONS[name].startswith("not recorded") for name in found), "lacks more than seeds"


def test_out_of_reach_is_what_stays_so_at_its_best(best, papers):
    never = {name: verdict.reason for name, verdict in best.items() if verdict.verdict == NOT_MEASURABLE}
    size = {name for name, reason in never.items() if re.search(r"of at least \S+ parameters", reason)}
    longer = told("only a longer horizon")
    assert told("only the paper's models and tokens") == sorted(size)
    assert longer == sorted(set(never) - size)
    reach = {
        claim: paper.reach(claim).tokens_per_parameter
        for paper, _ in papers.values()
        for claim in paper.judge
        if claim in longer
    }
    least, most = min(reach, key=reach.__getitem__), max(reach, key=reach.__getitem__)
    assert f"is {reach[least]:.0f} tokens a parameter ({least}):" in WORDS
    assert f"The most is {reach[most]:.0f} ({most})." in WORDS
    tokens = reach[least] * small().parameters
    categories = json.loads((RECORDED / "data_manifest.json").read_text(encoding="utf-8"))["categories"]
    corpus = sum(category["train"]["tokens"] for category in categories.values())
    assert f"{tokens / small().tokens:.0f} times that of the 1.2B stand-in" in WORDS
    assert f"{tokens / corpus:.1f} times the corpus" in WORDS


def test_the_rest_needs_other_things_than_seeds(best):
    depth, scatter = told("no seed:")
    assert [best[claim].verdict for claim in (scatter, depth)] == [UNRESOLVED] * 2
    assert "scatter around that line" in best[scatter].reason
    assert "neighbouring blocks" in best[depth].reason
    rows = re.findall(r"^\| ([CT]\d[^|]*) \|", SECTION, re.MULTILINE)
    named = [name for row in rows for name in row.split(", ")]
    assert len(named) == len(set(named))
    settled = {name for name, reason in VERDICTS.items() if reason == REPRODUCED}
    assert set(named) == set(VERDICTS) - settled


def test_orders_over_three_seeds_are_those_whose_runs_all_have_replicas(papers):
    plan = load("proxy")
    seeds = told("other seeds.")
    three = [
        claim
        for paper, _ in papers.values()
        for claim in paper.judge
        if claim in seeds and all(len(plan.replicas(run)) == 2 for run in paper.judge[claim]["arms"].values())
    ]
    *others, last = sorted(three)
    assert f"the tier has three seeds of all runs of {', '.join(others)} and {last} alone." in WORDS


def test_how_far_apart_three_seeds_must_lie(best):
    """In standard deviations of the seeds' differences, which are those of -1, 0 and 1."""
    for claim, words in (("C11", "{} times its standard deviation between seeds in C11 ({} pairs)"),
                         *((name, "{} in C19, C30 and C32 ({})") for name in ("C19", "C30", "C32"))):  # fmt: skip
        pairs = sum(len(best[claim].numbers[outcome]) for outcome in ("held", "failed", "inside"))
        assert words.format(f"{own_limit([-1.0, 0.0, 1.0], comparisons=pairs):.1f}", pairs) in WORDS
