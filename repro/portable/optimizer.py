"""AdamW as in the paper (Appendix A.1): beta 0.9 / 0.95, weight decay 0.1, gradients clipped by global norm.

Main weights, moments and gradients are FP32 (paper section 4.1). Decay is applied to matrices only; norms, biases
and the Mamba-2 vectors (A_log, D, dt_bias, convolution) are exempt, as is usual; the paper does not say.
Not here: the learning rate (schedule.py), distributed optimizers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Optimizer:
    """AdamW over a model's named parameters; its state is saved and restored by parameter name.

    Calls torch's fused update directly: `torch.optim` objects import the compiler stack (seconds a process), and
    state by name is what a checkpoint wants anyway.
    """

    def __init__(self, model: nn.Module, section: dict[str, Any]) -> None:
        self._settings = {key: section[key] for key in ("beta1", "beta2", "eps")}
        self._clip = section["clip_grad_norm"]
        self._groups = [
            _Group({n: p for n, p in model.named_parameters() if _is_decayed(p)}, section["weight_decay"]),
            _Group({n: p for n, p in model.named_parameters() if not _is_decayed(p)}, 0.0),
        ]

    @torch.no_grad()
    def step(self, learning_rate: float) -> torch.Tensor:
        """Clips, updates, clears the gradients. Returns the gradient norm before clipping (FP32 scalar).

        A parameter without a gradient counts as one with gradient zero.
        """
        parameters = [parameter for group in self._groups for parameter in group.parameters.values()]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = nn.utils.clip_grad_norm_(parameters, self._clip)
        for group in self._groups:
            tensors = list(group.parameters.values())
            torch._foreach_add_(group.updates, 1)
            torch._fused_adamw_(
                tensors,
                [parameter.grad for parameter in tensors],
                group.moments["exp_avg"],
                group.moments["exp_avg_sq"],
                [],
                group.updates,
                lr=learning_rate,
                weight_decay=group.weight_decay,
                amsgrad=False,
                maximize=False,
                **self._settings,
            )
        for parameter in parameters:
            parameter.grad = None
        return norm

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """The state by name: "exp_avg.<parameter>", "exp_avg_sq.<parameter>" and "updates.<parameter>"."""
        tensors = {}
        for group in self._groups:
            for number, name in enumerate(group.parameters):
                for moment, values in group.moments.items():
                    tensors[f"{moment}.{name}"] = values[number]
                tensors[f"updates.{name}"] = group.updates[number].reshape(1)
        return tensors

    def load_state_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restores what `state_tensors` gave. Raises ValueError naming a parameter whose state is missing."""
        for name, own in self.state_tensors().items():
            if name not in tensors:
                raise ValueError(f"checkpoint lacks the optimizer state {name}")
            own.copy_(tensors[name])


class _Group:
    """Parameters of one weight decay with their state."""

    def __init__(self, parameters: dict[str, nn.Parameter], weight_decay: float) -> None:
        self.parameters = parameters
        self.weight_decay = weight_decay
        self.moments = {
            name: [torch.zeros_like(p, requires_grad=False) for p in parameters.values()]
            for name in ("exp_avg", "exp_avg_sq")
        }
        self.updates = [torch.zeros((), dtype=torch.float32, device=p.device) for p in parameters.values()]


def _is_decayed(parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2
