"""Our models are transformers' NemotronH and Arcee: with equal weights, equal logits and equal gradients.

transformers casts to FP32 inside (norms, scan, logits) whatever the model's dtype. To compare functions and not
roundings, those casts are lifted to FP64 for the test; then everything is float64 and the tolerance of 1e-12 is
far above its rounding (1e-15 to 5e-14 seen) and far below any difference in the formulas. A second test compares
plain FP32.
"""

import pytest
import torch
from model_specs import from_config, small
from torch.nn import functional

from repro.models import build_model
from repro.models.export import hf_config, save_pretrained

transformers = pytest.importorskip("transformers")
from transformers.models.arcee import modeling_arcee  # noqa: E402
from transformers.models.nemotron_h import modeling_nemotron_h  # noqa: E402

pytestmark = pytest.mark.usefixtures("transformers_in_pytorch")

SPECS = {
    # Other numbers than those of every model file: one that stands fixed on either side is seen.
    "hybrid": small("hybrid", norm_eps=1e-3),
    "transformer": small("transformer", norm_eps=1e-3, rope_base=500.0),
    "12b_tiny": from_config("tiny", "12b"),
    "8b_tiny": from_config("tiny", "8b"),
    "1p2b_tiny": from_config("tiny", "1p2b"),
}


class _TorchWithWideFloat32:
    """The torch module, but `float32` means float64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def casts_lifted(monkeypatch):
    for module in (modeling_nemotron_h, modeling_arcee):
        monkeypatch.setattr(module, "torch", _TorchWithWideFloat32())
    # NemotronH's scan and logits call .float(); Arcee's rotary tables do too, and those are FP32 in ours as well.
    original = torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, "float", lambda t: t if t.dtype == torch.float64 else original(t))


def pair(spec, dtype):
    """Our model and transformers', with the same weights (conv and norms moved off their initial values)."""
    ours = build_model(spec, seed=5, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in ours.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=dtype))
    config_class = type(transformers.AutoConfig.for_model(hf_config(spec)["model_type"]))
    config = config_class(**hf_config(spec, dtype=str(dtype).removeprefix("torch.")))
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype)
    missing = theirs.load_state_dict(ours.state_dict(), strict=True)
    assert not missing.missing_keys
    assert not missing.unexpected_keys
    return ours, theirs.train()


def tokens(spec, length=21):
    return torch.randint(0, spec.vocab_size, (2, length), generator=torch.Generator().manual_seed(2))


def gradients(logits, model, targets):
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return {name: p.grad for name, p in _backward(loss, model)}


def _backward(loss, model):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return model.named_parameters()


@pytest.mark.parametrize("name", SPECS)
def test_logits_and_gradients_are_the_same_function_in_float64(name, casts_lifted):
    spec = SPECS[name]
    ours, theirs = pair(spec, torch.float64)
    token_ids, targets = tokens(spec), tokens(spec).flip(0)
    our_logits, their_logits = ours(token_ids), theirs(token_ids, use_cache=False).logits
    assert their_logits.dtype == torch.float64, "a cast of transformers was not lifted"
    difference = (our_logits - their_logits).abs().max() / their_logits.abs().max()
    assert difference < 1e-12, f"logits differ by {difference:.3g} of the largest"
    expected = gradients(their_logits, theirs, targets)
    found = gradients(our_logits, ours, targets)
    assert found.keys() == expected.keys()
    for parameter, value in expected.items():
        difference = (found[parameter] - value).abs().max() / value.abs().max()
        assert difference < 1e-12, f"gradient of {parameter} differs by {difference:.3g} of the largest"


@pytest.mark.parametrize("name", SPECS)
def test_logits_in_single_precision_differ_by_rounding_only(name):
    """Up to 40 residual additions of FP32 values, each rounded at 6e-8 and amplified by later layers."""
    spec = SPECS[name]
    ours, theirs = pair(spec, torch.float32)
    token_ids = tokens(spec)
    our_logits, their_logits = ours(token_ids), theirs(token_ids, use_cache=False).logits
    difference = (our_logits - their_logits).abs().max() / their_logits.abs().max()
    assert difference < 5e-6, f"logits differ by {difference:.3g} of the largest"


def test_the_clamp_of_dt_that_transformers_adds_by_default_would_be_seen(casts_lifted):
    """Guards the exported time_step_min: with the library's default 0.001 the small steps of dt are lost."""
    spec = small("hybrid")
    ours, theirs = pair(spec, torch.float64)
    with torch.no_grad():
        for model in (ours, theirs):
            for layer in model.model.layers:
                if hasattr(layer.mixer, "dt_bias"):
                    layer.mixer.dt_bias.fill_(-9.0)
    reference = ours(tokens(spec))
    assert torch.allclose(theirs(tokens(spec), use_cache=False).logits, reference, rtol=1e-12, atol=1e-12)
    for layer in theirs.model.layers:
        layer.mixer.time_step_limit = (0.001, float("inf"))
    clamped = theirs(tokens(spec), use_cache=False).logits
    assert (clamped - reference).abs().max() > 1e-4, "the test no longer sees the clamp"


@pytest.mark.parametrize("name", ["hybrid", "transformer"])
def test_a_saved_model_loads_with_from_pretrained_and_has_the_same_logits(name, tmp_path):
    spec = SPECS[name]
    model = build_model(spec, seed=5)
    save_pretrained(model, spec, tmp_path / "checkpoint")
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "checkpoint", local_files_only=True, output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert next(loaded.parameters()).dtype == torch.float32
    for parameter, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[parameter], value), f"{parameter} changed on the way"
    with torch.no_grad():
        expected, found = model(tokens(spec)), loaded.eval()(tokens(spec)).logits
    assert (found - expected).abs().max() < 5e-6 * expected.abs().max()


@pytest.mark.parametrize("name", ["hybrid", "transformer"])
def test_greedy_text_with_a_cache_is_that_of_whole_forward_passes(name, tmp_path):
    """transformers decodes token by token without the clamp it prefills with; the exported value must undo that."""
    spec = SPECS[name]
    model = build_model(spec, seed=5)
    with torch.no_grad():
        for block in model.model.layers:
            mixer = getattr(block, "mixer", None)
            if hasattr(mixer, "dt_bias"):
                mixer.dt_bias.fill_(-9.0)  # steps of 1e-4, below transformers' default clamp
    save_pretrained(model, spec, tmp_path / "checkpoint")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "checkpoint", local_files_only=True
    ).eval()
    prompt = tokens(spec, length=11)[:1]
    options = {
        "max_new_tokens": 12,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    cached = loaded.generate(prompt, use_cache=True, pad_token_id=0, **options)
    with torch.no_grad():
        whole = model(cached.sequences[:, :-1])[0, prompt.shape[1] - 1 :]
    difference = (torch.cat(cached.logits) - whole).abs().max() / whole.abs().max()
    assert difference < 5e-6, f"cached logits differ by {difference:.3g} of the largest"
    assert torch.equal(cached.sequences[0, prompt.shape[1] :], whole.argmax(-1))
