"""The mechanisms of quantisation error: their profile over the blocks, and what is judged of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from stated import of_the_papers_size, paper_of
from synthetic_results import write_mechanisms

from paper_figures.mechanisms import figure as mechanisms
from repro.analysis.results import Results
from repro.analysis.verdicts import CONTRADICTED, NOT_MEASURABLE, REPRODUCED, UNRESOLVED


def layers(values: list[float], name: str = "q_proj") -> pd.DataFrame:
    return pd.DataFrame(
        {"layer": [f"m.{i}.{name}" for i in range(len(values))], "block": range(len(values)), "value": values}
    )


def test_rank_correlation_by_hand() -> None:
    tau, z = mechanisms.rank_correlation(layers([1.0, 3.0, 2.0, 4.0]))
    assert tau == pytest.approx(4 / 6), "five pairs in order, one not"
    assert z == pytest.approx(4 / (4 * 3 * 13 / 18) ** 0.5)


def test_further_layers_of_a_block_are_no_further_observations() -> None:
    one = layers([1.0, 3.0, 2.0, 4.0])
    both = pd.concat([one, layers([5.0, 7.0, 6.0, 8.0], "down_proj")])
    assert mechanisms.rank_correlation(both) == mechanisms.rank_correlation(one)


def test_blocks_of_different_layers_are_not_ranked() -> None:
    """The kind of the later blocks has the larger values."""
    later = layers([9.0, 8.0], "down_proj").assign(block=[2, 3])
    with pytest.raises(AssertionError, match="blocks of different layers"):
        mechanisms.rank_correlation(pd.concat([layers([1.0, 2.0, 3.0]), later]))


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
    assert mechanisms.claims(table, paper_of("mechanisms"))[0].verdict == of_a_small_model


def test_blocks_kept_in_bf16_are_marked(results: Results) -> None:
    table = mechanisms.data(results)
    kept = set(table.loc[(table["run"] == "12b_nvfp4") & table["in_bf16"], "block"])
    counts = results.run("12b_nvfp4").frozen["recipe"]["bf16_blocks"]
    assert len(kept) == counts["first"] + counts["last"]
