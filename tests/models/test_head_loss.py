"""Head and loss in one for BF16 activations: the plain loss within the rounding of its BF16 operands."""

import pytest
import torch
from torch.nn import functional

from repro.models.head_loss import head_loss

TOKENS, HIDDEN, VOCAB = 50, 32, 96


def inputs():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16().requires_grad_()
    weight = (0.3 * torch.randn(VOCAB, HIDDEN, generator=generator)).requires_grad_()
    return hidden, weight, torch.randint(0, VOCAB, (TOKENS,), generator=generator)


def plain(hidden, weight, targets):
    """In float64 on the same BF16 values; the straight-through gradient of the weight's own rounding."""
    h, w = (tensor.detach().bfloat16().double().requires_grad_() for tensor in (hidden, weight))
    loss = functional.cross_entropy(h @ w.t(), targets)
    return loss, *torch.autograd.grad(loss, (h, w))


@pytest.mark.parametrize("chunk", [1, 7, 50, None])
def test_value_and_gradients_are_the_plain_ones(chunk):
    hidden, weight, targets = inputs()
    loss = head_loss(hidden, weight, targets, chunk_tokens=chunk)
    dh, dw = torch.autograd.grad(loss * 3.0, (hidden, weight))
    expected, expected_dh, expected_dw = plain(hidden, weight, targets)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert dh.dtype == torch.bfloat16
    assert dw.dtype == torch.float32
    # The gradient of the logits is rounded to BF16 (2^-9 relative) before its products.
    for name, found, exact in (("hidden", dh, 3 * expected_dh), ("weight", dw, 3 * expected_dw)):
        error = (found.double() - exact).norm() / exact.norm()
        assert error < 2**-8, f"gradient of {name} is off by {error:.2e}"


def test_without_gradients_the_value_is_the_same():
    hidden, weight, targets = inputs()
    training = head_loss(hidden, weight, targets)
    with torch.no_grad():
        evaluated = head_loss(hidden, weight, targets, chunk_tokens=9)
    assert not evaluated.requires_grad
    assert evaluated.item() == pytest.approx(training.item(), rel=1e-6)
