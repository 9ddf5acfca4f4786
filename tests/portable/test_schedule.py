"""Learning rate: warm-up, stable, decay."""

import itertools
import math

import pytest

from repro.portable.schedule import learning_rate

SCHEDULE = {
    "learning_rate_max": 1e-3,
    "learning_rate_min": 1e-5,
    "batch_sequences": 4,
    "sequence_length_tokens": 25,
    "warmup_tokens": 1_000,
    "decay_start_tokens": 8_000,
    "horizon_tokens": 10_000,
    "decay_shape": "linear",
}


def test_first_step_is_not_zero_and_warm_up_is_linear():
    assert learning_rate(0, SCHEDULE) == pytest.approx(1e-4)
    assert learning_rate(400, SCHEDULE) == pytest.approx(5e-4)
    assert learning_rate(900, SCHEDULE) == pytest.approx(1e-3)


def test_stable_until_decay_starts():
    assert {learning_rate(tokens, SCHEDULE) for tokens in range(900, 7_901, 100)} == {1e-3}


@pytest.mark.parametrize("shape", ["linear", "cosine", "minus_sqrt"])
def test_decay_falls_at_every_step_and_ends_at_the_minimum(shape):
    rates = [
        learning_rate(tokens, {**SCHEDULE, "decay_shape": shape}) for tokens in range(7_900, 10_000, 100)
    ]
    assert all(later < earlier for earlier, later in itertools.pairwise(rates)), rates
    assert rates[-1] == pytest.approx(1e-5)


def test_linear_decay_at_its_middle():
    assert learning_rate(8_900, SCHEDULE) == pytest.approx((1e-3 + 1e-5) / 2)


@pytest.mark.parametrize(
    ("shape", "remaining"),
    [("linear", 0.75), ("cosine", (1 + math.cos(math.pi / 4)) / 2), ("minus_sqrt", 0.5)],
)
def test_each_shape_has_its_own_way_down(shape, remaining):
    """After a quarter of the decay; they start and end alike."""
    rate = learning_rate(8_400, {**SCHEDULE, "decay_shape": shape})
    left = (rate - 1e-5) / (1e-3 - 1e-5)
    assert left == pytest.approx(remaining), f"{shape}: {left:.4f} of the way is left, not {remaining:.4f}"


def test_unknown_shape_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r'"expo".*linear, cosine, minus_sqrt'):
        learning_rate(9_000, {**SCHEDULE, "decay_shape": "expo"})
