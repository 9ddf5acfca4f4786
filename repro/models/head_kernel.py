"""Cross-entropy of a chunk of logits and its gradient on a GPU, in one Triton kernel that reads the logits once.

    loss_t = log(sum_v exp(l_tv)) - l_t,target        gradient_tv = exp(l_tv) / sum_v exp(l_tv) - [v = target]

A row of logits stays in the registers of one program, so 4 bytes a logit are read and 2 are written; a compiled
stretch reads them three times. Sums are FP32, in an order that the size of the vocabulary fixes.

Shapes: T tokens, V vocabulary of at most `MAX_WORDS`. Not here: the products around it (head_loss.py).
"""

# ruff: noqa: ANN001, ANN202
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: A row must fit the registers of one program.
MAX_WORDS = 1 << 16


@triton.jit
def _loss_kernel(logits, targets, losses, gradients, num_words, WORDS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * num_words
    word = tl.arange(0, WORDS)
    present = word < num_words
    values = tl.load(logits + word, mask=present, other=float("-inf"))
    target = tl.load(targets + row)
    peak = tl.max(values, axis=0)
    weights = tl.exp(values - peak)
    total = tl.sum(weights, axis=0)
    tl.store(losses + row, tl.log(total) + peak - tl.load(logits + target))
    gradient = weights / total - tl.where(word == target, 1.0, 0.0)
    tl.store(gradients + row * num_words + word, gradient.to(gradients.dtype.element_ty), mask=present)


def losses_and_gradients(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """logits [T, V] float32, contiguous; targets [T] int64 -> losses [T] float32, gradients [T, V] bfloat16."""
    num_tokens, num_words = logits.shape
    losses = torch.empty(num_tokens, dtype=torch.float32, device=logits.device)
    gradients = torch.empty_like(logits, dtype=torch.bfloat16)
    words = triton.next_power_of_2(num_words)
    _loss_kernel[num_tokens,](
        logits, targets, losses, gradients, num_words, WORDS=words, num_warps=min(16, max(1, words // 1024))
    )
    return losses, gradients
