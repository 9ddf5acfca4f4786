"""The tensors that are measured are those of the model's own BF16 pass; the command writes the table."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_segment import MODEL

from repro.experiments.model import ModelSpec
from repro.experiments.recipe import Recipe
from repro.mechanisms import __main__ as command
from repro.mechanisms import capture as capture_module
from repro.mechanisms.capture import capture, held_out_batch
from repro.models import build_model
from repro.models.loss import cross_entropy
from repro.portable.finished import CheckpointPoint
from repro.recipes.apply import apply_recipe
from repro.recipes.context import RunContext

SPEC = ModelSpec.model_validate(MODEL)
TRANSFORMER = SPEC.model_copy(
    update={"kind": "transformer", "pattern": "*-*-", "symbols_per_block": 2, "rope_base": 10_000.0}
)
BF16 = Recipe.model_validate({"name": "bf16", "fprop": "bf16", "dgrad": "bf16", "wgrad": "bf16"})


def batch() -> torch.Tensor:
    return torch.randint(0, 64, (2, 33), generator=torch.Generator().manual_seed(0))


def test_gradient_times_activation_is_the_gradient_of_the_weight_in_every_layer() -> None:
    layers = list(capture(build_model(SPEC, seed=1), BF16, batch(), seed=1))
    model = build_model(SPEC, seed=1)
    apply_recipe(model, BF16, context=RunContext(1))
    model.train()
    tokens = batch()
    cross_entropy(model, tokens[:, :-1], tokens[:, 1:]).backward()
    named = model.quantizable_linears()
    assert [tensors.layer for tensors in layers] == [name for name, _, _ in named]
    for tensors, (name, block, linear) in zip(layers, named, strict=True):
        assert tensors.block == block
        assert torch.equal(tensors.w, linear.weight), name
        got = tensors.g.t() @ tensors.x
        torch.testing.assert_close(got, linear.weight.grad, rtol=1e-5, atol=1e-7, msg=f"{name}: other x or g")


def test_capture_leaves_no_gradient_and_no_changed_weight() -> None:
    model = build_model(SPEC, seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    list(capture(model, BF16, batch(), seed=1))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("spec", [SPEC, TRANSFORMER])
def test_tensors_are_to_the_bit_those_of_a_pass_that_keeps_everything(spec: ModelSpec) -> None:
    seen: dict[tuple[str, str], torch.Tensor] = {}

    def observe(layer: str, gemm: str, operand: str, original: torch.Tensor, *_: object) -> None:
        seen.setdefault((layer, operand), original.detach().float())

    model = build_model(spec, seed=1)
    apply_recipe(model, BF16, context=RunContext(1, observer=observe))
    tokens = batch()
    cross_entropy(model.train(), tokens[:, :-1], tokens[:, 1:]).backward()
    layers = list(capture(build_model(spec, seed=1), BF16, batch(), seed=1))
    assert 3 * len(layers) == len(seen)
    for tensors in layers:
        for operand in ("x", "w", "g"):
            assert torch.equal(getattr(tensors, operand), seen[tensors.layer, operand]), (
                tensors.layer,
                operand,
            )


def test_the_pass_is_in_bf16_whatever_the_recipe_of_the_run() -> None:
    change = dict.fromkeys(("fprop", "dgrad", "wgrad"), "nvfp4")
    layers = [
        list(capture(build_model(SPEC, seed=1), recipe, batch(), seed=1))
        for recipe in (BF16, BF16.with_changes(change))
    ]
    for plain, quantised in zip(*layers, strict=True):
        for operand in ("x", "w", "g"):
            assert torch.equal(getattr(plain, operand), getattr(quantised, operand)), plain.layer


def test_one_gradient_at_a_time_is_there_and_no_block_keeps_what_it_computed() -> None:
    spec = SPEC.model_copy(update={"ffn_hidden_size": 48})  # a width that nothing else has, as conv_size
    model, alive, kept = build_model(spec, seed=1), [], []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _: alive.append(sum(p.grad is not None for p in model.parameters()))
        )
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape[-1:]) or t, lambda t: t):
        list(capture(model, BF16, batch(), seed=1))
    assert alive == [1] * len(list(model.parameters()))
    assert not {(spec.ffn_hidden_size,), (spec.mamba_conv_size,)} & set(kept)
    assert all("forward" not in vars(block) for block in model.model.layers), "the blocks are as they were"


class FakeData:
    """Three sequences of one category and one of another; a sequence holds its own number."""

    def __init__(self, *_: object) -> None: ...

    def batches(self, size: int):
        assert size == 1
        for category, numbers in (("code", (0, 1, 2)), ("prose", (10,))):
            for number in numbers:
                yield category, np.full((1, 5), number)


@pytest.mark.parametrize(("size", "numbers"), [(2, [0, 10]), (3, [0, 10, 1]), (9, [0, 10, 1, 2])])
def test_batch_takes_the_categories_in_turn(
    size: int, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "ValidationData", FakeData)
    frozen = {"schedule": {"micro_batch_sequences": size}, "data": {}, "validation": {}}
    assert held_out_batch(Path(), frozen)[:, 0].tolist() == numbers


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> CheckpointPoint:
    """A kept checkpoint of run r at 300 of 400 tokens, without the files behind it."""
    point = CheckpointPoint("r", 300, 0.75, Path(), {"tier": "tiny", "recipe": BF16.model_dump(), "seed": 1})
    wanted = SimpleNamespace(measure_tokens=(300,), end_tokens=400)
    monkeypatch.setattr(command.plan, "load", lambda *_, **__: SimpleNamespace(run=lambda _: wanted))
    monkeypatch.setattr(command, "run_checkpoints", lambda *_: [point])
    monkeypatch.setattr(command, "load_model", lambda _: build_model(SPEC, seed=1))
    monkeypatch.setattr(command, "held_out_batch", lambda *_: batch())
    return point


def test_table_has_every_quantity_of_every_layer(point: CheckpointPoint, tmp_path: Path) -> None:
    assert command.main(["r", "--results", str(tmp_path), "--draws", "2"]) == 0
    with open(tmp_path / "mechanisms" / "r.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == command.COLUMNS
    by_layer: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        by_layer.setdefault(row["layer"], set()).add((row["quantity"], row["variant"]))
        assert (row["run"], row["tokens"], row["fraction"]) == ("r", "300", "0.75")
        assert float(row["value"]) >= 0
    assert len(by_layer) == 2 + 2 + 4 + 2
    expected = {
        *(("gradient_bias", variant) for variant in ("rne", "sr", "sr_floor")),
        *(("gradient_error", variant) for variant in ("rne", "sr")),
        *(("wgrad_error", variant) for variant in ("rht", "none")),
        *(("block_crest", variant) for variant in ("rht", "none")),
        ("wgrad_quant_error", "base"),
        *(("weight_mismatch", variant) for variant in ("1d", "2d")),
        *(("near_fp8_share", variant) for variant in ("nvfp4", "mxfp4")),
    }
    for layer, found in by_layer.items():
        assert found == expected, layer


def test_same_checkpoint_measures_the_same_twice(point: CheckpointPoint, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        assert command.main(["r", "--results", str(tmp_path / folder), "--draws", "2"]) == 0
    assert (tmp_path / "a/mechanisms/r.csv").read_bytes() == (tmp_path / "b/mechanisms/r.csv").read_bytes()


@pytest.mark.parametrize("draws", ["0", "3"])
def test_an_odd_number_of_draws_is_refused_in_one_line(
    draws: str, point: CheckpointPoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["r", "--results", str(tmp_path), "--draws", draws]) == 2
    assert f"--draws {draws}: must be even" in capsys.readouterr().err


def test_ctrl_c_ends_in_one_line(
    point: CheckpointPoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure", stopped)
    assert command.main(["r", "--results", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "repro.mechanisms: stopped; nothing is kept of it\n"
    assert not (tmp_path / "mechanisms").exists()


@pytest.mark.parametrize(
    ("device", "told"), [("foo", "device 'foo': cpu, cuda or cuda:N"), ("cuda", "no CUDA GPU here")]
)
def test_a_device_that_is_not_here_is_refused_in_one_line(
    device: str,
    told: str,
    point: CheckpointPoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["r", "--results", str(tmp_path), "--device", device]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_unknown_run_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs" / "12b_nvfp4").mkdir(parents=True)
    assert command.main(["12b_nvfp5", "--results", str(tmp_path)]) == 2
    assert "did you mean '12b_nvfp4'?" in capsys.readouterr().err
