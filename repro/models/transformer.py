"""The 1.2B transformer of Table 5: rotary attention and a squared-ReLU feed-forward, RMSNorm before each.

Modules carry the names of transformers' ``ArceeForCausalLM``, the library's model with these same parts.
"""

from __future__ import annotations

from torch import Tensor, nn

from repro.experiments.model import ModelSpec
from repro.models.attention import Attention, rotary_tables
from repro.models.embedding import unset_embedding
from repro.models.ffn import FeedForward
from repro.models.norm import RMSNorm


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, eps=spec.norm_eps)
        self.self_attn = Attention(spec)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, eps=spec.norm_eps)
        self.mlp = FeedForward(spec)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """x [B, S, hidden] -> [B, S, hidden]."""
        x = x + self.self_attn(self.input_layernorm(x), rotary)
        return x + self.mlp(self.post_attention_layernorm(x))


class TransformerBody(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim, self.rope_base = spec.head_dim, spec.rope_base
        self.embed_tokens = unset_embedding(spec)
        self.layers = nn.ModuleList(TransformerBlock(spec) for _ in range(spec.num_blocks))
        self.norm = RMSNorm(spec.hidden_size, eps=spec.norm_eps)

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids [B, S] -> normed hidden states [B, S, hidden]."""
        x = self.embed_tokens(token_ids)
        rotary = rotary_tables(token_ids.shape[1], self.head_dim, base=self.rope_base, like=x)
        for block in self.layers:
            x = block(x, rotary)
        return self.norm(x)
