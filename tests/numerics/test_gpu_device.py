"""The Triton kernels on a GPU give the PyTorch reference's bits: every spec, layout, transform, size, magnitude."""

from __future__ import annotations

import logging

import pytest
import torch
from numerics_helpers import ALL_SPECS, GOLDEN_MXFP4, GOLDEN_NVFP4, spec_id

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import gpu_cases
import pairs_cases
from case_tools import assert_same_operand, finite, reference, request

from repro.numerics import (
    CopyRequest,
    QuantSpec,
    make_operand,
    make_operand_pair,
    make_operand_reference,
    seed_tensor,
    sign_vector,
)
from repro.numerics.formats import FP8_BLOCK, MXFP4, MXFP8, NVFP4
from repro.numerics.gpu import binding, passes
from repro.numerics.hadamard import SIZES

pytestmark = pytest.mark.gpu
all_specs = pytest.mark.parametrize("spec", ALL_SPECS, ids=spec_id)
both_ways = pytest.mark.parametrize("along", [0, 1])
DEVICE = "cuda"


@all_specs
@both_ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_spec_in_every_regime(spec, along, dtype):
    gpu_cases.check_spec(spec, along, dtype, DEVICE)


@all_specs
@both_ways
def test_a_transform_under_every_spec(spec, along):
    gpu_cases.check_transform(spec, along, 16, DEVICE)


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4, FP8_BLOCK], ids=lambda f: f.name)
@both_ways
@pytest.mark.parametrize("size", SIZES)
def test_every_size_of_the_transform(fmt, along, size):
    for rounding in ("rne", "sr"):
        gpu_cases.check_transform(QuantSpec(fmt, fmt.tiles_1d, rounding=rounding), along, size, DEVICE)


@all_specs
@pytest.mark.parametrize("shape", [(3, 100), (64, 1000), (512, 60), (1, 1), (1, 4096), (4096, 1)])
def test_trial_11_odd_sizes_are_padded_with_zeros(spec, shape):
    gpu_cases.check_odd_size(spec, shape[0] % 2, shape, DEVICE)


@pytest.mark.parametrize("fmt", [NVFP4, FP8_BLOCK], ids=lambda f: f.name)
@both_ways
@pytest.mark.parametrize("rounding", ["rne", "sr"])
def test_strided_input(fmt, along, rounding):
    gpu_cases.check_strides(QuantSpec(fmt, fmt.tiles_1d, rounding=rounding), along, DEVICE)


@pytest.mark.parametrize("name", GOLDEN_NVFP4 + GOLDEN_MXFP4)
def test_golden_cases(name):
    gpu_cases.check_golden(name, DEVICE)


def test_trials_of_other_implementations():
    gpu_cases.check_trials(DEVICE)


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("fmt", [NVFP4, MXFP4, MXFP8, FP8_BLOCK], ids=lambda f: f.name)
def test_non_finite_values_stay_non_finite(fmt, bad):
    for tile in fmt.tiles:
        gpu_cases.check_non_finite(fmt, tile, bad, DEVICE)


@all_specs
def test_trial_03_zeros(spec):
    gpu_cases.check_zeros(spec, DEVICE)


@pytest.mark.parametrize(
    "pair", list(gpu_cases.pairs()), ids=lambda p: spec_id(p[0].spec) + f"-H{p[1].hadamard}"
)
@pytest.mark.parametrize("shape", [(256, 1024), (128, 2080)])
def test_pair_is_two_operands(pair, shape):
    for dtype in (torch.bfloat16, torch.float32):
        gpu_cases.check_pair(*pair, DEVICE, shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    "pair",
    [pair for pair in gpu_cases.pairs() if max(r.hadamard for r in pair) <= 32],  # the tensor is 64 long
    ids=lambda p: spec_id(p[0].spec) + f"-H{p[1].hadamard}",
)
def test_pair_of_strided_input(pair):
    for dtype in (torch.bfloat16, torch.float32):
        gpu_cases.check_pair_strides(*pair, dtype, DEVICE)


def test_noise_is_that_of_random_bits_by_element_of_x():
    gpu_cases.check_noise_by_element(DEVICE)


@pytest.mark.parametrize("exponent", pairs_cases.EXPONENTS)
def test_any_amax(exponent):
    pairs_cases.check_amax(exponent, DEVICE)


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_non_finite_values_in_bf16(bad):
    pairs_cases.check_amax(0, DEVICE, bad=bad)


@pytest.mark.parametrize("stochastic", [False, True])
def test_rounding_at_every_edge(stochastic):
    for seed in range(8):
        pairs_cases.check_rounding(DEVICE, stochastic=stochastic, seed=seed)


