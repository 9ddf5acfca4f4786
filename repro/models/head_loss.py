"""Output head and cross-entropy in one, for BF16 activations over an FP32 main weight.

    loss = mean over tokens of logsumexp(h w^T) - (h w^T)[target]

Section 4.1 of arXiv 2509.25149 keeps the output head out of FP4: its products take BF16 operands. Logits stay in the
FP32 of the accumulator, softmax and loss are FP32, the gradient of the logits is rounded to BF16 once for its two
products, the gradient of the weight is FP32. The gradients are made in the forward pass, chunk by chunk, so that
logits never exist for all tokens and are not made twice.

Shapes: T tokens, H hidden, V vocabulary. Not here: FP32 or pure BF16 models (loss.py).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repro.models.fragments import fragment, is_fusing

log = logging.getLogger(__name__)

# Logits of one chunk: 1 GiB in FP32.
_CHUNK_VALUES = 1 << 28


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor, *, chunk_tokens: int | None = None) -> Tensor:
    """hidden [T, H] bfloat16, weight [V, H] float32, targets [T] int64 -> FP32 scalar, nats, with gradients.

    chunk_tokens: tokens whose logits exist at once; by default what 1 GiB holds.
    """
    chunk = chunk_tokens or max(1, _CHUNK_VALUES // weight.shape[0])
    if torch.is_grad_enabled():
        return _HeadLoss.apply(hidden, weight, targets, chunk)
    w = weight.to(hidden.dtype).t()
    parts = zip(hidden.split(chunk), targets.split(chunk), strict=True)
    sums = [torch.nn.functional.cross_entropy(_product(h, w), target, reduction="sum") for h, target in parts]
    return torch.stack(sums).sum() / len(targets)


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        w = weight.to(hidden.dtype)
        dh = torch.empty(hidden.shape, dtype=torch.float32, device=hidden.device)
        dw = torch.zeros_like(weight)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for h, target, part in zip(hidden.split(chunk), targets.split(chunk), dh.split(chunk), strict=True):
            logits = _product(h, w.t())
            loss, dlogits = _loss_and_gradient(logits, target)
            total += loss
            part.copy_(_product(dlogits, w))
            dw += _product(dlogits.t(), h)
        ctx.save_for_backward(dh, dw)
        ctx.num_tokens, ctx.dtype = len(targets), hidden.dtype
        return total / len(targets)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dh, dw = ctx.saved_tensors
        share = grad / ctx.num_tokens
        return (dh * share).to(ctx.dtype), dw * share, None, None


def _loss_and_gradient(logits_TV: Tensor, target_T: Tensor) -> tuple[Tensor, Tensor]:
    """Summed loss (FP32) and its gradient with respect to the logits (BF16 [T, V])."""
    kernel = _kernel(logits_TV.shape[1]) if logits_TV.is_cuda and is_fusing() else None
    if kernel is not None:
        losses, gradient = kernel(logits_TV, target_T)
        return losses.sum(), gradient
    with torch.enable_grad():  # a fragment is compiled where gradients are on; these tensors have none
        return _loss_and_gradient_in_pytorch(logits_TV, target_T)


@functools.cache
def _kernel(num_words: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """The Triton kernel, or None where it cannot run (a compiled fragment runs instead)."""
    try:
        from repro.models.head_kernel import MAX_WORDS, losses_and_gradients
    except ImportError as error:
        log.info("loss without its Triton kernel (%s)", error)
        return None
    return losses_and_gradients if num_words <= MAX_WORDS else None


@fragment
def _loss_and_gradient_in_pytorch(logits_TV: Tensor, target_T: Tensor) -> tuple[Tensor, Tensor]:
    normaliser = logits_TV.logsumexp(-1, keepdim=True)
    is_target = torch.arange(logits_TV.shape[1], device=logits_TV.device) == target_T[:, None]
    gradient = (logits_TV - normaliser).exp() - is_target.to(logits_TV.dtype)
    loss = normaliser.sum() - torch.where(is_target, logits_TV, 0.0).sum()
    return loss, gradient.to(torch.bfloat16)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a [m, k] b [k, n] in BF16, accumulated and returned in FP32."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.mm(a.float(), b.float())
