"""What each kind of row reports, not how fast this machine is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from repro.bench import products
from repro.bench.layers import RECIPES, layer_cases
from repro.bench.machine import Effort, Machine
from repro.bench.passes import pass_cases
from repro.bench.product_calls import emulated_product
from repro.bench.products import product_cases, storage_cases, stored
from repro.bench.rows import Row, run_case
from repro.bench.steps import TrainingRun, make_case, products_of, step_cases, time_steps
from repro.experiments.plan import load
from repro.models.language_model import LanguageModel
from repro.numerics.formats import BLOCK_FORMATS
from repro.portable.parallel import Ranks
from repro.recipes.apply import apply_recipe

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(torch.device("cpu"), effort=Effort(0.0, 1, 1), configs=CONFIGS)
    monkeypatch.setattr(made, "matrix_size", 128)
    return made


def _rows(cases) -> dict[str, Row]:
    return {case.name: run_case(case) for case in cases}


def test_every_format_is_multiplied_or_says_what_it_needs(machine: Machine) -> None:
    rows = _rows(product_cases(machine, shape=(64, 96, 128)))
    for name, row in rows.items():
        if row.measured is None:
            assert row.note, f"{name} is absent without a reason"
        else:
            assert row.details["tflops"] == pytest.approx(2 * 64 * 96 * 128 / row.measured / 1e12), name
            assert row.ratio == pytest.approx(row.floor / row.measured), name
    assert rows["product/bf16/native"].ratio == 1.0
    assert rows["product/nvfp4/native"].note.startswith("needs compute capability 10.0 or 10.3:")
    assert "compute capability 9" in rows["product/fp8_block/native"].note
    assert {f"product/{name}/emulated" for name in BLOCK_FORMATS} <= set(rows)


def test_a_product_that_the_library_refuses_is_absent_in_its_own_words(machine, monkeypatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("no FP8 here\nstack")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    row = _rows(product_cases(machine, shape=(16, 16, 16)))["product/fp8_e4m3/native"]
    assert (row.measured, row.failed, row.note) == (None, False, "the library refuses: no FP8 here")


def test_what_torch_lacks_is_timed_by_transformer_engine_where_it_is_installed(machine, monkeypatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise NotImplementedError("no such product")

    def measure(command: list[str], **_options: object) -> subprocess.CompletedProcess:
        commands.append(command)
        rates = [{"format": "nvfp4", "seconds": 2.0}, {"format": "mxfp4", "seconds": None}]
        Path(command[-1]).write_text(json.dumps({"rates": rates}))
        return subprocess.CompletedProcess(command, 0)

    commands: list[list[str]] = []
    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    monkeypatch.setattr(Machine, "has_fp4", True)
    monkeypatch.setattr(products, "find_spec", lambda name: name)
    monkeypatch.setattr(products.subprocess, "run", measure)
    rows = _rows(product_cases(machine, shape=(32, 32, 32)))
    assert (rows["product/nvfp4/native"].measured, rows["product/nvfp4/native"].note) == (
        2.0,
        "by Transformer Engine",
    )
    assert rows["product/mxfp4/native"].note == "the library refuses: no such product"
    assert rows["product/mxfp4/native"].measured is None
    [command] = commands
    assert command[1:7] == ["-m", "repro.cluster.gemm_rates", "--shape", "32", "32", "32"]
    monkeypatch.setattr(products, "find_spec", lambda name: None)
    rows = _rows(product_cases(machine, shape=(32, 32, 32)))
    assert rows["product/nvfp4/native"].measured is None
    assert len(commands) == 1


def test_emulated_product_of_operands_on_the_grid_is_the_product() -> None:
    x = torch.tensor([6.0, 3.0, -1.5, 0.5]).repeat(32, 16).bfloat16()
    for name in ("nvfp4", "mxfp4", "mxfp8"):
        got = emulated_product(x, x, BLOCK_FORMATS[name])
        # Not bit for bit: NVFP4's two FP32 tensor scales each round once.
        torch.testing.assert_close(got, x.float() @ x.float().t(), rtol=4e-7, atol=0, msg=name)


def test_stored_bytes_are_four_and_a_half_bits_and_one_fp32_for_nvfp4() -> None:
    found = {name: stored(torch.randn(64, 256), form) for name, form in BLOCK_FORMATS.items()}
    num_values = 64 * 256
    assert found["nvfp4"].measured == num_values * 4.5 / 8 + 4
    assert found["mxfp4"].measured == num_values * 4.25 / 8
    assert found["fp8_block"].measured == num_values * (8 + 32 / 128) / 8
    assert found["nvfp4"].details["over_fp8"] == pytest.approx(4.5 / 8.25, rel=1e-3)
    assert all(one.ratio == 1.0 for one in found.values())


def test_stored_rows_are_in_bytes(machine: Machine) -> None:
    assert {case.unit for case in storage_cases(machine)} == {"bytes"}


def test_a_pass_is_measured_against_the_bytes_that_it_must_move(machine: Machine) -> None:
    rows = _rows(pass_cases(machine))
    for name, row in rows.items():
        if name.startswith("small"):
            assert row.floor is None
            assert row.measured > 0, name
        elif not name.startswith("amax"):
            floor = row.details["bytes_per_value"] * 128 * 128 / machine.copy_rate
            assert row.floor == pytest.approx(floor), name
    bytes_per_value = {name: row.details.get("bytes_per_value") for name, row in rows.items()}
    # BF16 in twice (amax, then quantise) and out once; FP32 operands of a pair on the CPU.
    assert bytes_per_value["qdq/nvfp4/1x16/rne"] == 2 + 2 + 2
    assert bytes_per_value["qdq/mxfp4/1x32/sr"] == 2 + 2
    assert bytes_per_value["pair/nvfp4/sr"] == 2 + 2 + 4 + 4
    assert rows["amax/nvfp4/both"].note.startswith("needs a GPU")


def test_a_layer_of_each_recipe_is_a_multiple_of_the_bf16_products(machine: Machine) -> None:
    rows = _rows(layer_cases(machine, shapes=((64, 128, 128),)))
    assert list(rows) == [f"layer/{name}/64x128x128" for name in ("bf16_tensors", *RECIPES)]
    for name, row in rows.items():
        assert not row.failed, row.note
        assert row.ratio == pytest.approx(row.measured / row.floor), name
    assert rows["layer/bf16_tensors/64x128x128"].ratio == 1
    assert rows["layer/nvfp4/64x128x128"].note == "nvfp4 products: emulated"


def test_a_missing_recipe_folder_is_said_in_the_row(tmp_path: Path) -> None:
    machine = Machine(torch.device("cpu"), effort=Effort(0.0, 1, 1), configs=tmp_path)
    row = _rows(layer_cases(machine, shapes=((64, 128, 128),)))["layer/nvfp4/64x128x128"]
    assert row.failed
    assert "nvfp4.yaml" in row.note


def test_steps_of_a_stand_in_run_and_count_their_tokens() -> None:
    case = make_case(load("tiny", configs_dir=CONFIGS), "8b", "nvfp4", batch=2, micro=1)
    seconds, details = time_steps(case, torch.device("cpu"), warmup=0, steps=1)
    assert details["tokens_per_step"] == 2 * 128
    assert details["tokens_per_second"] == round(2 * 128 / seconds)
    assert case.recipe.name == "nvfp4"


@pytest.mark.parametrize(("batch", "micro"), [(3, 2), (1, 2), (-4, 1), (2, -1)])
def test_a_step_that_would_train_fewer_sequences_than_it_counts_is_refused(batch: int, micro: int) -> None:
    words = f"a step of {batch} sequences cannot be made of micro batches of {micro}"
    with pytest.raises(ValueError, match=words):
        make_case(load("tiny", configs_dir=CONFIGS), "8b", "bf16", batch=batch, micro=micro)


def test_the_products_of_a_step_are_those_of_its_record() -> None:
    bf16, ours = {"format": "bf16"}, {"format": "nvfp4"}
    fp8 = [{"format": "fp8_block", "product": name} for name in ("card", "emulated")]
    assert products_of([bf16, bf16]) == ""
    assert products_of([bf16, ours]) == "emulated"
    assert products_of([bf16, fp8[0], fp8[0]]) == "card"
    assert products_of([*fp8, bf16]) == "card and emulated"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_in_fp8_says_whether_the_cards_product_runs() -> None:
    from repro.numerics.gpu.fp8_product import obstacle

    case = make_case(load("tiny", configs_dir=CONFIGS), "8b", "fp8_block", batch=0, micro=0)
    device = torch.device("cuda:0")
    run = TrainingRun(case, device, Ranks(), fuse=False)
    assert run.describe(1.0)["products"] == ("emulated" if obstacle(device) else "card")


@pytest.mark.parametrize("product", ["card", "emulated"])
def test_a_row_of_a_step_says_which_products_ran(machine: Machine, monkeypatch, product: str) -> None:
    def record_of(model, recipe, *, context):
        rows = apply_recipe(model, recipe, context=context)
        return [{**row, "product": product} if row["format"] == "fp8_block" else row for row in rows]

    monkeypatch.setattr("repro.recipes.apply.apply_recipe", record_of)
    cases = [case for case in step_cases(machine) if case.name.startswith("step/8b/")]
    monkeypatch.setattr("repro.bench.steps.time_steps", _first_step)
    notes = {name.rpartition("/")[2]: row.note for name, row in _rows(cases).items()}
    emulated = {name: f"{name} products: emulated" for name in ("mxfp4", "nvfp4")}
    assert notes == {"bf16": "", "fp8_block": f"fp8_block products: {product}", **emulated}


def _first_step(case, device, *, warmup: int, steps: int):
    run = TrainingRun(case, device, Ranks())
    return 1.0, run.describe(1.0)


def test_a_model_named_by_its_size_has_that_many_parameters() -> None:
    plan = load("proxy")
    for name, millions in (("53m", 53), ("224m", 224)):
        spec = make_case(plan, name, "nvfp4", batch=0, micro=0).spec
        with torch.device("meta"):
            found = sum(parameter.numel() for parameter in LanguageModel(spec).parameters())
        assert round(found / 1e6) == millions, f"{name}: {found:,} parameters"


def test_steps_are_named_by_model_and_recipe(machine: Machine) -> None:
    names = [case.name for case in step_cases(machine)]
    assert {"step/8b/bf16", "step/12b/nvfp4"} <= set(names)
