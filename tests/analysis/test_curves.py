"""Tidy curves: what rows there are, smoothing, and the numbers read off a curve."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_results import named_gap

from repro.analysis.curves import MAX_POINTS, curve_table, fit_line, read_at, select, smooth
from repro.analysis.curves import _thin as thin
from repro.analysis.results import Results


def points(values: list[float], text: str = "train") -> pd.DataFrame:
    fraction = np.arange(1, len(values) + 1) / len(values)
    return pd.DataFrame(
        {"fraction": fraction, "value": values, "text": text, "tokens": fraction, "quantity": "gap"}
    )


def test_the_gap_that_was_put_in_comes_out(results: Results) -> None:
    table = curve_table(results, ["1p2b_last4_2d"], baseline="1p2b_bf16", text="validation")
    gap = select(table, "1p2b_last4_2d", "gap").iloc[-1]
    loss = table[table["quantity"] == "loss"].groupby("run")["value"].last()
    assert gap["fraction"] == 1.0
    assert gap["value"] == pytest.approx(
        100 * (loss["1p2b_bf16"] - loss["1p2b_last4_2d"]) / loss["1p2b_bf16"]
    )
    assert gap["value"] == pytest.approx(-named_gap("1p2b_last4_2d", 1.0), abs=0.5), "noise is 0.1 % a run"


def test_a_fork_contributes_its_own_part_only(results: Results) -> None:
    table = curve_table(results, ["12b_without_sr"], baseline="12b_fp8", text="train")
    fork = select(table, "12b_without_sr", "gap")
    assert fork["fraction"].min() > 0.343
    assert fork["fraction"].max() < 0.40


def test_replicas_are_paired_with_the_baseline_of_their_seed(results: Results) -> None:
    table = curve_table(results, ["12b_nvfp4"], baseline="12b_fp8", text="validation")
    replica = table[table["run"] == "12b_nvfp4_seed2"]
    assert set(replica["role"]) == {"replica"}
    assert replica["paired"].all()
    last = table[(table["quantity"] == "loss")].groupby("run")["value"].last()
    expected = 100 * (last["12b_fp8_seed2"] - last["12b_nvfp4_seed2"]) / last["12b_fp8_seed2"]
    assert select(table, "12b_nvfp4_seed2", "gap")["value"].iloc[-1] == pytest.approx(expected)


def test_losses_of_another_horizon_need_no_common_tokens_and_gaps_do(
    results: Results, tmp_path: Path
) -> None:
    """A longer run validates as often in its own horizon: at the proxy tier never where its baseline does."""
    baseline, longer = "8b_bf16", "8b_mxfp4_1p25x"
    for run in (baseline, longer):
        shutil.copytree(results.folder / "runs" / run, tmp_path / "tiny" / "runs" / run)
    common = set(results.run(baseline).curve("validation")["tokens"])
    path = tmp_path / "tiny" / "runs" / longer / "0" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [line for line in lines if line["kind"] != "validation" or line["tokens"] not in common]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    apart = Results(tmp_path / "tiny")
    table = curve_table(apart, [longer], baseline=baseline, text="validation", quantities=("loss",))
    assert (
        select(table, longer, "loss")["value"].iloc[-1]
        == apart.run(longer).curve("validation")["loss"].iloc[-1]
    )
    with pytest.raises(ValueError, match="share no token count"):
        curve_table(apart, [longer], baseline=baseline, text="validation")


def test_every_row_carries_its_provenance(results: Results) -> None:
    table = curve_table(results, ["12b_nvfp4"], baseline="12b_fp8", text="validation")
    for column in ("tier", "run_hash", "git_commit", "device", "seed", "torch", "seconds", "num_parameters"):
        assert table[column].notna().all(), f"{column} is missing in some rows"


def test_a_run_that_diverged_early_keeps_one_row_for_its_end(results: Results) -> None:
    table = curve_table(results, ["1p2b_base_all"], baseline="1p2b_bf16", text="validation")
    rows = table[table["run"] == "1p2b_base_all"]
    assert sorted(rows["quantity"]) == ["gap", "loss"]
    assert rows["value"].isna().all()
    assert rows["status"].eq("diverged").all()


def test_smoothing_keeps_a_straight_line_and_is_silent_where_its_window_is_not_full() -> None:
    smoothed = smooth(pd.Series([1.0, 2.0, 3.0, 4.0, np.nan]), 3)
    np.testing.assert_array_equal(smoothed, [np.nan, 2.0, 3.0, np.nan, np.nan])
    line = pd.Series([1.0, np.nan, 3.0])
    pd.testing.assert_series_equal(smooth(line, 1), line)


def test_thinning_keeps_the_mean_and_the_span() -> None:
    curve = points(list(np.linspace(0.0, 1.0, 3 * MAX_POINTS)))
    thinned = thin(curve)
    assert len(thinned) == MAX_POINTS
    assert thinned["value"].mean() == pytest.approx(curve["value"].mean())
    assert len(thin(points([1.0, 2.0]))) == 2


def test_an_end_value_of_training_losses_averages_three_points_at_least() -> None:
    reading = read_at(points([9.0, 9.0, 9.0, 1.0, 2.0, 3.0]))
    assert reading is not None
    assert (reading.value, reading.points) == (2.0, 3)


def test_an_end_value_of_validation_losses_is_the_last_one() -> None:
    reading = read_at(points([9.0, 1.0, 3.0], text="validation"))
    assert reading is not None
    assert (reading.value, reading.points) == (3.0, 1)


def test_a_curve_that_stops_before_has_no_value_there() -> None:
    short = points([1.0] * 10)
    short["fraction"] /= 2
    assert read_at(short, 1.0) is None
    assert read_at(short, 0.5) is not None


def test_a_curve_that_ends_in_nan_has_no_end_value() -> None:
    assert read_at(points([1.0, 1.0, 1.0, float("nan")])) is None


def test_a_line_through_a_straight_curve_has_no_error() -> None:
    line = fit_line(points([10.0 - i for i in range(1, 11)]), 0.2, 0.8)
    assert line is not None
    assert line.slope == pytest.approx(-0.1), "per 1 % of the horizon"
    assert line.slope_error == pytest.approx(0.0, abs=1e-12)
    assert (line.points, line.at(1.0)) == (7, pytest.approx(0.0))


def test_a_line_knows_its_error() -> None:
    """Residuals 1, -2, 1 around a flat line: sd sqrt(6 / 1), spread of x 2 * 10**2."""
    line = fit_line(points([1.0, -2.0, 1.0] + [0.0] * 7), 0.1, 0.3)
    assert line is not None
    assert line.residual_sd == pytest.approx(6**0.5)
    assert line.slope_error == pytest.approx((6 / 200) ** 0.5)


def test_two_points_are_no_line() -> None:
    assert fit_line(points([1.0, 2.0]), 0.0, 1.0) is None
