"""The entry point: trains, saves, resumes, forks, converts; a precision that is not the run's is refused.

Needs megatron-core 0.19, transformer-engine and mamba-ssm, skipped without them. On a GPU all of it is theirs;
without one, stand-ins replace the kernels (without_gpu.py), and what needs FP8 products is left out. Every test is
independent of the others; `pytest -n 8` runs them side by side.
"""

import importlib.util
import signal
import sys

import pytest
import torch
from entry_point import (
    DEVICE,
    MODEL,
    PROCESS,
    done,
    layout,
    logit_difference,
    note,
    records,
    segment_of,
    start_segment,
    train,
)  # fmt: skip
from launched import ON_GPU, finish, start, wait_for
from safetensors.torch import load_file, save_file
from small import STEP_TOKENS, portable

from repro.models import build_model

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 12)
    or any(importlib.util.find_spec(name) is None for name in ("transformer_engine", "mamba_ssm")),
    reason="needs megatron-core 0.19, transformer-engine and mamba-ssm",
)
needs_fp4 = pytest.mark.skipif(layout() != "b200x8", reason="needs Blackwell")
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs FP8 products")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return portable.write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    ("recipe", "path"),
    [
        ("bf16", "bf16"),
        pytest.param("fp8_block", "te_fp8", marks=needs_gpu),
        ("nvfp4", "emulated"),
        ("mxfp4", "emulated"),
        pytest.param("nvfp4", "te_nvfp4", marks=needs_fp4),
        pytest.param("nvfp4_plain", "te_nvfp4", marks=needs_fp4),
    ],
)
def test_a_small_hybrid_trains_and_its_checkpoint_converts_with_equal_logits(
    tmp_path, data_dir, recipe, path
):
    segment = segment_of(tmp_path / "run", recipe=recipe)
    code, said = train(segment, data_dir, emulate=path == "emulated")
    assert code == 0, said[-6000:]
    losses = [line["loss"] for line in records(segment)]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.3, losses
    for line in records(segment):
        assert 0 < line["data_seconds"] < line["seconds"], "the wait for samples is a part of the step"
    assert [line["step"] for line in records(segment, "validation")] == [5, 10, 15, 20]
    record = done(segment)
    assert record["provenance"]["path"] == path
    assert {line["format"] for line in record["precision"]} == {
        "bf16",
        segment.recipe.rule("fprop", "x").format,
    }
    assert len(record["precision"]) == 12 * len(MODEL["pattern"])

    difference, spread = logit_difference(segment, tmp_path)
    note(
        "trains and converts",
        recipe=recipe,
        path=path,
        losses=losses,
        seconds=[line["seconds"] for line in records(segment)],
        largest_logit_difference=difference,
        logit_standard_deviation=spread,
        versions=record["provenance"]["versions"],
    )
    # Both in FP32: another order of sums, exp and rsqrt of another library. On a GPU Transformer Engine and Triton
    # multiply FP32 values as TF32, each rounded by up to 2^-11, fourteen products deep: four standard deviations are
    # 2^-7 of a logit's size; twice that is the bound. A misplaced row moves a logit by all of its size.
    assert difference < (2**-6 if ON_GPU else 1e-3) * spread


def test_a_stopped_run_goes_on_where_it_saved(tmp_path, data_dir):
    undisturbed, stopped = segment_of(tmp_path / "a"), segment_of(tmp_path / "b")
    first, second = start_segment(undisturbed, data_dir), start_segment(stopped, data_dir)
    wait_for(tmp_path / "state" / stopped.run_hash / "step_00000010" / "meta.json", second)
    second.popen.send_signal(signal.SIGTERM)
    code, said = finish(second)
    assert code == 143, said[-6000:]
    assert "stopped at step" in said
    code, said = train(stopped, data_dir)
    assert code == 0, said[-6000:]
    assert "resumed at step" in said
    code, said = finish(first)
    assert code == 0, said[-6000:]
    both = [[line["loss"] for line in records(segment)] for segment in (undisturbed, stopped)]
    assert len(both[1]) == 20
    differences = [abs(a - b) for a, b in zip(*both, strict=True)]
    note("resumes", largest_loss_difference=max(differences), differences=differences)
    # Kernels of the stack add in no fixed order, so that losses repeat to rounding of BF16 alone (2^-9 of 4 nats).
    assert max(differences) < 2**-7


