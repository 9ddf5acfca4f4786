"""The sum of one process: in the order of the micro batches, a missing gradient as zero, anew each step."""

import torch
from torch import nn

from repro.portable.gradient_sum import GradientSum
from repro.portable.parallel import Ranks


def test_gradients_are_added_in_order_and_a_missing_one_is_zero():
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1, 3))]
    sums = GradientSum(parameters, Ranks())
    big, small = torch.full((2,), 2.0**24), torch.ones(2)
    for _ in range(2):  # nothing is left of the step before
        sums.end_round([big, None])
        sums.end_round([small, torch.ones(1, 3)])
        sums.end_round([-big, torch.ones(1, 3)])
        sums.finish()
        assert parameters[0].grad.tolist() == [0.0, 0.0], "(2^24 + 1) - 2^24 in FP32"
        assert parameters[1].grad.tolist() == [[2.0, 2.0, 2.0]]
    sums.end_round([None, torch.ones(1, 3)])
    sums.finish()
    assert parameters[0].grad.tolist() == [0.0, 0.0]


def test_the_gradients_given_are_left_alone():
    """Those of a replayed graph lie in memory that the next replay writes."""
    parameter = nn.Parameter(torch.zeros(2))
    sums = GradientSum([parameter], Ranks())
    first = torch.ones(2)
    sums.end_round([first])
    sums.end_round([torch.ones(2)])
    sums.finish()
    assert first.tolist() == [1.0, 1.0]
    assert parameter.grad.tolist() == [2.0, 2.0]
