"""Squared ReLU and its gradient inside the kernels on a GPU: the bits of the materialised tensor's operands."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from numerics_helpers import assert_same, spec_id

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import pairs_cases
import source_cases
from case_tools import assert_same_operand, reference

from repro.numerics import SquaredRelu, SquaredReluGradient, make_operand_pair, materialise
from repro.numerics.formats import NVFP4
from repro.numerics.gpu import binding, loads

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


@pytest.mark.parametrize(
    "pair", list(source_cases.pairs()), ids=lambda p: spec_id(p[0].spec) + f"-H{p[1].hadamard}"
)
@pytest.mark.parametrize("shape", [(256, 1024), (128, 2080)])
def test_pair_is_that_of_the_materialised_tensor(pair, shape):
    source_cases.check_pair(pair, shape, DEVICE)


@pytest.mark.parametrize("rounding", ["rne", "sr"])
@pytest.mark.parametrize("shape", [(3, 100), (64, 1000), (512, 60), (1, 16), (4096, 4)])
def test_odd_sizes(shape, rounding):
    source_cases.check_pair(source_cases.row_and_column_of(NVFP4, 0, rounding), shape, DEVICE)


@pytest.mark.parametrize("exponent", pairs_cases.EXPONENTS)
def test_any_amax(exponent):
    source_cases.check_amax(exponent, DEVICE)


def test_values_and_gradients_that_are_not_finite():
    source_cases.check_non_finite(DEVICE)


def test_strided_tensors():
    source_cases.check_strides(DEVICE)


@pytest.mark.parametrize("kind", [loads.SQUARED_RELU, loads.SQUARED_RELU_GRADIENT])
def test_every_number_two_at_once(kind):
    source_cases.check_every_number(DEVICE, kind, num_others=128)


def test_pytorch_on_the_device_gives_the_same_tensor():
    value, grad = (x.to(DEVICE) for x in source_cases.every_number(32))
    leaf = value.clone().requires_grad_()
    result = torch.nn.functional.relu(leaf).square()
    result.backward(grad)
    for ours, eager in (
        (SquaredRelu(value), result.detach()),
        (SquaredReluGradient(grad, value), leaf.grad),
    ):
        assert_same("on the device", materialise(ours).float().cpu(), eager.float().cpu())


@pytest.mark.parametrize("rounding", ["rne", "sr"])
@pytest.mark.parametrize("shape", [(2048, 4096), (2064, 4128)])
def test_large_tensors(rounding, shape):
    """16 million numbers of the sizes that a layer has."""
    generator = torch.Generator(DEVICE).manual_seed(3)
    value, grad = (torch.randn(shape, generator=generator, device=DEVICE).bfloat16() for _ in range(2))
    both = pairs_cases.row_and_column(rounding)
    for source in source_cases.sources(value, grad):
        for ours, r in zip(make_operand_pair(source, *both), both, strict=True):
            expected = reference(materialise(source), r)
            assert torch.equal(ours.values.float().view(torch.int32), expected.values.view(torch.int32))


def test_a_captured_graph_reads_what_its_tensors_hold_then():
    value, grad = source_cases.tensors((256, 512))
    held = value.to(DEVICE), grad.to(DEVICE)
    row, column = pairs_cases.row_and_column("rne")
    both = row, replace(column, signs=column.signs.to(DEVICE))  # a graph holds no copy from the host
    make_operand_pair(SquaredReluGradient(held[1], held[0]), *both)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours = make_operand_pair(SquaredReluGradient(held[1], held[0]), *both)
    for sign in (1, -1):
        held[0].copy_(sign * value)
        graph.replay()
        tensor = materialise(SquaredReluGradient(grad, sign * value))
        for operand, r in zip(ours, (row, column), strict=True):
            assert_same_operand(f"sign {sign}", operand, reference(tensor, r))


def test_the_kernels_take_it_and_say_nothing_and_otherwise_one_line(caplog):
    binding._say_materialised.cache_clear()
    value, grad = (x.to(DEVICE) for x in source_cases.tensors((64, 96)))
    both = pairs_cases.row_and_column("sr")
    with caplog.at_level(logging.WARNING):
        for source in source_cases.sources(value, grad):
            make_operand_pair(source, *both)
        assert not caplog.records
        for _ in range(2):
            make_operand_pair(SquaredReluGradient(grad.t().contiguous().t(), value), *both)
    assert [record.getMessage() for record in caplog.records] == [
        "squared ReLU in a pass of its own (same bits, slower): torch.bfloat16 of strides (1, 64) and (96, 1)"
    ]
