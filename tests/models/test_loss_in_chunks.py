"""Cross-entropy in chunks is the plain one: same value, same gradients."""

import pytest
import torch
from model_specs import small
from torch.nn import functional

from repro.models import build_model
from repro.models.loss import cross_entropy

TOKENS = torch.randint(0, 96, (3, 22), generator=torch.Generator().manual_seed(0))


def loss_and_gradients(loss, model):
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    return {"loss": loss.detach()} | dict(zip(names, gradients, strict=True))


@pytest.mark.parametrize("chunk_tokens", [1, 20, 62, 63, 4096])
def test_value_and_gradients_equal_the_plain_loss_for_every_chunk(chunk_tokens):
    model = build_model(small("transformer"), seed=1, dtype=torch.float64)
    plain = functional.cross_entropy(model(TOKENS[:, :-1]).flatten(0, 1), TOKENS[:, 1:].flatten())
    expected = loss_and_gradients(plain, model)
    found = loss_and_gradients(
        cross_entropy(model, TOKENS[:, :-1], TOKENS[:, 1:], chunk_tokens=chunk_tokens), model
    )
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-10, atol=1e-12), f"{name} differs"


def test_a_bfloat16_model_gets_its_loss_in_single_precision():
    model = build_model(small("transformer"), seed=1, dtype=torch.bfloat16)
    loss = cross_entropy(model, TOKENS[:, :-1], TOKENS[:, 1:])
    assert loss.dtype == torch.float32
    logits = model(TOKENS[:, :-1]).flatten(0, 1).float()
    assert loss.item() == pytest.approx(
        functional.cross_entropy(logits, TOKENS[:, 1:].flatten()).item(), rel=1e-5
    )


def test_only_one_chunk_of_logits_exists_at_a_time():
    model = build_model(small("transformer"), seed=1)
    sizes = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.shape[0]))
    cross_entropy(model, TOKENS[:, :-1], TOKENS[:, 1:], chunk_tokens=20).backward()
    assert max(sizes) == 20
    assert sizes == 2 * [20, 20, 20, 3] or sizes == [20, 20, 20, 3, 3, 20, 20, 20], sizes
