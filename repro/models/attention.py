"""Causal self-attention with grouped queries; rotary positions for the transformer, none for the hybrid.

Softmax and both batched products stay out of the recipe's reach, as Section 4.1 keeps them in BF16 or FP32:
only the four linear layers are quantisable.

Shapes: B batch, S tokens, H query heads, J key/value heads (H a multiple of J), P features of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from repro.experiments.model import ModelSpec


class Attention(nn.Module):
    """Grouped-query attention; query head h reads key/value head h // (H / J)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        query_size = spec.num_attention_heads * spec.head_dim
        key_value_size = spec.num_key_value_heads * spec.head_dim
        self.q_proj = nn.Linear(spec.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(spec.hidden_size, key_value_size, bias=False)
        self.v_proj = nn.Linear(spec.hidden_size, key_value_size, bias=False)
        self.o_proj = nn.Linear(query_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """x [B, S, hidden] -> [B, S, hidden]; `rotary` from `rotary_tables`, or None for no positions."""
        q_BHSP, k_BJSP, v_BJSP = (
            layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        if rotary is not None:
            q_BHSP, k_BJSP = rotate(q_BHSP, rotary), rotate(k_BJSP, rotary)
        mixed_BHSP = scaled_dot_product_attention(q_BHSP, k_BJSP, v_BJSP, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed_BHSP.transpose(1, 2).flatten(2))


def rotary_tables(num_tokens: int, head_dim: int, *, base: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and signed sin [S, P] of the angles s * base^(-2i / P); feature i turns with feature i + P/2.

    Angles are FP32 as in transformers; the tables take dtype and device of `like`.
    """
    position_S = torch.arange(num_tokens, dtype=torch.float32, device=like.device)
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=like.device) / head_dim
    angle = position_S[:, None] * (1.0 / base**exponent)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((cos, cos), dim=-1).to(like.dtype), torch.cat((-sin, sin), dim=-1).to(like.dtype)


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions on x [..., S, P]: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) for the two halves of P."""
    cos, signed_sin = rotary
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)
