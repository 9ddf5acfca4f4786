"""AdamW as in the paper (Appendix A.1): beta 0.9 / 0.95, weight decay 0.1, gradients clipped by global norm.

Main weights, moments and gradients are FP32 (paper section 4.1). Decay is applied to matrices only; norms, biases
and the Mamba-2 vectors (A_log, D, dt_bias, convolution) are exempt, as is usual; the paper does not say.
Not here: the learning rate (schedule.py), distributed optimizers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW over a model's named parameters; its state is saved and restored by parameter name."""

    def __init__(self, model: nn.Module, section: dict[str, Any]) -> None:
        self._names = [name for name, _ in model.named_parameters()]
        self._parameters = [parameter for _, parameter in model.named_parameters()]
        self._clip = section["clip_grad_norm"]
        decayed = [p for n, p in model.named_parameters() if _is_decayed(n, p)]
        exempt = [p for n, p in model.named_parameters() if not _is_decayed(n, p)]
        self._adamw = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": section["weight_decay"]},
                {"params": exempt, "weight_decay": 0.0},
            ],
            betas=(section["beta1"], section["beta2"]),
            eps=section["eps"],
            fused=True,
        )

    def step(self, learning_rate: float) -> torch.Tensor:
        """Clips, updates, clears the gradients. Returns the gradient norm before clipping (FP32 scalar)."""
        norm = nn.utils.clip_grad_norm_(self._parameters, self._clip)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        return norm

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Moments by name ("exp_avg.<parameter>") and the update count; empty before the first step."""
        state = self._adamw.state
        tensors = {}
        for name, parameter in zip(self._names, self._parameters, strict=True):
            if parameter in state:
                for moment in _MOMENTS:
                    tensors[f"{moment}.{name}"] = state[parameter][moment]
                tensors[f"updates.{name}"] = state[parameter]["step"].reshape(1)
        return tensors

    def load_state_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restores what `state_tensors` gave. Raises ValueError naming a parameter whose state is missing."""
        for name, parameter in zip(self._names, self._parameters, strict=True):
            keys = [f"{moment}.{name}" for moment in _MOMENTS] + [f"updates.{name}"]
            missing = [key for key in keys if key not in tensors]
            if missing:
                raise ValueError(f"checkpoint lacks the optimizer state {missing[0]}")
            device = parameter.device
            self._adamw.state[parameter] = {
                "step": tensors[f"updates.{name}"].reshape(()).to(device),
                **{moment: tensors[f"{moment}.{name}"].to(device) for moment in _MOMENTS},
            }


def _is_decayed(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and not name.endswith("A_log")
