"""Divergence: sustained rises count, spikes that come back do not, non-finite values count at once."""

import json

import pytest

from repro.portable.divergence import DivergenceWatch

SECTION = {"window_steps": 5, "rise_nats": 2.0}


def first_reason(losses, watch=None):
    watch = watch or DivergenceWatch(SECTION)
    for step, loss in enumerate(losses):
        if reason := watch.reason(loss, 1.0, 0):
            return step, reason
    return None


def test_a_falling_loss_is_fine():
    assert first_reason([7.0 - 0.1 * step for step in range(50)]) is None


def test_a_spike_that_comes_back_is_fine():
    assert first_reason([2.0] * 10 + [6.0, 5.0] + [2.0] * 10) is None


def test_a_lasting_rise_is_divergence_and_says_so():
    step, reason = first_reason([2.0] * 10 + [6.0] * 10)
    assert step == 12, "three of five at 6.0 lift the mean by more than 2"
    assert "mean loss of the last 5 steps 4.400, more than 2.0 above the lowest before (2.000)" in reason


def test_a_rise_by_the_limit_itself_is_no_divergence():
    section = {"window_steps": 1, "rise_nats": 2.0}
    assert first_reason([1.0, 3.0], DivergenceWatch(section)) is None
    assert first_reason([1.0, 3.0625], DivergenceWatch(section)) is not None


@pytest.mark.parametrize("values", [(float("nan"), 1.0, 0), (2.0, float("inf"), 0), (2.0, 1.0, 3)])
def test_non_finite_values_count_at_once(values):
    assert DivergenceWatch(SECTION).reason(*values)


def test_the_state_makes_a_resumed_watch_decide_alike():
    losses = [2.0] * 10 + [6.0] * 10
    for cut in range(1, 12):
        watch = DivergenceWatch(SECTION)
        assert first_reason(losses[:cut], watch) is None
        resumed = DivergenceWatch(SECTION, json.loads(json.dumps(watch.state())))
        assert cut + first_reason(losses[cut:], resumed)[0] == 12
