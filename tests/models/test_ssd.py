"""The chunked scan against the recurrence that defines it, in float64 (its rounding is 1e-16, any slip is larger)."""

import pytest
import torch
from torch.nn.functional import softplus

from repro.models.ssd import chunked_scan, ssd_scan

HEADS, HEAD_DIM, GROUPS, STATE = 4, 5, 2, 3


def scan_of_projection(x, dt, A, B, C, **others):
    """`ssd_scan` from x, B and C apart."""
    xBC = torch.cat([t.flatten(2) for t in (x, B, C)], dim=-1)
    return ssd_scan(xBC, dt, A, num_groups=B.shape[2], state_size=B.shape[3], **others)


def recurrence(x, dt, A, B, C, *, D, dt_bias):
    """Token by token: state = exp(dt A) state + dt B x^T; y = C state + D x; head h reads group h // 2."""
    group_of_head = torch.arange(x.shape[2]) // (x.shape[2] // B.shape[2])
    state = x.new_zeros(x.shape[0], x.shape[2], B.shape[3], x.shape[3])  # [batch, heads, state, head dim]
    rows = []
    for t in range(x.shape[1]):
        step = softplus(dt[:, t] + dt_bias)[..., None, None]
        B_t, C_t = B[:, t, group_of_head, :, None], C[:, t, group_of_head, None, :]
        state = torch.exp(step * A[:, None, None]) * state + step * B_t * x[:, t, :, None, :]
        rows.append((C_t @ state).squeeze(-2) + D[:, None] * x[:, t])
    return torch.stack(rows, dim=1)


def inputs(num_tokens, *, dtype=torch.float64, dt_bias=-1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    return {
        "x": normal(2, num_tokens, HEADS, HEAD_DIM),
        "dt": normal(2, num_tokens, HEADS),
        "A": (-normal(HEADS).detach().exp() * 4).requires_grad_(),
        "B": normal(2, num_tokens, GROUPS, STATE),
        "C": normal(2, num_tokens, GROUPS, STATE),
        "D": normal(HEADS),
        "dt_bias": (normal(HEADS).detach() + dt_bias).requires_grad_(),
    }


def output_and_gradients(scan, tensors, **options):
    y = scan(**tensors, **options)
    weight = torch.linspace(-1.0, 2.0, y.numel(), dtype=y.dtype).view_as(y)
    gradients = torch.autograd.grad((y * weight).sum(), list(tensors.values()))
    return {"y": y.detach()} | dict(zip(tensors, gradients, strict=True))


def assert_equal(found, expected, tolerance):
    for name, value in expected.items():
        difference = (found[name] - value).abs().max().item()
        scale = value.abs().max().item()
        assert difference <= tolerance * scale + 1e-30, f"{name}: differs by {difference:.3g} of {scale:.3g}"


@pytest.mark.parametrize("num_tokens", [1, 7, 8, 16, 24, 29])
@pytest.mark.parametrize("chunk_size", [1, 8, 64])
def test_outputs_and_gradients_equal_the_recurrence_for_every_chunk_and_length(num_tokens, chunk_size):
    tensors = inputs(num_tokens)
    expected = output_and_gradients(recurrence, tensors)
    found = output_and_gradients(chunked_scan, tensors, chunk_size=chunk_size)
    assert_equal(found, expected, tolerance=1e-12)


@pytest.mark.parametrize("dt_bias", [-80.0, 40.0], ids=["dt almost 0", "state forgotten at once"])
def test_extreme_step_sizes_give_finite_gradients(dt_bias):
    tensors = inputs(24, dt_bias=dt_bias)
    expected = output_and_gradients(recurrence, tensors)
    found = output_and_gradients(chunked_scan, tensors, chunk_size=8)
    for name, value in found.items():
        assert value.isfinite().all(), f"{name} is not finite"
    assert_equal(found, expected, tolerance=1e-12)


def test_single_precision_differs_from_the_recurrence_by_rounding_only():
    # Sums of 24 terms of size 1 with exponents up to some tens: a few hundred roundings of 6e-8 at most.
    tensors = inputs(24, dtype=torch.float32)
    exact = {name: t.detach().double().requires_grad_() for name, t in tensors.items()}
    expected = output_and_gradients(recurrence, exact)
    found = output_and_gradients(chunked_scan, tensors, chunk_size=8)
    assert_equal(found, expected, tolerance=2e-5)


def test_half_precision_inputs_are_computed_in_single_precision():
    tensors = {name: t.detach().bfloat16() for name, t in inputs(24).items()}
    y = chunked_scan(**tensors, chunk_size=8)
    assert y.dtype == torch.bfloat16
    single = chunked_scan(**{name: t.float() for name, t in tensors.items()}, chunk_size=8)
    assert torch.equal(y, single.bfloat16()), "the result is not the rounded FP32 result"


def test_on_a_cpu_the_pytorch_path_runs_and_says_so_once(caplog):
    from repro.models import ssd

    ssd._say_once.cache_clear()
    tensors = inputs(9)
    with caplog.at_level("INFO", logger="repro.models.ssd"):
        first = scan_of_projection(**tensors, chunk_size=8)
        scan_of_projection(**tensors, chunk_size=8)
    assert torch.equal(first, chunked_scan(**tensors, chunk_size=8))
    assert [r.getMessage() for r in caplog.records] == ["Mamba-2 scan: PyTorch, chunks of 8 tokens"]
