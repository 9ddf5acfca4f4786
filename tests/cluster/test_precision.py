"""The precision walk: what is read from a built model, and every way in which it may differ from the frozen run."""

from types import SimpleNamespace

import fake_te
import pytest
import torch

from repro.cluster import precision
from repro.cluster.emulation import Clock, OperandMaker
from repro.cluster.paths import decide

SWITCHES = {"rht": True, "sr": True, "2d": True}


def native_model(segment, **changes):
    counts, symbols = segment.recipe.bf16_blocks, segment.model.symbols_per_block
    environment = decide(segment.recipe).environment
    switches = {
        "rht": environment["NVTE_NVFP4_DISABLE_RHT"] != "1",
        "sr": environment["NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING"] != "1",
        "2d": environment["NVTE_NVFP4_DISABLE_2D_QUANTIZATION"] != "1",
    }
    options = {
        "first": counts.first * symbols,
        "last": counts.last * symbols,
        "override": environment["NVTE_BACKWARD_OVERRIDE"],
    }
    return fake_te.Model(segment.model, lambda name: fake_te.native(switches), **{**options, **changes})


def emulated_model(segment):
    counts, symbols, clock = segment.recipe.bf16_blocks, segment.model.symbols_per_block, Clock(1)

    def make(name):
        return {
            kind: fake_te.EmulatedQuantizer(OperandMaker(segment.recipe, kind, layer=name, clock=clock))
            for kind in ("input", "weight", "grad_output")
        }

    return fake_te.Model(segment.model, make, first=counts.first * symbols, last=counts.last * symbols)


def check(segment, model):
    record = precision.read_before(segment.model, model.layers, model.context)
    precision.compare(record, segment.recipe, segment.model)
    return record


def test_every_native_run_of_the_paper_is_read_back_as_frozen(paper, segment):
    for run in paper.runs:
        part = segment(run)
        if decide(part.recipe).path == "te_nvfp4":
            record = check(part, native_model(part))
            assert len(record) == 12 * len(part.model.pattern), run


def test_every_emulated_run_of_the_paper_is_read_back_as_frozen(paper, segment):
    for run in paper.runs:
        part = segment(run)
        if decide(part.recipe).path == "emulated":
            check(part, emulated_model(part))


def test_the_fp8_baseline_is_read_back_as_frozen(segment):
    part = segment("12b_fp8")

    def make(name):
        kinds = {"input": 1, "weight": 2, "grad_output": 1}
        return {kind: fake_te.Float8BlockQuantizer(dimensions) for kind, dimensions in kinds.items()}

    check(part, fake_te.Model(part.model, make, first=1, last=2))


@pytest.mark.parametrize(("variable", "powers"), [("1", True), ("0", False)])
def test_fp8_scales_of_the_other_kind_than_the_environment_asks_for_are_an_error(
    segment, monkeypatch, variable, powers
):
    """The variable is read once, when transformer_engine is imported: set later it changes nothing."""
    part = segment("12b_fp8")

    def model(powers):
        kinds = {"input": 1, "weight": 2, "grad_output": 1}

        def make(name):
            return {
                kind: fake_te.Float8BlockQuantizer(dimensions, force_pow_2_scales=powers)
                for kind, dimensions in kinds.items()
            }

        return fake_te.Model(part.model, make, first=1, last=2)

    monkeypatch.setenv("NVTE_FP8_BLOCK_SCALING_FP32_SCALES", variable)
    check(part, model(not powers))
    with pytest.raises(
        ValueError, match=r"model\.layers\.1\.mixer\.up_proj: input has .* scales, which \w+ does not ask for"
    ):
        check(part, model(powers))


def test_a_parameter_that_is_not_bf16_or_not_summed_in_fp32_is_an_error():
    def stored(dtype, grad_dtype):
        return SimpleNamespace(dtype=dtype, main_grad=torch.zeros(1, dtype=grad_dtype))

    good = stored(torch.bfloat16, torch.float32)
    precision.check_storage([("embedding", good), ("head", good)])
    with pytest.raises(ValueError, match="head is kept in float32"):
        precision.check_storage([("embedding", good), ("head", stored(torch.float32, torch.float32))])
    with pytest.raises(ValueError, match="gradient of head is summed in bfloat16, not in FP32"):
        precision.check_storage([("embedding", good), ("head", stored(torch.bfloat16, torch.bfloat16))])


def test_a_layer_that_could_be_quantised_unseen_is_an_error(segment):
    part = segment("12b_nvfp4")
    layers = native_model(part).layers
    attention = fake_te.Linear({})
    attention.parameters = lambda recurse: iter(())
    in_blocks = [(name, module) for name, _, _, module in precision.named_linears(part.model, layers)]
    good = [*in_blocks, ("core_attention", attention), ("output_layer", torch.nn.Linear(2, 2))]
    precision.check_others(part.model, layers, good)
    with pytest.raises(ValueError, match=r"^output_layer is a layer of Transformer Engine"):
        precision.check_others(
            part.model, layers, [*in_blocks, ("output_layer", fake_te.WeightedLinear(2, 2))]
        )


def test_a_hybrid_fp8_format_is_an_error(segment):
    """megatron-bridge's presets use E5M2 for gradients under the same recipe name."""
    part = segment("12b_fp8")

    def make(name):
        return {
            "input": fake_te.Float8BlockQuantizer(1),
            "weight": fake_te.Float8BlockQuantizer(2),
            "grad_output": fake_te.Float8BlockQuantizer(1, "kFloat8E5M2"),
        }

    with pytest.raises(ValueError, match=r"dgrad\.g with format fp8_block of kFloat8E5M2"):
        check(part, fake_te.Model(part.model, make, first=1, last=2))


