"""The mechanisms of quantisation error: their profile over the blocks, and what is judged of it."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stated import of_the_papers_size, paper_of
from synthetic_results import write_mechanisms

from paper_figures.mechanisms import figure as mechanisms
from paper_figures.mechanisms.trend import Trend, profile, tau_within_kinds, trend, variance_of_score
from repro.analysis.results import Results
from repro.analysis.verdicts import CONTRADICTED, NOT_MEASURABLE, REPRODUCED, UNRESOLVED


def layers(values: list[float], name: str = "q_proj") -> pd.DataFrame:
    return pd.DataFrame(
        {"layer": [f"m.{i}.{name}" for i in range(len(values))], "block": range(len(values)), "value": values}
    )


def test_rank_correlation_by_hand() -> None:
    found = trend([1.0, 3.0, 2.0, 4.0])
    assert found.tau == pytest.approx(4 / 6), "five pairs in order, one not"
    assert found.neighbours == 0, "neighbours' products sum up to -1.75 of 5"
    assert found.z == pytest.approx(4 / (4 * 3 * 13 / 18) ** 0.5)
    assert trend([2.0, 2.0, 2.0]) == Trend(0.0, 0.0, 0.0)


def test_variance_of_three_blocks_by_hand() -> None:
    """Pairs 12, 13, 23 of correlation r, r, r^2: the covariances of their differences."""
    r = 0.6
    near, far = 2 - 2 * r, 2 - 2 * r**2
    same = 1 - r**2  # 12 with 13: rho(1) - rho(2) - rho(1) + 1
    next_to = r - r**2 - 1 + r  # 12 with 23: rho(1) - rho(2) - 1 + rho(1)
    expected = 3 + 2 * 2 / math.pi * (2 * math.asin(same / math.sqrt(near * far)) + math.asin(next_to / near))
    assert variance_of_score(3, r) == pytest.approx(expected)
    assert variance_of_score(20, 0.0) == pytest.approx(20 * 19 * 45 / 18), "independent blocks"


def passed(rho: float, *, rise: float = 0.0, number: int = 1000) -> tuple[float, float]:
    """Share of Gaussian profiles of 20 blocks, neighbours correlated by `rho`, whose trend is beyond Z; and the
    share if blocks counted as independent. `rise`: from block to block, in standard deviations."""
    draws = np.random.default_rng(21).standard_normal((20, number))
    for block in range(1, 20):
        draws[block] = rho * draws[block - 1] + (1 - rho**2) ** 0.5 * draws[block]
    found = [trend(values) for values in (draws + rise * np.arange(20)[:, None]).T.tolist()]
    alone = [190 * one.tau / variance_of_score(20, 0.0) ** 0.5 for one in found]
    return tuple(float(np.mean(np.abs(z) > mechanisms.Z)) for z in ([one.z for one in found], alone))


@pytest.mark.parametrize("rho", [0.0, 0.35, 0.65])
def test_profiles_without_trend_rarely_have_one(rho: float) -> None:
    """At 5 %; 2 points of it are three standard errors of 1000 draws. 3 and 6 % are what 40,000
    have: less where blocks are independent, since negative estimates count as none, more where r is estimated low."""
    share, alone = passed(rho)
    error = 3 * (0.05 * 0.95 / 1000) ** 0.5
    assert 0.03 - error <= share <= 0.06 + error
    assert rho < 0.65 or alone > 0.2, "as independent blocks they would"


def test_a_real_trend_is_found() -> None:
    assert passed(0.3, rise=0.3)[0] > 0.85
    assert trend(list(range(20))).z > mechanisms.Z, "a straight line has neighbours as alike as can be"


def test_further_layers_of_a_block_are_no_further_observations() -> None:
    one = layers([1.0, 3.0, 2.0, 4.0])
    both = pd.concat([one, layers([5.0, 7.0, 6.0, 8.0], "down_proj")])
    assert profile(both) == [3.0, 5.0, 4.0, 6.0]


def test_blocks_of_one_kind_are_ranked_among_themselves() -> None:
    rows = layers([1.0, 9.0, 2.0, 8.0, 3.0]).assign(kind=list("M-M-M"))
    assert tau_within_kinds(rows) == pytest.approx((3 - 1) / (3 + 1)), "M rises, - falls"


def test_blocks_of_different_layers_are_not_ranked() -> None:
    """The kind of the later blocks has the larger values."""
    later = layers([9.0, 8.0], "down_proj").assign(block=[2, 3])
    with pytest.raises(AssertionError, match="blocks of different layers"):
        profile(pd.concat([layers([1.0, 2.0, 3.0]), later]))


@pytest.mark.parametrize(
    ("rising", "expected", "of_a_small_model"),
    [
        (0.05, REPRODUCED, NOT_MEASURABLE),
        (-0.05, CONTRADICTED, NOT_MEASURABLE),
        (0.0, UNRESOLVED, UNRESOLVED),
    ],
)
def test_the_profile_is_judged_where_the_model_is_large_enough(
    written: Path, tmp_path: Path, rising: float, expected: str, of_a_small_model: str
) -> None:
    folder = tmp_path / "tiny"
    for run in ("12b_nvfp4", "1p2b_last4"):
        shutil.copytree(written / "runs" / run, folder / "runs" / run)
    write_mechanisms(folder, rising=rising)
    table = mechanisms.data(Results(folder))
    verdict = mechanisms.claims(of_the_papers_size(table), paper_of("mechanisms"))[0]
    assert verdict.verdict == expected, verdict.reason
    assert np.sign(verdict.numbers["later"] - verdict.numbers["earlier"]) == np.sign(rising)
    assert mechanisms.claims(table, paper_of("mechanisms"))[0].verdict == of_a_small_model


def test_blocks_kept_in_bf16_are_marked(results: Results) -> None:
    table = mechanisms.data(results)
    kept = set(table.loc[(table["run"] == "12b_nvfp4") & table["in_bf16"], "block"])
    counts = results.run("12b_nvfp4").frozen["recipe"]["bf16_blocks"]
    assert len(kept) == counts["first"] + counts["last"]


def test_the_same_trend_elsewhere_is_told(results: Results) -> None:
    """In the runs of the fixture it rises in both; falling in the other one, that is said."""
    table = mechanisms.data(results)
    table.loc[(table["run"] == "1p2b_last4") & (table["block"] > 7), "in_bf16"] = True
    rising = mechanisms.claims(table, paper_of("mechanisms"))[0].reason
    assert "without the 2 blocks kept in BF16 +" in rising
    assert "at 34.3 % +" in rising
    assert "full method, has the same sign: +" in rising
    other = table["run"] == "12b_nvfp4"
    table.loc[other, "value"] = -table.loc[other, "value"]
    falling = mechanisms.claims(table, paper_of("mechanisms"))[0].reason
    assert "full method, shows no such trend: -" in falling
    table.loc[:, "value"] = -table["value"]
    assert "full method, shows no such trend: +" in mechanisms.claims(table, paper_of("mechanisms"))[0].reason
    table.loc[other & (table["fraction"] < 1), "value"] *= -1
    assert "full method, changes its sign: -" in mechanisms.claims(table, paper_of("mechanisms"))[0].reason


def test_blocks_kept_in_bf16_are_hollow_along_the_depth(results: Results) -> None:
    table = mechanisms.data(results)
    axes = mechanisms.draw(table, paper_of("mechanisms")).axes[4]
    assert axes.get_ylim()[0] == 0, "as in the other panels"
    hollow = [line for line in axes.get_lines() if line.get_label() == "_hollow"]
    for run, line in zip(mechanisms.NAMES, hollow, strict=True):
        kept = table.loc[(table["run"] == run) & table["in_bf16"], "block"].nunique()
        assert len(line.get_xdata()) == kept
