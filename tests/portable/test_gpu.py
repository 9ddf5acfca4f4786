"""Training on a GPU: resumed runs repeat their bits, compiled stretches agree, memory and rates are recorded.

What needs no GPU (BF16 activations behind the embedding) is tested on the CPU.
"""

import json

import pytest
import torch
from small_segment import MODEL, bf16_recipe, freeze

from repro.experiments.model import ModelSpec
from repro.experiments.recipe import Recipe
from repro.models import build_model
from repro.models.fragments import fuse_fragments
from repro.models.loss import cross_entropy
from repro.portable.frozen import load_frozen
from repro.portable.gpu import device_of, prepare_model, prepare_process
from repro.portable.metrics import comparable
from repro.portable.trainer import Stopped, Trainer
from repro.recipes import RunContext, apply_recipe

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def gpu_state():
    prepare_process(torch.device("cuda:0"))
    yield
    fuse_fragments(False)


def train(path, data_dir, state, *, fuse=False, **options):
    trainer = Trainer(load_frozen(path), data_dir=data_dir, state_root=state, device="cuda:0", fuse=fuse)
    try:
        return trainer.run(**options)
    finally:
        trainer.close()


def test_activations_are_bf16_and_gradients_of_weights_fp32(tmp_path):
    spec, segment = ModelSpec.model_validate(MODEL), load_frozen(freeze(tmp_path / "run"))
    model = build_model(spec, seed=1)
    prepare_model(model, fuse=False)
    apply_recipe(model, segment.recipe, context=RunContext(1))
    kinds = {}
    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _m, _i, output, name=name: kinds.update({name: output.dtype}))
    tokens = torch.randint(0, spec.vocab_size, (2, 33), generator=torch.Generator().manual_seed(0))
    loss = cross_entropy(model, tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    assert set(kinds.values()) == {torch.bfloat16}, kinds
    assert loss.dtype == torch.float32
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
    whole = build_model(spec, seed=1)
    apply_recipe(whole, segment.recipe, context=RunContext(1))
    assert loss.item() == pytest.approx(cross_entropy(whole, tokens[:, :-1], tokens[:, 1:]).item(), abs=0.02)


@pytest.fixture
def gpus(monkeypatch):
    """Says how many GPUs the machine has."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)

    def say(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return say


def test_the_device_is_the_named_one_or_the_process_own(gpus, monkeypatch):
    gpus(0)
    assert device_of(None) == device_of("cpu") == "cpu"
    gpus(2)
    assert (device_of("cpu"), device_of(None), device_of("cuda:1")) == ("cpu", "cuda:0", "cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert (device_of("cuda"), device_of("cuda:0")) == ("cuda:1", "cuda:0")
    gpus(1)
    assert device_of("cuda") == "cuda:0", "a launcher that shows each process its own GPU"


@pytest.mark.parametrize(
    ("count", "name", "told"),
    [
        (0, "cuda", "device 'cuda': no CUDA GPU here; --device cpu takes the processor"),
        (0, "cuda:7", "device 'cuda:7': no CUDA GPU here"),
        (2, "cuda:7", "device 'cuda:7': the last CUDA GPU here is cuda:1"),
        (2, "tpu", "device 'tpu': cpu, cuda or cuda:N"),
        (2, "cuda:", "device 'cuda:': cpu, cuda or cuda:N"),
        (2, "cuda0", "device 'cuda0': cpu, cuda or cuda:N"),
        (2, "meta", "device 'meta': cpu, cuda or cuda:N"),
    ],
)
def test_a_device_that_is_not_here_is_refused(gpus, count, name, told):
    gpus(count)
    with pytest.raises(ValueError, match=f"^{told}"):
        device_of(name)


def test_a_process_without_a_gpu_of_its_own_is_refused(gpus, monkeypatch):
    gpus(2)
    for number, told in (
        ("2", "process 2 of this machine has no GPU: 2 are visible"),
        ("x", "LOCAL_RANK is 'x'"),
    ):
        monkeypatch.setenv("LOCAL_RANK", number)
        with pytest.raises(ValueError, match=told):
            device_of("cuda")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("recipe", ["bf16", "nvfp4"])
def test_a_stopped_run_goes_on_to_the_bit(tmp_path, data_dir, gpu_state, recipe, fuse):
    whole = freeze(tmp_path / "whole" / "run", recipe=recipe)
    assert train(whole, data_dir, tmp_path / "whole" / "state", fuse=fuse) == "completed"
    parts = freeze(tmp_path / "parts" / "run", recipe=recipe)
    stops = iter([False] * 6 + [True])
    with pytest.raises(Stopped):
        train(
            parts, data_dir, tmp_path / "parts" / "state", fuse=fuse, should_stop=lambda: next(stops, False)
        )
    assert train(parts, data_dir, tmp_path / "parts" / "state", fuse=fuse) == "completed"
    one, two = (comparable((path.parent / "metrics.jsonl").read_text()) for path in (whole, parts))
    for left, right in zip(one, two, strict=True):
        assert left == right
    done = json.loads((whole.parent / "done.json").read_text())
    assert done["provenance"]["compiled"] is fuse
    assert done["provenance"]["peak_memory_bytes"] > 0


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("fuse", [False, True])
def test_every_gradient_is_that_of_float64(gpu_state, fuse):
    """Losses alone would not show a wrong gradient of one kernel: training goes on without it.

    BF16 activations on a CPU are off by 0.5 to 1.5 % in matrices, and up to 7 % in vectors of a few sums that cancel.
    """
    spec = ModelSpec.model_validate(MODEL)
    tokens = torch.randint(0, spec.vocab_size, (4, 129), generator=torch.Generator().manual_seed(1))

    def gradients(model, tokens):
        loss = cross_entropy(model, tokens[:, :-1], tokens[:, 1:])
        return torch.autograd.grad(loss, list(model.parameters()))

    ours = build_model(spec, seed=1, device="cuda:0")
    prepare_model(ours, fuse=fuse)
    apply_recipe(ours, Recipe.model_validate(bf16_recipe()), context=RunContext(1))
    exact = build_model(spec, seed=1, dtype=torch.float64)
    pairs = zip(gradients(ours, tokens.cuda()), gradients(exact, tokens), strict=True)
    for (name, parameter), (found, expected) in zip(exact.named_parameters(), pairs, strict=True):
        error = ((found.cpu().double() - expected).norm() / expected.norm()).item()
        assert error < (0.05 if parameter.ndim > 1 else 0.2), f"{name}: off by {error:.3f}"


@pytest.mark.gpu
@needs_gpu
def test_the_gpu_trains_as_the_cpu_does(tmp_path, data_dir, gpu_state):
    on_gpu, on_cpu = (freeze(tmp_path / kind / "run", recipe="bf16") for kind in ("gpu", "cpu"))
    train(on_gpu, data_dir, tmp_path / "gpu" / "state", fuse=True)
    trainer = Trainer(load_frozen(on_cpu), data_dir=data_dir, state_root=tmp_path / "cpu" / "state")
    trainer.run()
    trainer.close()
    one, two = (comparable((path.parent / "metrics.jsonl").read_text()) for path in (on_gpu, on_cpu))
    for left, right in zip(one, two, strict=True):
        # BF16 activations against FP32 ones: 2^-9 relative a rounding, on losses of 2 to 4 nats.
        assert left["loss"] == pytest.approx(right["loss"], abs=0.03), (left, right)