def test_trial_16_a_silent_bf16_model_is_an_error(segment):
    """What a hybrid model did under --fp4-format up to megatron-core 0.16.1: no context, no message."""
    part = segment("12b_nvfp4")
    model = native_model(part, first=len(part.model.pattern))
    with pytest.raises(
        ValueError, match=r"layer model\.layers\.2\.mixer\.in_proj .* runs fprop\.x with format bf16"
    ):
        check(part, model)


@pytest.mark.parametrize(("first", "last"), [(1, 8), (2, 7), (3, 8), (2, 9), (0, 0)])
def test_trial_18_other_bf16_layers_than_frozen_are_an_error(segment, first, last):
    part = segment("12b_nvfp4")
    with pytest.raises(ValueError, match=r"layer model\.layers\.\d+\.mixer"):
        check(part, native_model(part, first=first, last=last))


@pytest.mark.parametrize("switch", ["rht", "sr", "2d"])
def test_a_switch_of_the_native_recipe_that_did_not_take_effect_is_an_error(segment, switch):
    """An environment variable set after transformer_engine was imported changes nothing."""
    part = segment("12b_nvfp4")
    model = fake_te.Model(
        part.model, lambda name: fake_te.native({**SWITCHES, switch: False}), first=2, last=8
    )
    with pytest.raises(ValueError, match="recipe nvfp4 asks for"):
        check(part, model)


def test_signs_that_are_off_are_an_error(segment):
    part = segment("12b_nvfp4")

    def make(name):
        made = fake_te.native(SWITCHES)
        made["input"].rht_matrix_random_sign_mask_t = 0
        return made

    with pytest.raises(ValueError, match=r"wgrad\.x with signs none"):
        check(part, fake_te.Model(part.model, make, first=2, last=8))


@pytest.mark.parametrize("option", ["row_scaled_nvfp4", "nvfp4_use_4over6"])
def test_an_option_of_the_native_quantiser_that_no_recipe_has_is_an_error(segment, option):
    part = segment("12b_nvfp4")

    def make(name):
        made = fake_te.native(SWITCHES)
        setattr(made["weight"], option, True)
        return made

    with pytest.raises(ValueError, match=option):
        check(part, fake_te.Model(part.model, make, first=2, last=8))


def test_an_unknown_quantiser_is_an_error_that_names_the_layer(segment):
    part = segment("8b_nvfp4")

    class MXFP8Quantizer:
        pass

    def make(name):
        return {**fake_te.native(SWITCHES), "weight": MXFP8Quantizer()}

    with pytest.raises(
        ValueError, match=r"model\.layers\.0\.mixer\.in_proj: weight is quantised by MXFP8Quantizer"
    ):
        check(part, fake_te.Model(part.model, make, last=8))


def test_an_inherited_backward_override_is_an_error(segment):
    part = segment("12b_nvfp4")
    with pytest.raises(ValueError, match=r"runs wgrad\.x with format bf16"):
        check(part, native_model(part, override="high_precision"))
    with pytest.raises(ValueError, match="backward_override is 'dequantized'"):
        check(part, native_model(part, override="dequantized"))


@pytest.mark.parametrize("option", ["fp8_dpa", "fp8_mha"])
def test_a_recipe_that_takes_attention_along_is_an_error(segment, option):
    part = segment("12b_nvfp4")
    model = native_model(part)
    setattr(model.state["recipe"], option, True)
    with pytest.raises(ValueError, match=f"the recipe has {option}: attention's own products"):
        check(part, model)


def test_fused_gradient_accumulation_under_emulation_is_an_error(segment):
    part = segment("8b_mxfp4")
    model = emulated_model(part)
    model.layers[3].get_submodule("mlp.linear_fc2").fuse_wgrad_accumulation = True
    with pytest.raises(
        ValueError, match=r"model\.layers\.3\.mixer\.down_proj: gradient accumulation is fused"
    ):
        check(part, model)


def test_a_plain_linear_layer_in_a_quantised_block_is_an_error(segment):
    part = segment("8b_nvfp4")
    model = native_model(part)
    model.layers[1]._modules["mlp.linear_fc1"] = object()
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mixer\.up_proj .* format bf16"):
        check(part, model)


def test_a_missing_layer_is_an_error(segment):
    part = segment("8b_nvfp4")
    model = native_model(part)
    del model.layers[1]._modules["mlp.linear_fc1"]
    with pytest.raises(ValueError, match=r"layer 1 \('-'\) .* has no mlp\.linear_fc1"):
        check(part, model)
    model = native_model(part)
    record = precision.read_before(part.model, model.layers[:-1], model.context)
    with pytest.raises(ValueError, match="the record has 102 linear layers, 8b_paper has 104"):
        precision.compare(record, part.recipe, part.model)


def test_what_ran_is_read_again_after_the_first_step(segment):
    part = segment("8b_nvfp4")
    model = native_model(part)
    check(part, model)
    model.layers[0].get_submodule("mixer.in_proj").fp8 = False
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mixer\.in_proj"):
        precision.compare(precision.read_after(part.model, model.layers), part.recipe, part.model)


def test_layers_are_named_as_the_portable_models_name_theirs(segment):
    from repro.models import build_model

    for run in ("8b_nvfp4", "1p2b_last4"):
        spec = segment(run).model
        ours = {line["layer"] for line in check(segment(run), native_model(segment(run)))}
        names = {name for name, _, _ in build_model(spec, device="meta").quantizable_linears()}
        qkv = {name for name in names if name.endswith(("q_proj", "k_proj", "v_proj"))}
        assert ours - names == {name.replace("q_proj", "qkv_proj") for name in qkv if "q_proj" in name}
        assert names - ours == qkv