def test_reciprocal_of_every_significand_is_correctly_rounded():
    pairs_cases.check_reciprocal(DEVICE)


@pytest.mark.parametrize("rounding", ["rne", "sr"])
@pytest.mark.parametrize("shape", [(2048, 4096), (2064, 4128)])
def test_large_tensors_are_those_of_the_reference_on_the_device(rounding, shape):
    """16 million numbers: every number's rounding, not some."""
    generator = torch.Generator(DEVICE).manual_seed(3)
    x = torch.randn(shape, generator=generator, device=DEVICE).bfloat16()
    both = pairs_cases.row_and_column(rounding)
    for ours, r in zip(make_operand_pair(x, *both), both, strict=True):
        expected = reference(x, r)
        assert torch.equal(ours.values.float().view(torch.int32), expected.values.view(torch.int32))


def test_a_seed_in_a_tensor_gives_the_bits_of_the_integer():
    gpu_cases.check_seed_tensor(DEVICE)


def test_another_default_dtype_changes_nothing():
    gpu_cases.check_default_dtype(DEVICE)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tensors_of_a_gpu_that_is_not_the_current_one(dtype):
    assert torch.cuda.current_device() == 0
    for _ in range(2):  # as compiled, and launched directly
        for first, second in gpu_cases.pairs():
            gpu_cases.check_pair(first, second, "cuda:1", dtype=dtype)


def test_a_captured_graph_draws_with_the_seeds_and_signs_of_its_replay():
    x = finite((256, 512), "bf16", torch.bfloat16)
    kind = QuantSpec(NVFP4, (1, 16), rounding="sr")
    on_device, seeds = x.to(DEVICE), torch.zeros(2, dtype=torch.int64, device=DEVICE)
    signs = torch.ones(16, device=DEVICE)
    asked = CopyRequest(kind, 1, seed=seeds[0]), CopyRequest(kind, 0, 16, signs, seeds[1])
    make_operand_pair(on_device, *asked)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours = make_operand_pair(on_device, *asked)
    for n in (2**63 + 5, 3):
        plus = sign_vector(16, kind="random", seed=n)
        seeds.copy_(seed_tensor([n, n + 1]))
        signs.copy_(plus)
        graph.replay()
        expected = CopyRequest(kind, 1, seed=n), CopyRequest(kind, 0, 16, plus, n + 1)
        for operand, r in zip(ours, expected, strict=True):
            assert_same_operand(f"seed {n}", operand, reference(x, r))


def test_make_operand_takes_the_kernels_and_says_nothing(caplog, monkeypatch):
    calls = []
    run = passes.Pass.run
    monkeypatch.setattr(passes.Pass, "run", lambda *a: (calls.append(1), run(*a))[1])
    x = torch.randn(64, 64, device=DEVICE)
    one = request(QuantSpec(NVFP4, (1, 16)), 1)
    other = request(QuantSpec(NVFP4, (1, 16)), 0, 16)
    with caplog.at_level(logging.WARNING):
        make_operand(x, one.spec, along=1)
        make_operand_pair(x, one, other)
    assert calls == [1, 1]
    assert not caplog.records


def test_later_calls_are_launched_directly_and_give_the_same():
    """The first call of a kind goes through Triton, later ones do not; other data, seeds and streams of bits."""
    for seed in (3, 2**63 + 5, 2**31):
        one = request(QuantSpec(NVFP4, (1, 16), rounding="sr"), 1, seed=seed)
        other = request(QuantSpec(NVFP4, (1, 16), rounding="sr"), 0, 16, seed=seed + 1)
        x = torch.randn(256, 512, generator=torch.Generator().manual_seed(seed % 1000)).bfloat16()
        for _ in range(2):
            ours = make_operand_pair(x.to(DEVICE), one, other)
            for operand, r in zip(ours, (one, other), strict=True):
                assert_same_operand(f"seed {seed}", operand, reference(x, r))


def test_what_the_kernels_do_not_take_is_the_references_with_one_line(caplog):
    binding._say_reference_runs.cache_clear()
    x = torch.randn(32, 32, device=DEVICE, dtype=torch.float16)
    spec = QuantSpec(NVFP4, (1, 16))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ours = make_operand(x, spec, along=1)
    assert_same_operand("float16", ours, make_operand_reference(x, spec, along=1))
    assert [record.getMessage() for record in caplog.records] == [
        "operands are quantised by the PyTorch reference (same bits, much slower): float16 input"
    ]