def test_a_fault_that_does_not_come_back_is_no_divergence(tmp_path, data_dir):
    """Trained again from the newest checkpoint; the same fault at the same place again is divergence."""
    segment = segment_of(tmp_path / "run", recipe="bf16")
    words = [PROCESS, "fault", segment.path, tmp_path / "state", data_dir, layout()]
    code, said = finish(start(*words, 13))
    assert code == 1, said[-6000:]
    assert "error: run[0]: step 13: non-finite loss or gradient norm" in said
    code, said = finish(start(*words, 99))
    assert code == 0, said[-6000:]
    assert [line["step"] for line in records(segment)] == list(range(1, 21))
    assert done(segment)["status"] == "completed"


def test_forks_go_on_in_another_precision(tmp_path, data_dir):
    """Step by step beside a run that goes on undisturbed: same samples, weights and moments, another precision."""
    parent, undisturbed = (
        segment_of(tmp_path / "parent", end=10),
        segment_of(tmp_path / "undisturbed", end=14),
    )
    for process in [start_segment(segment, data_dir) for segment in (parent, undisturbed)]:
        code, said = finish(process)
        assert code == 0, said[-6000:]
    link = {"run": "parent", "segment": 0, "run_hash": parent.run_hash, "tokens": 10 * STEP_TOKENS}
    children = {
        recipe: segment_of(tmp_path / recipe, recipe=recipe, start=10, end=14, parent=link)
        for recipe in ("nvfp4", "bf16", "mxfp4", *(["fp8_block"] if ON_GPU else []))
    }
    processes = {
        recipe: start_segment(child, data_dir, emulate=recipe in ("nvfp4", "mxfp4"))
        for recipe, child in children.items()
    }
    ends = {recipe: finish(process) for recipe, process in processes.items()}
    expected = [line["loss"] for line in records(undisturbed)][10:]
    differences = {}
    for recipe, (code, said) in ends.items():
        assert code == 0, f"{recipe}: {said[-6000:]}"
        lines = records(children[recipe])
        assert [line["step"] for line in lines] == [11, 12, 13, 14]
        assert {line["format"] for line in done(children[recipe])["precision"]} == {"bf16", recipe}
        differences[recipe] = [line["loss"] - loss for line, loss in zip(lines, expected, strict=True)]
    note("forks", undisturbed=expected, differences=differences)
    largest = {recipe: max(map(abs, values)) for recipe, values in differences.items()}
    # The same precision differs as a resumed run does: fresh moments would be 0.04 to 0.08 nats off after an update,
    # fresh weights three. Another precision changes the loss by what its rounding does.
    assert largest.pop("nvfp4") < 2**-7, differences
    assert max(largest.values()) < 0.1, differences


@pytest.mark.parametrize(
    ("change", "layer", "found"),
    [
        ("more-bf16-layers", r"model\.layers\.4\.mixer\.up_proj", "bf16"),
        ("no-fp4-format", r"model\.layers\.0\.mixer\.in_proj", "bf16"),
    ],
)
def test_a_layer_in_another_precision_is_an_error_before_step_1(tmp_path, data_dir, change, layer, found):
    segment = segment_of(tmp_path / "run")
    words = ["altered", segment.path, tmp_path / "state", data_dir, layout(), change]
    code, said = finish(start(PROCESS, *words))
    assert code == 1, said[-6000:]
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert f"layer {layer}".replace("\\", "") in line
    assert found in line
    metrics = tmp_path / "state" / segment.run_hash / "metrics.jsonl"
    assert not metrics.exists() or not metrics.read_text(), "no step was trained"
    note("a wrong layer is refused", change=change, message=line)


