"""The order without its tables is the frozen order, to the bit."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.cluster.order import SparseOrder, floor_sum
from repro.data.order import PhaseBlend, SampleOrder

PHASES = [
    PhaseBlend(700, {"a": 0.6, "b": 0.3, "c": 0.1}),
    PhaseBlend(900, {"a": 0.25, "c": 0.75}),
    PhaseBlend(1000, {"b": 1.0}),
]
WINDOWS = {"a": 5000, "b": 5000, "c": 90}  # c is read more than once


def test_order_is_the_one_on_record():
    numbers, windows = SparseOrder(PHASES, WINDOWS, seed=3).locate(0, 1000)
    digest = hashlib.sha256(numbers.astype("<i1").tobytes() + windows.astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "50c59e34b06993e1"


@pytest.mark.parametrize("part_windows", [None, 1, 7, 1000])
@pytest.mark.parametrize(("first", "count"), [(0, 1000), (690, 20), (899, 2), (999, 1), (0, 0)])
def test_any_stretch_is_that_of_the_definition(first, count, part_windows, monkeypatch):
    monkeypatch.setattr(SparseOrder, "part_windows", part_windows)
    order = SparseOrder(PHASES, WINDOWS, seed=3)
    expected = SampleOrder(PHASES, WINDOWS, seed=3).locate(first, count)
    for ours, theirs in zip(order.locate(first, count), expected, strict=True):
        assert np.array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 40), st.integers(1, 30), st.integers(0, 60), st.integers(-60, 60))
def test_a_sum_of_floors_is_exact(num, modulus, step, offset):
    expected = sum((step * i + offset) // modulus for i in range(num))
    assert floor_sum(num, modulus, step, offset) == expected


def test_samples_outside_the_run_are_refused():
    with pytest.raises(ValueError, match=r"samples 0\.\.999"):
        SparseOrder(PHASES, WINDOWS, seed=3).locate(999, 2)
