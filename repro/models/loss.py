"""Next-token cross-entropy in FP32 that never holds all logits of a large vocabulary at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from repro.models.head_loss import head_loss
from repro.models.language_model import LanguageModel

# 4096 tokens x 131072 words x 4 bytes = 2 GiB of logits: what one chunk may cost with the largest vocabulary here.
CHUNK_TOKENS = 4096


def cross_entropy(
    model: LanguageModel, token_ids: Tensor, targets: Tensor, *, chunk_tokens: int = CHUNK_TOKENS
) -> Tensor:
    """Mean negative log-likelihood in nats, FP32 (FP64 for an FP64 model), a scalar with gradients.

    token_ids, targets [B, S] int64. Logits are made for `chunk_tokens` tokens at a time; while training they are
    made again in the backward pass instead of being kept. One chunk needs neither.
    """
    hidden = model.hidden(token_ids).flatten(0, 1)
    flat_targets = targets.flatten()
    if hidden.dtype == torch.bfloat16 and model.lm_head.weight.dtype == torch.float32:
        return head_loss(hidden, model.lm_head.weight, flat_targets)
    num_tokens = flat_targets.numel()
    if num_tokens <= chunk_tokens:
        return _summed_loss(model, hidden, flat_targets) / num_tokens
    chunks = zip(hidden.split(chunk_tokens), flat_targets.split(chunk_tokens), strict=True)
    losses = [checkpoint(_summed_loss, model, h, t, use_reentrant=False) for h, t in chunks]
    return torch.stack(losses).sum() / num_tokens


def _summed_loss(model: LanguageModel, hidden: Tensor, targets: Tensor) -> Tensor:
    logits = model.lm_head(hidden)
    return functional.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)), targets, reduction="sum"
    )
