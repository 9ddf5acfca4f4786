"""Layouts: what fits, what is refused and with which words."""

import pytest

from repro.cluster import fit
from repro.cluster.layout import Layout, linear_shapes, load_layout, stages, state_bytes
from repro.cluster.paths import decide
from repro.experiments import load


def findings(segment, layout, *, emulate=False, **options):
    return fit.check(segment, layout, decide(segment.recipe, emulate=emulate), **options)


def errors(*arguments, **options):
    return [finding.text for finding in findings(*arguments, **options) if finding.level == "error"]


def with_tensor(layout, tensor):
    families = {name: {**spread.model_dump(), "tensor": tensor} for name, spread in layout.families.items()}
    return Layout.model_validate({**layout.model_dump(), "families": families})


@pytest.mark.parametrize("name", ["gb200", "b200x8"])
def test_every_run_fits_the_blackwell_layouts(paper, segment, layouts, name):
    for run in paper.runs:
        assert not errors(segment(run), layouts[name]), run


def test_every_run_fits_hopper_when_emulated(paper, segment, layouts):
    for run in paper.runs:
        assert not errors(segment(run), layouts["h200x8"], emulate=run != "12b_fp8"), run


def test_trial_19_native_nvfp4_on_hopper_is_refused_with_the_way_out(segment, layouts):
    (text,) = errors(segment("8b_nvfp4"), layouts["h200x8"])
    assert "compute capability 10.0 or 10.3" in text
    assert "--emulate" in text


@pytest.mark.parametrize(("tensor", "outputs"), [(2, 11344), (4, 5672)])
def test_a_share_of_in_proj_that_four_bit_gemms_cannot_take_is_an_error(segment, layouts, tensor, outputs):
    texts = errors(segment("12b_nvfp4"), with_tensor(layouts["gb200"], tensor))
    assert any(f"N = {outputs} is no multiple of 32" in text and "in_proj" in text for text in texts), texts


@pytest.mark.parametrize(("tensor", "fits"), [(2, True), (4, True), (8, False)])
def test_tensor_parallel_degrees_of_the_8b_model(segment, layouts, tensor, fits):
    """in_proj has 18,560 outputs: 9,280 and 4,640 are multiples of 32, 2,320 is not."""
    texts = [t for t in errors(segment("8b_nvfp4"), with_tensor(layouts["gb200"], tensor)) if "in_proj" in t]
    assert (not texts) == fits, texts


def test_emulation_wants_whole_tensors(segment, layouts):
    texts = errors(segment("8b_mxfp4"), with_tensor(layouts["gb200"], 2))
    assert any("set it to 1" in text for text in texts), texts


def test_a_batch_that_does_not_divide_is_an_error(segment, layouts):
    (text,) = errors(segment("12b_nvfp4"), layouts["gb200"], num_gpus=100)
    assert "736 sequences does not divide by 100" in text


def test_states_that_do_not_fit_the_card_are_an_error(segment, layouts):
    small = Layout.model_validate({**layouts["gb200"].model_dump(), "memory_gb": 40})
    assert any("raise pipeline" in text for text in errors(segment("12b_nvfp4"), small))


def test_an_unfused_transform_is_a_warning_not_an_error(segment, layouts):
    texts = [finding.text for finding in findings(segment("12b_nvfp4"), layouts["gb200"])]
    assert any("not fused" in text for text in texts)
    assert not findings(segment("8b_nvfp4"), layouts["gb200"]), "18,560 is a multiple of 128: fused"


def test_in_proj_has_z_x_b_c_and_dt(paper):
    shapes = {shape.name: shape for shape in linear_shapes(paper.models["8b"], 1)}
    assert shapes["in_proj"].outputs == 2 * 8192 + 2 * 8 * 128 + 128
    assert shapes["out_proj"].inputs == 8192
    assert shapes["linear_qkv"].outputs == (32 + 2 * 4) * 128


@pytest.mark.parametrize("family", ["12b", "8b", "1p2b"])
def test_stages_keep_every_layer_in_order(paper, family):
    pattern = paper.models[family].pattern
    for number in (1, 2, 3, 4):
        cut = stages(pattern, number)
        assert cut.replace("|", "") == pattern
        lengths = [len(part) for part in cut.split("|")]
        assert len(lengths) == number
        assert max(lengths) - min(lengths) <= 1


def test_states_take_eighteen_bytes_a_parameter_on_one_gpu(paper, layouts):
    model = paper.models["1p2b"]
    spread = layouts["gb200"].spread("1p2b")
    assert state_bytes(model, spread, 1) == 18 * model.num_parameters()


def test_layouts_are_sized_as_the_tier_asks_for_nodes(layouts):
    for family, settings in load("paper").spec.families.items():
        asked = settings.resources.nodes * settings.resources.gpus_per_node
        for layout in layouts.values():
            assert layout.spread(family).nodes * layout.gpus_per_node == asked, f"{layout.name} {family}"


def test_an_unknown_layout_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'gb200'"):
        load_layout("gb20")
