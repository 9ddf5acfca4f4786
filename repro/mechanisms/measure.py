"""The quantities, each a pure function of one layer's tensors.

Letters: T tokens, K input features, N output features; x [T, K], w [N, K], g [T, N], dw = g^T x [N, K], dx = g w
[T, K]; q(.) quantises to NVFP4 as the paper does; |.| is the Frobenius norm; all values are relative unless said.

    gradient_bias     |mean over draws of q(g) - g| / |g|, and the same for the product that g enters (Section 4.4)
                      rne: a single draw says it all, the error is the same each time
                      sr: falls as 1/sqrt(draws) down to the bias; sr_floor: what unbiased draws would leave. What
                      stays above it is real: a block scale that was rounded down clips its block's amax at 6, and
                      8 random bits round down by up to 1/256 of a step more than they should
    gradient_error    root mean square over draws of |q(g) - g| / |g|: SR pays for no bias with a larger error
    wgrad_error       |q(g)^T q(x) - dw| / |dw| with the paper's operands (x RNE, g SR), with RHT or none (4.2). RHT
                      helps where small values that add up coherently share a block with an outlier; for
                      independent values it does not
    block_crest       mean over blocks of max / root mean square, of what Wgrad quantises, with RHT or none: how much
                      an outlier stands out (about 2 for normal values, 4 for one value alone)
    wgrad_quant_error |q(g)^T q(x) - dw| / |dw| for 1x16 blocks and RNE alone: the base of Appendix E.2, which names
                      the last layers as those with the largest error
    weight_mismatch   |w of Fprop - w of Dgrad| / |w| for 1x16 blocks along each GEMM's own dimension, or 16x16 (4.3)
    near_fp8_share    share of values that are their block's amax and within FP8's rounding error, 2^-4 (Section 2);
                      of the values in blocks that are not all zero

Not here: which checkpoint, which batch (capture.py), writing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from repro.mechanisms.capture import LayerTensors
from repro.numerics.formats import E4M3, MXFP4, NVFP4, BlockFormat, QuantSpec
from repro.numerics.hadamard import sign_vector, transform
from repro.numerics.operand import Operand, make_operand
from repro.numerics.random_bits import derive_seed

RNE = QuantSpec(NVFP4, NVFP4.tiles_1d)
SR = QuantSpec(NVFP4, NVFP4.tiles_1d, rounding="sr")
SQUARE = QuantSpec(NVFP4, NVFP4.tiles_2d)

# The paper's transform: 16 values, one fixed random sign vector for the whole run (Section 4.2).
HADAMARD_SIZE = 16

# Half a unit in the last place of E4M3 relative to its smallest mantissa: what one FP8 rounding can cost.
FP8_RELATIVE_ERROR = 2.0 ** -(E4M3.mantissa_bits + 1)


class Measured(NamedTuple):
    """One number: of which GEMM and tensor, what, which variant."""

    gemm: str
    tensor: str
    quantity: str
    variant: str
    value: float


@dataclass(frozen=True)
class Draws:
    """Running sums over stochastic draws of one operand: enough for its bias, its error and their noise.

    ``first`` and ``second`` are the means over the two halves of the draws: independent, so their difference shows
    the noise of the mean. ``mean_square_error`` is the mean of |draw - x|^2.
    """

    first: Tensor
    second: Tensor
    mean_square_error: float

    @property
    def mean(self) -> Tensor:
        return (self.first + self.second) / 2

    @property
    def noise(self) -> Tensor:
        """A tensor as large, in expectation, as the error of ``mean`` if the draws have no bias."""
        return (self.first - self.second) / 2


def dequantized(operand: Operand) -> Tensor:
    """The numbers that an operand stands for, float32."""
    values = operand.values.float()  # BF16 from the GPU kernels
    return values if operand.scale is None else values * operand.scale


def relative(error: Tensor, reference: Tensor) -> float:
    """|error| / |reference|; 0 for no error, so also where both are zero (a layer without gradient)."""
    size, whole = error.double().norm().item(), reference.double().norm().item()
    if not size:
        return 0.0
    return size / whole if whole else math.inf


def draw(make: Callable[[int], Tensor], reference: Tensor, *, num_draws: int) -> Draws:
    """``num_draws`` (even) stochastic versions of ``reference``; ``make(i)`` gives the i-th."""
    assert num_draws % 2 == 0, f"halves of {num_draws} draws"
    halves = [torch.zeros_like(reference), torch.zeros_like(reference)]
    squares = 0.0
    for i in range(num_draws):
        sample = make(i)
        halves[i % 2] += sample
        squares += (sample - reference).square().sum(dtype=torch.float64).item()
    return Draws(halves[0] / (num_draws // 2), halves[1] / (num_draws // 2), squares / num_draws)


def gradient_bias(tensors: LayerTensors, *, seed: int, num_draws: int) -> Iterator[Measured]:
    """Bias of the gradient operand and of the products it enters, in Dgrad (1x16 along N) and Wgrad (RHT along T).

    Only g is quantised, so that the bias is g's alone; in Wgrad both g and x are the transformed tensors.
    """
    yield from _bias(
        lambda spec, seed: make_operand(tensors.g, spec, along=1, seed=seed),
        lambda i: _seed(seed, tensors, "dgrad", i),
        tensors.g,
        gemm="dgrad",
        output="dx",
        product=lambda g: g @ tensors.w,
        num_draws=num_draws,
    )
    signs = sign_vector(HADAMARD_SIZE, kind="fixed").to(tensors.g.device)
    x = transform(tensors.x, HADAMARD_SIZE, signs, dim=0)
    yield from _bias(
        lambda spec, seed: make_operand(
            tensors.g, spec, along=0, hadamard=HADAMARD_SIZE, signs=signs, seed=seed
        ),
        lambda i: _seed(seed, tensors, "wgrad", i),
        transform(tensors.g, HADAMARD_SIZE, signs, dim=0),
        gemm="wgrad",
        output="dw",
        product=lambda g: g.t() @ x,
        num_draws=num_draws,
    )


def _bias(
    quantize: Callable[[QuantSpec, int | None], Operand],
    seed_of: Callable[[int], int],
    g: Tensor,
    *,
    gemm: str,
    output: str,
    product: Callable[[Tensor], Tensor],
    num_draws: int,
) -> Iterator[Measured]:
    """Bias and error of q(g) against ``g``, and bias of ``product(q(g))``, which is linear: means go through it."""
    nearest = dequantized(quantize(RNE, None))
    draws = draw(lambda i: dequantized(quantize(SR, seed_of(i))), g, num_draws=num_draws)
    exact = product(g)
    for variant, error in (("rne", nearest - g), ("sr", draws.mean - g), ("sr_floor", draws.noise)):
        yield Measured(gemm, "g", "gradient_bias", variant, relative(error, g))
        yield Measured(gemm, output, "gradient_bias", variant, relative(product(error), exact))
    yield Measured(gemm, "g", "gradient_error", "rne", relative(nearest - g, g))
    size = g.double().norm().item()
    yield Measured(gemm, "g", "gradient_error", "sr", draws.mean_square_error**0.5 / size if size else 0.0)


def wgrad_error(tensors: LayerTensors, *, seed: int, num_draws: int) -> Iterator[Measured]:
    """Error of dw with the paper's operands, with and without RHT, and with the base's (RNE, no RHT)."""
    exact = tensors.g.t() @ tensors.x
    signs = sign_vector(HADAMARD_SIZE, kind="fixed").to(tensors.g.device)
    for variant, size in (("rht", HADAMARD_SIZE), ("none", 0)):
        kind = {"along": 0, "hadamard": size, "signs": signs if size else None}
        x = dequantized(make_operand(tensors.x, RNE, **kind))
        squares = []
        for i in range(num_draws):
            g = make_operand(tensors.g, SR, **kind, seed=_seed(seed, tensors, f"error-{variant}", i))
            squares.append(relative(dequantized(g).t() @ x - exact, exact) ** 2)
        yield Measured("wgrad", "dw", "wgrad_error", variant, (sum(squares) / len(squares)) ** 0.5)
    x, g = (dequantized(make_operand(operand, RNE, along=0)) for operand in (tensors.x, tensors.g))
    yield Measured("wgrad", "dw", "wgrad_quant_error", "base", relative(g.t() @ x - exact, exact))


def block_crest(tensors: LayerTensors) -> Iterator[Measured]:
    """How far the largest of 16 values along T stands out of its block, in x and g, with and without RHT."""
    signs = sign_vector(HADAMARD_SIZE, kind="fixed").to(tensors.g.device)
    for name, tensor in (("x", tensors.x), ("g", tensors.g)):
        for variant, values in (("rht", transform(tensor, HADAMARD_SIZE, signs, dim=0)), ("none", tensor)):
            yield Measured("wgrad", name, "block_crest", variant, mean_crest(values))


def mean_crest(x: Tensor) -> float:
    """Mean of max / root mean square over the blocks of 16 along the rows of x [T, *]; 0 for an all-zero x.

    T is a multiple of 16. All-zero blocks do not count.
    """
    blocks = x.t().reshape(-1, NVFP4.tiles_1d[1]).double()
    size = blocks.square().mean(dim=1).sqrt()
    some = size > 0
    return (blocks.abs().amax(dim=1)[some] / size[some]).mean().item() if some.any() else 0.0


def weight_mismatch(tensors: LayerTensors) -> Iterator[Measured]:
    """Distance between the weight that Fprop saw (blocks along K) and the one that Dgrad saw (along N)."""
    for variant, spec in (("1d", RNE), ("2d", SQUARE)):
        fprop, dgrad = (dequantized(make_operand(tensors.w, spec, along=along)) for along in (1, 0))
        yield Measured("dgrad", "w", "weight_mismatch", variant, relative(fprop - dgrad, tensors.w))


def near_fp8_share(tensors: LayerTensors) -> Iterator[Measured]:
    """Share of near-FP8 values of x and w (in Fprop) and g (in Dgrad), NVFP4 beside MXFP4."""
    for gemm, name, tensor in (
        ("fprop", "x", tensors.x),
        ("fprop", "w", tensors.w),
        ("dgrad", "g", tensors.g),
    ):
        for form in (NVFP4, MXFP4):
            yield Measured(gemm, name, "near_fp8_share", form.name, share_near_fp8(tensor, form))


def share_near_fp8(x: Tensor, form: BlockFormat) -> float:
    """Share of the values of x [M, N], with blocks along N, that are a block's amax kept to FP8's precision.

    NVFP4: at least 1/16 wherever the block's scale is a normal E4M3 number. An all-zero x has no such value: 0.
    """
    rounded = dequantized(make_operand(x, QuantSpec(form, form.tiles_1d), along=1))
    length = form.tiles_1d[1]
    padding = -x.shape[1] % length
    x, rounded = (torch.nn.functional.pad(t.abs(), (0, padding)).view(-1, length) for t in (x, rounded))
    amax = x.amax(dim=1, keepdim=True)
    near = (x == amax) & (amax > 0) & ((rounded - x).abs() <= FP8_RELATIVE_ERROR * x)
    counted = int((amax > 0).sum()) * length
    return int(near.sum()) / counted if counted else 0.0


def measure(tensors: LayerTensors, *, seed: int, num_draws: int) -> Iterator[Measured]:
    """All quantities of one layer. ``num_draws`` (even) is for the bias; errors need a quarter of them."""
    yield from gradient_bias(tensors, seed=seed, num_draws=num_draws)
    yield from wgrad_error(tensors, seed=seed, num_draws=max(2, num_draws // 4))
    yield from block_crest(tensors)
    yield from weight_mismatch(tensors)
    yield from near_fp8_share(tensors)


def _seed(seed: int, tensors: LayerTensors, purpose: str, draw: int) -> int:
    return derive_seed(seed, "mechanisms", tensors.layer, purpose, draw)
