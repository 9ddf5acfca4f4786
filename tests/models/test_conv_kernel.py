"""The Triton kernels of the convolution against the PyTorch text: on a GPU, and through Triton's interpreter."""

from __future__ import annotations

import re

import pytest
import torch
from interpreter import needs_triton, printed

from repro.models.mamba2 import _silu_of_conv

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def check(device: str, dtype: torch.dtype, *, num_tokens: int, channels: int) -> None:
    """Output and the three gradients of a strided input, against FP64 on the CPU."""
    from repro.models.conv_kernel import silu_of_conv

    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    wide = normal(2, num_tokens, channels + 7).to(dtype)
    weight, bias, grad = normal(channels, 1, 4), normal(channels), normal(2, num_tokens, channels).to(dtype)

    def run(function, place, work):
        x, w, b = (t.to(place, work).requires_grad_() for t in (wide, weight, bias))
        y = function(x[..., 3 : channels + 3], w if work == torch.float64 else w.float(), b)
        return y, *torch.autograd.grad(y, (x, w, b), grad.to(place, work))

    def run_kernel():
        x = wide.to(device).requires_grad_()
        w, b = (t.to(device).requires_grad_() for t in (weight, bias))
        y = silu_of_conv(x[..., 3 : channels + 3], w, b)
        return y, *torch.autograd.grad(y, (x, w, b), grad.to(device))

    expected = run(_silu_of_conv, "cpu", torch.float64)
    found, again = run_kernel(), run_kernel()
    tolerance = 2**-8 if dtype == torch.bfloat16 else 1e-5
    for name, exact, ours, repeated in zip(("y", "dx", "dw", "db"), expected, found, again, strict=True):
        error = (ours.cpu().double() - exact).norm() / exact.norm()
        assert error < tolerance, f"{name} is off by {error:.1e} ({dtype}, {num_tokens} tokens)"
        assert torch.equal(ours, repeated), f"{name} differs from call to call"


@pytest.mark.gpu
@needs_gpu
@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "channels"), [(1, 5), (130, 200), (1024, 384)])
def test_the_kernel_on_a_gpu(dtype, num_tokens, channels):
    check("cuda", dtype, num_tokens=num_tokens, channels=channels)


@needs_triton
def test_a_compiled_kernel_keeps_its_loop_variables_apart():
    """Triton 3.6 merges those that start from one value, which the interpreter does not: d1 to d3 must stay three."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from repro.models.conv_kernel import _backward

    pointers = {
        "x": "*bf16",
        "grad": "*bf16",
        "dx": "*bf16",
        "weight": "*fp32",
        "bias": "*fp32",
        "partials": "*fp32",
    }
    constants = {"TOKENS": 128, "CHANNELS": 128}
    signature = {
        name: "constexpr" if name in constants else pointers.get(name, "i32") for name in _backward.arg_names
    }
    compiled = triton.compile(ASTSource(_backward, signature, constants), target=GPUTarget("cuda", 90, 32))
    (loop,) = re.findall(r"scf\.for .* iter_args\((.*?)\) ->", compiled.asm["ttgir"])
    assert loop.count("=") == 11, f"3 gradients, 3 inputs, 4 weights and a bias are carried along: {loop}"


@needs_triton
def test_the_kernel_in_the_interpreter():
    assert printed(__file__).split() == ["passed"] * 3


if __name__ == "__main__":
    for dtype, num_tokens, channels in (
        (torch.float32, 1, 5),
        (torch.float32, 130, 5),
        (torch.bfloat16, 37, 130),
    ):
        check("cpu", dtype, num_tokens=num_tokens, channels=channels)
        print("passed")
