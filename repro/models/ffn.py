"""The feed-forward of all three models: two linear layers around a squared ReLU, no biases (Appendix A)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import relu

from repro.experiments.model import ModelSpec
from repro.models.fragments import fragment


class FeedForward(nn.Module):
    """down(relu(up(x))^2)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        #: Asked first, with x and both layers: the output [B, S, hidden], or None to have the layers called. Whoever
        #: swaps the layers may know a way with fewer passes over memory.
        self.joined_layers: Callable[[Tensor, nn.Linear, nn.Linear], Tensor | None] | None = None
        self.up_proj = nn.Linear(spec.hidden_size, spec.ffn_hidden_size, bias=False)
        self.down_proj = nn.Linear(spec.ffn_hidden_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, S, hidden] -> [B, S, hidden]."""
        if self.joined_layers is not None:
            y = self.joined_layers(x, self.up_proj, self.down_proj)
            if y is not None:
                return y
        return self.down_proj(squared_relu(self.up_proj(x)))


@fragment
def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2, elementwise."""
    return relu(x).square()
