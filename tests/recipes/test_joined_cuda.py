"""Joined layers on a GPU: bits and counts of the layers one by one, beside compiled and plain squared ReLUs."""

from __future__ import annotations

import pytest
import torch
from joined_cases import pass_through
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from repro.models.attention import Attention
from repro.models.ffn import FeedForward
from repro.models.fragments import fuse_fragments
from repro.recipes import apply, operands
from repro.recipes.last_input import LastInput

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("wide", [1152, 1000])
@pytest.mark.parametrize("variant", ["12b_nvfp4", "12b_signs_per_transform", "12b_rht128", "8b_mxfp4"])
@pytest.mark.parametrize("kind", [FeedForward, Attention])
def test_joined_layers_give_the_bits_of_layers_one_by_one(
    kind: type[nn.Module], variant: str, wide: int, fuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = [], operands.make_operand_pair
    monkeypatch.setattr(
        operands, "make_operand_pair", lambda source, *others: (made.append(source), make(source, *others))[1]
    )
    sizes = {"num_tokens": 2048, "hidden": 256, "wide": wide, "device": "cuda"}
    fuse_fragments(fuse)
    try:
        with sdpa_kernel(SDPBackend.MATH):  # the others add gradients in any order
            joined, amaxes = pass_through(kind, variant, **sizes)
            kinds, num_joined = {type(source).__name__ for source in made}, len(made)
            made.clear()
            monkeypatch.setattr(apply, "JOINED", {})
            monkeypatch.setattr(LastInput, "pair_for", lambda *_: None)
            alone, expected = pass_through(kind, variant, **sizes)
    finally:
        fuse_fragments(False)
    if kind is FeedForward:
        assert {"SquaredRelu", "SquaredReluGradient"} < kinds
    else:
        assert len(made) - num_joined == (0 if variant == "12b_signs_per_transform" else 2)
    for number, (one, other) in enumerate(zip(joined, alone, strict=True)):
        assert one.isfinite().all(), number
        assert one.count_nonzero() > 0, number
        assert torch.equal(one, other), number
    assert amaxes == expected
