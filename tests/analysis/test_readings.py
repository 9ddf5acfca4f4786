"""Smoothing, end values and lines: the numbers read off a curve."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from repro.analysis.noise import t_quantile
from repro.analysis.readings import fit_line, read_at, smooth


def points(values: list[float], text: str = "train") -> pd.DataFrame:
    fraction = np.arange(1, len(values) + 1) / len(values)
    return pd.DataFrame(
        {"fraction": fraction, "value": values, "text": text, "tokens": fraction, "quantity": "gap"}
    )


def test_smoothing_keeps_a_straight_line_and_is_silent_where_its_window_is_not_full() -> None:
    smoothed = smooth(pd.Series([1.0, 2.0, 3.0, 4.0, np.nan]), 3)
    np.testing.assert_array_equal(smoothed, [np.nan, 2.0, 3.0, np.nan, np.nan])
    line = pd.Series([1.0, np.nan, 3.0])
    pd.testing.assert_series_equal(smooth(line, 1), line)


def test_an_end_value_of_training_losses_averages_three_points_at_least() -> None:
    reading = read_at(points([9.0, 9.0, 9.0, 1.0, 2.0, 3.0]))
    assert reading is not None
    assert (reading.value, reading.points) == (2.0, 3)


def test_an_end_value_of_validation_losses_is_the_last_one() -> None:
    reading = read_at(points([9.0, 1.0, 3.0], text="validation"))
    assert reading is not None
    assert (reading.value, reading.points) == (3.0, 1)


def test_an_end_value_averages_the_last_two_per_cent() -> None:
    """Of 130 points three lie there: 127.4 is the window's beginning, or 62.4 at half of the horizon."""
    curve = points([float(number) for number in range(1, 131)], text="validation")
    for at, value, number in ((None, 129.0, 3), (0.5, 64.0, 3)):
        reading = read_at(curve, at)
        assert reading is not None
        assert (reading.value, reading.points) == (value, number)


def test_windows_of_one_width_hold_as_many_points_wherever_they_end() -> None:
    """One validation every 2 %: its neighbour lies one window away, whatever 0.8 - 0.02 is in the last bit."""
    curve = points([float(number) for number in range(1, 51)], text="validation")
    readings = [read_at(curve, at) for at in curve["fraction"]]
    assert [(reading.value, reading.points) for reading in readings] == [(n, 1) for n in range(1, 51)]


def test_a_curve_that_ends_one_of_its_steps_before_is_read_wherever_it_ends() -> None:
    curve = points([1.0] * 10, text="validation")
    for last in range(2, 10):
        assert read_at(curve.head(last), (last + 1) / 10) is not None, last


def test_a_curve_that_stops_before_has_no_value_there() -> None:
    short = points([1.0] * 10)
    short["fraction"] /= 2
    assert read_at(short, 1.0) is None
    assert read_at(short, 0.5) is not None


def test_a_curve_is_read_up_to_one_of_its_steps_behind_its_last_point() -> None:
    curve = points([1.0, 2.0, 3.0, 4.0, 5.0] + [6.0] * 5, text="validation").head(5)
    reading = read_at(curve, 0.55)
    assert reading is not None
    assert (reading.value, reading.fraction) == (5.0, 0.5)
    assert read_at(curve, 0.65) is None


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


def test_points_beyond_a_line_scatter_with_its_slope_too() -> None:
    """Residuals 1, -2, 1 at 10, 20 and 30 %: at 50 % the centre is 30 away, the spread 200."""
    line = fit_line(points([1.0, -2.0, 1.0] + [0.0] * 7), 0.1, 0.3)
    assert line is not None
    assert line.error_beyond([0.5]) == pytest.approx((6 * (1 + 1 / 3 + 30**2 / 200)) ** 0.5)
    assert line.error_beyond([0.2, 0.2]) == pytest.approx((6 * (1 / 2 + 1 / 3)) ** 0.5)


def test_a_line_drawn_on_covers_as_many_points_as_it_says() -> None:
    """Six validations before a change, one after it, on a straight line with noise."""
    rng = np.random.default_rng(20251130)
    covered = []
    for noise in rng.standard_normal((2000, 7)):
        curve = pd.DataFrame({"fraction": 0.02 * np.arange(40, 47), "value": noise - np.arange(7)})
        line = fit_line(curve, 0.8, 0.9)
        assert line is not None
        step = curve["value"].iloc[-1] - line.at(0.92)
        covered.append(abs(step) <= t_quantile(0.975, line.points - 2) * line.error_beyond([0.92]))
    assert 0.94 <= np.mean(covered) <= 0.96


def test_two_points_are_no_line() -> None:
    assert fit_line(points([1.0, 2.0]), 0.0, 1.0) is None
