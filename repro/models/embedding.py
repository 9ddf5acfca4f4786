"""The input embedding, without initial values of its own (init.py draws them)."""

from __future__ import annotations

import torch
from torch import nn

from repro.experiments.model import ModelSpec


def unset_embedding(spec: ModelSpec) -> nn.Embedding:
    """``nn.Embedding(vocab_size, hidden_size)`` whose weight is allocated and nothing more.

    ``nn.Embedding`` would draw normal numbers at once; on the meta device that alone makes PyTorch import its
    compiler, seconds at the start of every run.
    """
    return nn.Embedding.from_pretrained(torch.empty(spec.vocab_size, spec.hidden_size), freeze=False)
