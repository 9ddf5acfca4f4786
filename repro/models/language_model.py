"""A whole language model: body, output head, and which of its linear layers a recipe may quantise.

Nothing here knows a number format. Whoever trains in NVFP4 swaps the layers that `quantizable_linears` lists.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from repro.experiments.model import ModelSpec
from repro.models.hybrid import HybridBody
from repro.models.init import initialize
from repro.models.transformer import TransformerBody

BODIES: dict[str, type[nn.Module]] = {"hybrid": HybridBody, "transformer": TransformerBody}
_BLOCK_INDEX = re.compile(r"model\.layers\.(\d+)\.")


class LanguageModel(nn.Module):
    """Body + untied output head. `forward` gives logits; training takes `hidden` and `lm_head` apart (loss.py)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.model = BODIES[spec.kind](spec)
        self.lm_head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids [B, S] (int64, any S >= 1) -> logits [B, S, vocab]; logits at s see tokens 0..s only."""
        return self.lm_head(self.hidden(token_ids))

    def hidden(self, token_ids: Tensor) -> Tensor:
        """token_ids [B, S] -> hidden states [B, S, hidden] as the output head takes them."""
        return self.model(token_ids)

    def quantizable_linears(self) -> list[tuple[str, int, nn.Linear]]:
        """(qualified name, block index, layer) of every linear layer inside the blocks, in the order they run.

        Embedding, output head, convolutions and norms are not among them (Section 4.1 keeps those in BF16 or
        FP32). A Mamba-2 or feed-forward block has two, attention four (query, key, value, output).
        """
        found = []
        for name, module in self.named_modules():
            block = _BLOCK_INDEX.match(name)
            if block and isinstance(module, nn.Linear):
                found.append((name, int(block[1]), module))
        return found


def build_model(
    spec: ModelSpec,
    *,
    seed: int | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> LanguageModel:
    """A model with weights drawn from `seed` (see init.py), or of no use yet for `seed=None` (to load or to count).

    ``device="meta"`` allocates nothing. Equal seeds give equal weights on every device and for every recipe; the
    global random generator is left as it was.
    """
    if torch.device(device).type == "meta":
        with torch.device("meta"):
            return LanguageModel(spec).to(dtype)
    # Built on the CPU even for a GPU: the weights are drawn there anyway. Not by way of the meta device, whose
    # to_empty() makes PyTorch import its compiler's machinery, a second at the start of every run.
    with torch.random.fork_rng(devices=[]):
        model = LanguageModel(spec)
    if seed is not None:
        initialize(model, spec, seed=seed)
    return model.to(device=device, dtype=dtype)
