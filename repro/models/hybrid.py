"""The hybrid Mamba-Transformer of Tables 3 and 4: one mixer a block, RMSNorm before it, a residual around it.

Modules carry the names of transformers' ``NemotronHForCausalLM`` so that a state dict serves both.
"""

from __future__ import annotations

from torch import Tensor, nn

from repro.experiments.model import ModelSpec
from repro.models.attention import Attention
from repro.models.embedding import unset_embedding
from repro.models.ffn import FeedForward
from repro.models.mamba2 import Mamba2
from repro.models.norm import RMSNorm

MIXERS: dict[str, type[nn.Module]] = {"M": Mamba2, "-": FeedForward, "*": Attention}


class HybridBlock(nn.Module):
    """x + mixer(norm(x)); the pattern symbol chooses the mixer."""

    def __init__(self, spec: ModelSpec, symbol: str) -> None:
        super().__init__()
        self.norm = RMSNorm(spec.hidden_size, eps=spec.norm_eps)
        self.mixer = MIXERS[symbol](spec)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, S, hidden] -> [B, S, hidden]."""
        return x + self.mixer(self.norm(x))


class HybridBody(nn.Module):
    """Embedding, blocks and final norm; no positions are added anywhere."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embeddings = unset_embedding(spec)
        self.layers = nn.ModuleList(HybridBlock(spec, symbol) for symbol in spec.pattern)
        self.norm_f = RMSNorm(spec.hidden_size, eps=spec.norm_eps)

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids [B, S] -> normed hidden states [B, S, hidden]."""
        x = self.embeddings(token_ids)
        for block in self.layers:
            x = block(x)
        return self.norm_f(x)
