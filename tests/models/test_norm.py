"""RMSNorm of half-precision activations: what happens inside stays in FP32, the result is rounded once."""

from __future__ import annotations

import torch

from repro.models.norm import GatedRMSNorm, RMSNorm

SIZE, EPS = 64, 1e-5


def activations(seed: int) -> torch.Tensor:
    return torch.randn(32, SIZE, generator=torch.Generator().manual_seed(seed)).bfloat16()


def weights() -> torch.Tensor:
    """FP32 main weights that BF16 does not hold."""
    return torch.linspace(0.9, 1.1, SIZE)


def assert_rounded_once(found: torch.Tensor, exact: torch.Tensor) -> None:
    """Half a unit of BF16's last place is 2^-8 of a value's power of two; what FP32 adds is next to nothing."""
    assert found.dtype == torch.bfloat16
    error = ((found.double() - exact).abs() / torch.exp2(exact.abs().log2().floor())).max().item()
    assert error <= 2**-8 * 1.001, f"differs by {error * 2**8:.2f} times half a unit: rounded more than once"


def test_the_plain_norm_rounds_its_result_and_nothing_else() -> None:
    norm = RMSNorm(SIZE, eps=EPS)
    norm.weight.data.copy_(weights())
    x = activations(0)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt() * weights().double()
    assert_rounded_once(norm(x).detach(), exact)


def test_the_gated_norm_rounds_its_result_and_nothing_else() -> None:
    norm = GatedRMSNorm(SIZE, num_groups=4, eps=EPS)
    norm.weight.data.copy_(weights())
    x, gate = activations(1), activations(2)
    gated = (x.double() * torch.nn.functional.silu(gate.double())).unflatten(-1, (4, -1))
    normed = gated / (gated.square().mean(-1, keepdim=True) + EPS).sqrt()
    assert_rounded_once(norm(x, gate).detach(), normed.flatten(-2) * weights().double())
