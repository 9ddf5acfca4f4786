"""The feed-forward of all three models: two linear layers around a squared ReLU, no biases (Appendix A)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from repro.experiments.model import ModelSpec
from repro.models.fragments import fragment


class FeedForward(nn.Module):
    """down(relu(up(x))^2)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.up_proj = nn.Linear(spec.hidden_size, spec.ffn_hidden_size, bias=False)
        self.down_proj = nn.Linear(spec.ffn_hidden_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, S, hidden] -> [B, S, hidden]."""
        return self.down_proj(squared_relu(self.up_proj(x)))


@fragment
def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2, elementwise."""
    return relu(x).square()
