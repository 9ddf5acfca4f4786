"""The cost plan against sums done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.experiments import load
from repro.experiments.cost import cost_of, flops_per_token, total, with_lineage
from repro.experiments.model import ModelSpec, load_model_spec
from repro.experiments.recipe import GEMM_OPERANDS

CONFIGS = Path(__file__).parents[2] / "configs"
PAPER = CONFIGS / "models" / "paper"


@pytest.fixture(scope="module")
def transformer() -> ModelSpec:
    return load_model_spec(PAPER / "1p2b.yaml")


def test_flops_of_the_transformer_by_hand(transformer: ModelSpec) -> None:
    """20 layers of q, k, v, o, up, down, then the head; norms count as if they multiplied (41 x 2048)."""
    linear = 20 * (2048 * 128 * (16 + 8 + 8 + 16) + 2 * 2048 * 6144)
    multiplying = linear + 131072 * 2048 + 41 * 2048
    attention = 20 * 2 * 8192 * 16 * 128
    assert flops_per_token(transformer, sequence_length_tokens=8192) == 6 * multiplying + 3 * attention


def test_flops_of_the_hybrid_by_hand() -> None:
    """28 scans in chunks of 128 tokens, 6 attentions of 40 heads; the input embedding multiplies nothing."""
    model = load_model_spec(PAPER / "12b.yaml")
    multiplying = model.num_parameters() - 131072 * 5120
    attention = 6 * 2 * 8192 * 40 * 128
    scan = 28 * 2 * (128 * (8 * 128 + 160 * 64) + 2 * 160 * 64 * 128)
    found = flops_per_token(model, sequence_length_tokens=8192)
    assert found == 3 * (2 * multiplying + attention + scan)


def test_flops_are_about_six_times_the_parameters(transformer: ModelSpec) -> None:
    for family in ("12b", "8b"):
        model = load_model_spec(PAPER / f"{family}.yaml")
        ratio = flops_per_token(model, sequence_length_tokens=8192) / model.num_parameters()
        assert 5.5 < ratio < 7.0, f"{family}: {ratio}"


def test_only_attention_grows_with_the_sequence(transformer: ModelSpec) -> None:
    short, long = (flops_per_token(transformer, sequence_length_tokens=s) for s in (1024, 2048))
    assert long - short == 3 * 20 * 2 * 1024 * 16 * 128


def test_a_run_costs_its_own_tokens(tiny) -> None:
    run = tiny.run("12b_rht4")
    cost = cost_of(tiny, run)
    assert cost.tokens == run.end_tokens - run.start_tokens
    assert cost.steps * run.step_tokens == cost.tokens
    sequence = tiny.spec.families["12b"].sequence_length_tokens
    of_one = flops_per_token(tiny.models["12b"], sequence_length_tokens=sequence)
    assert cost.flops == cost.tokens * of_one, "its parent's tokens are the parent's cost"
    rate = tiny.spec.cost.flops_per_second["nvfp4"]
    assert cost.device_hours == pytest.approx(cost.flops / rate / 3600)


def test_each_product_is_priced_by_its_operands(tiny) -> None:
    """BF16 forward: one third at BF16's rate. Weights alone quantised: no product of two NVFP4 operands."""
    rates = tiny.spec.cost.flops_per_second
    forward = cost_of(tiny, tiny.run("12b_switch_forward_82"))
    expected = forward.flops * (1 / rates["bf16"] + 2 / rates["nvfp4"]) / 3
    assert forward.device_hours * 3600 == pytest.approx(expected)
    weights = cost_of(tiny, tiny.run("1p2b_weights_same"))
    assert weights.device_hours * 3600 == pytest.approx(weights.flops / rates["bf16"])


def test_a_product_of_two_block_formats_is_priced_as_the_slower_one(configs) -> None:
    """No card multiplies them: on a cluster such a product is emulated."""
    configs.edit(
        "experiments/switch_12b.yaml", "changes: {fprop: bf16}", "changes: {fprop.x: {format: fp8_block}}"
    )
    for tier, slower, others in (("tiny", "fp8_block", "nvfp4"), ("paper", "emulated", "emulated")):
        plan = configs.load(tier)
        rates = plan.spec.cost.flops_per_second
        run = plan.run("12b_switch_forward_82")
        cost = cost_of(plan, run, emulated={run.name} if tier == "paper" else ())
        expected = cost.flops * (1 / rates[slower] + 2 / rates[others]) / 3
        assert cost.device_hours * 3600 == pytest.approx(expected), tier


def test_emulated_products_have_a_rate_of_their_own() -> None:
    """BF16 products of such a run stay BF16's; a run with a native path is priced as before."""
    paper = load("paper", configs_dir=CONFIGS)
    rates = paper.spec.cost.flops_per_second
    forward, native = paper.run("12b_switch_forward_82"), paper.run("12b_nvfp4")
    cost = cost_of(paper, forward, emulated={forward.name})
    expected = cost.flops * (1 / rates["bf16"] + 2 / rates["emulated"]) / 3
    assert cost.device_hours * 3600 == pytest.approx(expected)
    assert cost_of(paper, native, emulated={forward.name}) == cost_of(paper, native)
    both = total(paper, [forward.name, native.name], emulated={forward.name})
    assert both == cost + cost_of(paper, native), "the sum prices each as it runs"


def test_an_emulated_product_with_one_operand_in_bf16_still_pays_for_quantising_the_other() -> None:
    """The runs that quantise weights or activations alone were priced as if that cost nothing."""
    paper = load("paper", configs_dir=CONFIGS)
    rates = paper.spec.cost.flops_per_second
    weights = paper.run("1p2b_weights_different")
    used = [{weights.recipe.rule(gemm, name).format for name in both} for gemm, both in GEMM_OPERANDS.items()]
    number = sum(formats != {"bf16"} for formats in used)
    assert number > 0
    assert all("bf16" in formats for formats in used)
    cost = cost_of(paper, weights, emulated={weights.name})
    expected = cost.flops * (number / rates["emulated"] + (3 - number) / rates["bf16"]) / 3
    assert cost.device_hours * 3600 == pytest.approx(expected)


def test_a_fork_needs_its_parent_once(tiny) -> None:
    names = with_lineage(tiny, ["12b_rht4", "12b_rht128"])
    assert names == ["12b_nvfp4", "12b_rht4", "12b_rht128"]
    assert total(tiny, names).tokens == sum(tiny.run(name).num_tokens for name in names)


def test_checkpoints_count_what_is_kept(tiny) -> None:
    run = tiny.run("1p2b_bf16")
    each = tiny.models["1p2b"].num_parameters() * tiny.spec.cost.state_bytes_per_parameter
    keep_last = run.segments[0].frozen["checkpoints"]["keep_last"]
    assert cost_of(tiny, run).checkpoint_bytes == (1 + keep_last) * each


def test_a_recipe_without_a_rate_is_named(configs) -> None:
    configs.edit("tiers/tiny.yaml", "mxfp4: ", "mxfp6: ")
    plan = configs.load()
    with pytest.raises(ValueError, match=r"tiny\.yaml: cost\.flops_per_second has no rate for 'mxfp4'"):
        cost_of(plan, plan.run("8b_mxfp4"))
