"""A feed-forward or attention module as a model of one block, and one pass through it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from recipe_variants import VARIANTS
from torch import Tensor, nn

from repro.recipes import RunContext, apply_recipe
from repro.recipes.recording import Recording

TOKENS, HIDDEN, WIDE = 128, 32, 80


class OneModule(nn.Module):
    """`kind` with the recipe of a variant in every layer; equal arguments give equal weights."""

    def __init__(
        self,
        kind: type[nn.Module],
        variant: str,
        context: RunContext,
        *,
        hidden: int = HIDDEN,
        wide: int = WIDE,
        device: str = "cpu",
    ) -> None:
        super().__init__()
        heads = {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
        self.mixer = kind(SimpleNamespace(hidden_size=hidden, ffn_hidden_size=wide, **heads))
        generator = torch.Generator().manual_seed(1)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5
        self.to(device)
        recipe = VARIANTS[variant].recipe().with_changes({"bf16_blocks": {"first": 0, "last": 0}})
        apply_recipe(self, recipe, context=context)

    def quantizable_linears(self) -> list[tuple[str, int, nn.Linear]]:
        return [(f"mixer.{name}", 0, layer) for name, layer in self.mixer.named_children()]


def inputs(num_tokens: int = TOKENS, hidden: int = HIDDEN, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """x and the gradient of the output, [4, num_tokens / 4, hidden] in BF16; tokens of many magnitudes, some zero."""
    generator = torch.Generator().manual_seed(2)
    x, grad = (torch.randn(4, num_tokens // 4, hidden, generator=generator) for _ in range(2))
    x *= torch.exp2(torch.randint(-4, 4, (4, num_tokens // 4, 1), generator=generator).float())
    x[0, 3], grad[1, 5] = 0.0, -0.0
    return x.bfloat16().to(device), (grad * 1e-4).bfloat16().to(device)


def pass_through(
    kind: type[nn.Module], variant: str, *, num_tokens: int = TOKENS, **sizes
) -> tuple[list, list]:
    """y, dx and the gradients of all weights; and the amaxes of all operands, sorted."""
    context = RunContext(7)
    context.step, context.microbatch = 3, 1
    model = OneModule(kind, variant, context, **sizes)
    device = sizes.get("device", "cpu")
    x, grad = inputs(num_tokens, sizes.get("hidden", HIDDEN), device)
    x.requires_grad_()
    with context.recorded_by(Recording(4, torch.device(device))) as amaxes:
        y = model.mixer(x)
        grads = torch.autograd.grad(y, (x, *model.parameters()), grad)
    return [y.detach(), *grads], sorted(float(amax) for amax in amaxes)


def kept(kind: type[nn.Module]) -> list[tuple[int, ...]]:
    """Shapes of the tensors that one forward pass keeps for its backward pass, each storage once."""
    model, tensors = OneModule(kind, "12b_nvfp4", RunContext(7)), {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (tensors.update({t.data_ptr(): tuple(t.shape)}), t)[1], lambda t: t
    ):
        model.mixer(inputs()[0].requires_grad_())
    return sorted(tensors.values())


def nonfinite(kind: type[nn.Module]) -> int:
    """Operands counted as holding Inf or NaN, where one activation is infinite."""
    context = RunContext(7)
    x = inputs()[0]
    x[0, 0, 0] = float("inf")
    OneModule(kind, "12b_nvfp4", context).mixer(x.requires_grad_()).sum().backward()
    return context.nonfinite
