"""What CustomRecipe's factory gives for a role: a layer's operands, a pass-through, or a refusal."""

import sys
from types import SimpleNamespace

import fake_te
import pytest

from repro.cluster import quantizers
from repro.cluster.emulation import Clock

LAYER = "model.layers.3.mixer.in_proj"


@pytest.fixture
def factory(segment, monkeypatch):
    """The factory over stand-ins of Transformer Engine's classes, for the paper's full method."""
    identity = SimpleNamespace(IdentityQuantizer=fake_te.IdentityQuantizer)
    for name in ("", ".pytorch", ".pytorch.tensor", ".pytorch.tensor.identity_tensor"):
        monkeypatch.setitem(sys.modules, f"transformer_engine{name}", identity)
    monkeypatch.setattr(quantizers, "te_classes", lambda: (fake_te.EmulatedQuantizer, fake_te.EmulatedTensor))
    monkeypatch.setattr(quantizers, "_in_use", (segment("12b_nvfp4").recipe, Clock(1)))
    return lambda *role: quantizers.factory(
        SimpleNamespace(**dict(zip(("module_type", "tensor_type", "name"), role, strict=True)))
    )


def test_the_factory_makes_the_operands_of_the_layer_that_its_role_names(factory):
    maker = factory("linear", "grad_output", LAYER).maker
    assert maker.layer == LAYER
    assert [line["rounding"] for line in maker.describe()] == ["sr", "sr"]


def test_slots_that_enter_no_product_pass_through(factory):
    """Transformer Engine refuses None since 2.18: a pass-through must be said."""
    assert isinstance(quantizers.factory(None), fake_te.IdentityQuantizer)
    assert isinstance(factory("linear", "", LAYER), fake_te.IdentityQuantizer)


def test_attentions_own_products_pass_through(factory):
    """Transformer Engine asks for their quantisers too; Section 4.1 keeps them in BF16."""
    for tensor in ("qkv", "s", "o", "do", "dqkv"):
        assert isinstance(factory("dpa", tensor, LAYER), fake_te.IdentityQuantizer), tensor


@pytest.mark.parametrize("module", ["grouped_linear", "layernorm", ""])
def test_what_is_no_linear_layer_is_refused(factory, module):
    with pytest.raises(ValueError, match="only linear layers are quantised"):
        factory(module, "input", LAYER)


def test_importing_the_factory_needs_no_transformer_engine():
    assert callable(quantizers.factory)