def test_native_nvfp4_is_refused_on_a_card_without_it(tmp_path, data_dir):
    if layout() == "b200x8":
        pytest.skip("this card has it")
    code, said = train(segment_of(tmp_path / "run"), data_dir, emulate=False)
    assert code == 1, said[-6000:]
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "native NVFP4 needs compute capability 10.0 or 10.3" in line
    note("native NVFP4 is refused", message=line)


def relative(a, b):
    """Distance of the gradients of all linear layers, over their length."""
    names = [name for name in a if name.endswith("_proj.weight")]
    ours, theirs = (torch.cat([values[name].double().flatten() for name in names]) for values in (a, b))
    return float((ours - theirs).norm() / theirs.norm())


def portable_gradients(segment, weights, window, recipe):
    """(loss of each token, {name: gradient}) of the portable path at the same weights, tokens, seed and step."""
    from repro.models.loss import cross_entropy
    from repro.portable import gpu
    from repro.recipes.apply import apply_recipe
    from repro.recipes.context import RunContext

    model = build_model(segment.model, device=DEVICE)
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    gpu.prepare_model(model, fuse=False)
    apply_recipe(model, recipe, context=RunContext(segment.content["seed"]))
    loss = cross_entropy(model, window[:, :-1], window[:, 1:])
    loss.backward()
    with torch.no_grad():
        logits = (model.hidden(window[:, :-1]).float() @ model.lm_head.weight.float().t()).flatten(0, 1)
    losses = torch.nn.functional.cross_entropy(logits, window[:, 1:].flatten(), reduction="none").double()
    return losses, {name: p.grad.float().cpu() for name, p in model.named_parameters()}


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("pattern", ["M--", MODEL["pattern"]])
def test_the_emulated_path_and_the_portable_one_agree_on_loss_and_gradients(tmp_path, pattern, recipe):
    """Same weights, tokens and random bits; one sequence a micro batch, so that both have the tokens in one order.

    Norms, attention and scan of the two paths differ in the last bit of BF16. Where that moves a value across a
    rounding boundary, a 4-bit operand differs by a whole step, and each layer multiplies such differences until they
    are as large as 4-bit rounding itself. So a shallow model's gradients must be much closer to each other than to
    BF16's, which a wrong operand anywhere would prevent; of a deep one, the distances to BF16's must be equal. The
    loss, a mean over tokens, must agree within the noise that 4-bit rounding gives such a mean.
    """
    plain = segment_of(tmp_path / "bf16", recipe="bf16", pattern=pattern)
    schedule = {**plain.schedule, "micro_batch_sequences": 1}
    segment = segment_of(tmp_path / "run", recipe=recipe, pattern=pattern, schedule=schedule)
    weights = {
        name: parameter.detach().bfloat16()
        for name, parameter in build_model(segment.model, seed=3).named_parameters()
    }
    save_file(weights, tmp_path / "weights")
    words = ["gradients", segment.path, tmp_path / "state", tmp_path / "out", layout(), tmp_path / "weights"]
    code, said = finish(start(PROCESS, *words))
    assert code == 0, said[-6000:]
    theirs = load_file(tmp_path / "out")
    window = theirs["tokens"].to(DEVICE)
    losses, ours = portable_gradients(segment, weights, window, segment.recipe)
    bf16_losses, bf16 = portable_gradients(segment, weights, window, plain.recipe)
    # What 4 bits do to the mean loss of these tokens, by chance of their rounding: one standard deviation.
    noise = float((losses - bf16_losses).std() / len(losses) ** 0.5)
    between = relative(theirs, ours)
    from_bf16 = relative(theirs, bf16), relative(ours, bf16)
    note(
        "emulated path against portable path",
        recipe=recipe,
        pattern=pattern,
        loss=[float(theirs["loss"]), float(losses.mean())],
        bf16_loss=float(bf16_losses.mean()),
        noise_of_the_loss=noise,
        distance_between=between,
        distances_from_bf16=from_bf16,
    )
    assert abs(float(theirs["loss"]) - float(losses.mean())) < 4 * noise
    assert 0.8 < from_bf16[0] / from_bf16[1] < 1.25
    assert between < 0.5 * from_bf16[1] or pattern == MODEL["pattern"]
