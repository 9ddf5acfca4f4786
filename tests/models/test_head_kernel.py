"""The Triton kernel of the loss against float64: on a GPU, and through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from interpreter import needs_triton, printed

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def check(device: str, *, num_tokens: int, num_words: int) -> None:
    from repro.models.head_kernel import losses_and_gradients

    generator = torch.Generator().manual_seed(num_words)
    logits = 8 * torch.randn(num_tokens, num_words, generator=generator)
    targets = torch.randint(0, num_words, (num_tokens,), generator=generator)
    targets[0], targets[-1] = 0, num_words - 1
    wide = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(wide, targets, reduction="none")
    (gradient,) = torch.autograd.grad(expected.sum(), wide)
    found, found_gradient = (t.cpu() for t in losses_and_gradients(logits.to(device), targets.to(device)))
    torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    # Rounded once to BF16 (the interpreter cuts off instead), from FP32 values that are right to some units of 2^-23.
    rounding = 2**-8 if device == "cuda" else 2**-7
    torch.testing.assert_close(found_gradient.double(), gradient, rtol=rounding, atol=2**-20)
    assert found_gradient.dtype == torch.bfloat16


@pytest.mark.gpu
@needs_gpu
@needs_triton
@pytest.mark.parametrize("num_words", [5, 1000, 32768, 65536])
def test_the_kernel_on_a_gpu(num_words):
    check("cuda", num_tokens=70, num_words=num_words)


@needs_triton
def test_the_kernel_in_the_interpreter():
    assert printed(__file__).split() == ["passed"] * 3


if __name__ == "__main__":
    for num_words in (5, 1000, 4096):
        check("cpu", num_tokens=7, num_words=num_words)
        print("passed")
