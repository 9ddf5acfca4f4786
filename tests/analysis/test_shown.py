"""What of a curve is drawn: how wide its running mean is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from repro.analysis.shown import smoothing_points


@pytest.mark.parametrize(
    ("text", "number", "span", "points"),
    [
        ("train", 1000, (0.0, 1.0), 21),
        ("train", 1000, (0.34, 0.40), 1),
        ("train", 1, (0.0, 1.0), 1),
        ("validation", 1000, (0.0, 1.0), 1),
    ],
)
def test_training_losses_are_smoothed_over_two_per_cent_of_what_is_drawn_and_validation_losses_never(
    text: str, number: int, span: tuple[float, float], points: int
) -> None:
    rows = pd.DataFrame({"fraction": np.arange(1, number + 1) / number, "text": text, "replica": 1})
    assert smoothing_points(rows, span) == points
