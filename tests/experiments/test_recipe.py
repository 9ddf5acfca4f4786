"""The recipe as data: the four files, changes by dotted path, and what is refused in which words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from repro.experiments.operand_rule import HADAMARD_SIZES, OperandRule
from repro.experiments.recipe import GEMM_OPERANDS, Recipe, load_recipe

RECIPES = Path(__file__).parents[2] / "configs" / "recipes"
NAMES = ("bf16", "fp8_block", "mxfp4", "nvfp4")
SIGNED = {"hadamard": 16, "signs": "fixed"}


@pytest.fixture
def nvfp4() -> Recipe:
    return load_recipe(RECIPES / "nvfp4.yaml")


def test_every_recipe_file_is_tested_here() -> None:
    assert sorted(path.stem for path in RECIPES.glob("*.yaml")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_recipe_files_load_and_come_back_from_their_own_dump(name: str) -> None:
    recipe = load_recipe(RECIPES / f"{name}.yaml")
    assert recipe.name == name
    assert Recipe.model_validate(yaml.safe_load(yaml.safe_dump(recipe.model_dump()))) == recipe
    assert recipe.bf16_blocks.first == recipe.bf16_blocks.last == 0, "counts belong to the run"


def test_the_full_method_is_figure_5(nvfp4: Recipe) -> None:
    for gemm, operands in GEMM_OPERANDS.items():
        for operand in operands:
            rule = nvfp4.rule(gemm, operand)
            assert rule.format == "nvfp4"
            assert rule.blocks == ("2d" if operand == "w" else "1d")
            assert rule.rounding == ("sr" if operand == "g" else "rne")
            assert (rule.hadamard, rule.signs) == ((16, "fixed") if gemm == "wgrad" else (0, "none"))
            assert rule.scale_order == "te"


def test_which_tensors_look_the_same_to_both_of_their_gemms(nvfp4: Recipe) -> None:
    def same(recipe: Recipe) -> str:
        return "".join(tensor for tensor in "xwg" if recipe.same_representation(tensor))

    assert same(nvfp4) == "w"
    assert same(load_recipe(RECIPES / "bf16.yaml")) == "xwg"
    assert same(nvfp4.with_changes({"*.w.blocks": "1d"})) == ""
    assert same(nvfp4.with_changes({"*.w.blocks": "1d_shared"})) == "w"
    assert same(nvfp4.with_changes({"*.w.rounding": "sr"})) == "", "each GEMM draws its own bits"
    assert same(nvfp4.with_changes({"fprop.w.blocks": "1d"})) == ""
    assert same(nvfp4.with_changes({"fprop": "bf16"})) == "", "BF16 forward, quantised backward"
    transformed = {f"{gemm}.*.{key}": value for gemm in ("fprop", "dgrad") for key, value in SIGNED.items()}
    assert same(nvfp4.with_changes(transformed)) == "", "each transform acts along another dimension"


def test_changes_reach_what_they_name_and_nothing_else(nvfp4: Recipe) -> None:
    changed = nvfp4.with_changes({"wgrad.*.hadamard": 4, "fprop.w.blocks": "1d", "dgrad.g": "bf16"})
    assert changed.wgrad.x.hadamard == changed.wgrad.g.hadamard == 4
    assert changed.wgrad.x.signs == "fixed"
    assert changed.fprop.w.blocks == "1d"
    assert changed.dgrad.w == nvfp4.dgrad.w
    assert changed.dgrad.g == OperandRule(format="bf16")
    assert nvfp4 == load_recipe(RECIPES / "nvfp4.yaml"), "the base changed"
    assert nvfp4.with_changes({}) == nvfp4


def test_later_changes_win(nvfp4: Recipe) -> None:
    changed = nvfp4.with_changes({"*.g.rounding": "rne", "dgrad.g.rounding": "sr"})
    assert (changed.dgrad.g.rounding, changed.wgrad.g.rounding) == ("sr", "rne")


def test_bf16_in_place_of_a_rule_or_a_gemm(nvfp4: Recipe) -> None:
    changed = nvfp4.with_changes({"fprop": "bf16", "dgrad.w": {"format": "mxfp4", "blocks": "2d"}})
    assert changed.fprop.x == changed.fprop.w == OperandRule(format="bf16")
    assert changed.dgrad.w == OperandRule(format="mxfp4", blocks="2d"), "a mapping replaces the rule"
    assert nvfp4.in_bf16().model_dump(exclude={"name"}) == load_recipe(RECIPES / "bf16.yaml").model_dump(
        exclude={"name"}
    )


@pytest.mark.parametrize("signs", ["none", "fixed", "per_transform"])
def test_a_new_transform_wants_its_signs_said(nvfp4: Recipe, signs: str) -> None:
    """Unsaid they would be none, and a transform without signs is not random."""
    told = r"fprop\.x: hadamard: 32 needs signs: fixed, per_transform, or none"
    with pytest.raises(ValueError, match=told):
        nvfp4.with_changes({"fprop.*.hadamard": 32})
    with pytest.raises(ValueError, match=told.replace("fprop", "wgrad")):
        nvfp4.with_changes({"wgrad.*.hadamard": 0}).with_changes({"wgrad.*.hadamard": 32})
    changed = nvfp4.with_changes({"fprop.*.hadamard": 32, "fprop.*.signs": signs})
    assert (changed.fprop.x.hadamard, changed.fprop.w.signs) == (32, signs)
    assert Recipe.model_validate(changed.model_dump()) == changed, "as a frozen run is read"


@pytest.mark.parametrize("signs", [{}, {"signs": None}])
def test_a_rule_with_a_transform_wants_its_signs_said(signs: dict) -> None:
    with pytest.raises(ValueError, match="hadamard: 16 needs signs"):
        OperandRule.model_validate({"format": "nvfp4", "hadamard": 16, **signs})
    assert OperandRule.model_validate({"format": "nvfp4", **signs}).signs == "none"


def test_no_transform_has_no_signs(nvfp4: Recipe) -> None:
    changed = nvfp4.with_changes({"wgrad.*.hadamard": 0})
    assert changed.wgrad.x.signs == changed.wgrad.g.signs == "none"
    assert changed == nvfp4.with_changes({"wgrad.*.hadamard": 0, "wgrad.*.signs": "none"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wgrd.x.hadamard": 4}, r"no key 'wgrd'; did you mean 'wgrad'"),
        ({"wgrad.x.hadamrd": 4}, r"no key 'hadamrd'; did you mean 'hadamard'"),
        ({"wgrad.*.hadamrd": 4}, r"no key 'hadamrd'; did you mean 'hadamard'"),
        ({"*.y.rounding": "sr"}, r"change '\*\.y\.rounding': no key 'y'"),
        ({"wgrad.x.hadamard.size": 4}, r"hadamard is 16 and has no size"),
        ({"fprop": "bf16", "fprop.w.blocks": "2d"}, r"fprop is 'bf16' and has no w\.blocks"),
        ({"fprop.x.format": "nvfp5"}, r"fprop\.x\.format.*'nvfp5'.*did you mean 'nvfp4'"),
        ({"fprop.x": "fb16"}, r"fprop\.x\.format.*unknown format 'fb16'"),
        (
            {"fprop.x.rounding": "stochastic"},
            r"fprop\.x\.rounding: 'stochastic' is no valid value; known: rne, sr",
        ),
        ({"fprop.w.blocks": "2D"}, r"fprop\.w\.blocks.*'2D'.*did you mean '2d'"),
        ({"wgrad.*.hadamard": 12}, r"wgrad\.x\.hadamard.*size 12.*the nearest is 8"),
        ({"wgrad.*.hadamard": 256}, r"powers of two up to 128"),
        ({"wgrad.x.hadamard": 4}, r"wgrad: x\.hadamard is 4 but g\.hadamard is 16"),
        ({"wgrad.g.signs": "none"}, r"wgrad: x\.signs is fixed but g\.signs is none"),
        ({"wgrad.*.blocks": "1d_shared"}, r"cannot be combined with blocks: 1d_shared"),
        ({"fprop.w.format": "bf16"}, r"fprop\.w: blocks: 2d has no effect on a BF16 operand"),
        ({"dgrad.g.format": "bf16"}, r"dgrad\.g: rounding: sr has no effect on a BF16 operand"),
        ({"wgrad.x": {"format": "nvfp4", "block": "1d"}}, r"wgrad\.x\.block'?; did you mean 'blocks'"),
        ({"fprop": {"x": "bf16"}}, r"'fprop\.w' is missing"),
        ({"bf16_blocks.first": -1}, r"bf16_blocks\.first"),
    ],
)
def test_what_is_refused_and_in_which_words(nvfp4: Recipe, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nvfp4.with_changes(changes)


def test_a_bf16_operand_may_be_transformed_beside_a_quantised_one(nvfp4: Recipe) -> None:
    """Otherwise one operand of Wgrad alone could not be quantised with the transform on."""
    transformed = {"format": "bf16", "hadamard": 16, "signs": "fixed"}
    assert nvfp4.with_changes({"wgrad.x": transformed}).wgrad.x.format == "bf16"
    with pytest.raises(ValueError, match=r"x\.hadamard is 0 but g\.hadamard is 16"):
        nvfp4.with_changes({"wgrad.x": "bf16"})


@pytest.mark.parametrize("size", HADAMARD_SIZES)
def test_every_size_of_the_transform_is_a_recipe(nvfp4: Recipe, size: int) -> None:
    assert nvfp4.with_changes({"wgrad.*.hadamard": size}).wgrad.g.hadamard == size


def test_blocks_in_bf16(nvfp4: Recipe) -> None:
    recipe = nvfp4.with_changes({"bf16_blocks": {"first": 2, "last": 8}})
    assert sorted(recipe.blocks_in_bf16(62)) == [0, 1, *range(54, 62)]
    assert len(recipe.blocks_in_bf16(62)) / 62 == pytest.approx(
        0.161, abs=5e-4
    )  # the paper's 16 % (Section 4.1)
    assert recipe.blocks_in_bf16(10) == frozenset(range(10))
    with pytest.raises(ValueError, match=r"first 2 and the last 8 .* the model has 9 blocks"):
        recipe.blocks_in_bf16(9)


def test_recipes_are_frozen(nvfp4: Recipe) -> None:
    with pytest.raises(ValidationError):
        nvfp4.fprop.x.rounding = "sr"


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(ValueError, match=r"mine\.yaml: no such file"):
        load_recipe(path)
    path.write_text("name: mine\nfprop: bf16\ndgrad: bf16\nwgard: bf16\n")
    with pytest.raises(ValueError, match=r"mine\.yaml: .*wgard'?; did you mean 'wgrad'"):
        load_recipe(path)


def test_the_schema_does_not_need_torch() -> None:
    code = "import sys, repro.experiments.recipe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_recipe_is_known_by_its_name_wherever_one_stands(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe("mxfp4") == load_recipe(RECIPES / "mxfp4.yaml")
    (tmp_path / "nvfp4.yaml").write_text(
        (RECIPES / "bf16.yaml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    assert load_recipe("nvfp4.yaml") == load_recipe(RECIPES / "bf16.yaml"), "a file of the user's"
    with pytest.raises(ValueError, match=r"nvpf4\.yaml: no such file.*nvfp4\.yaml"):
        load_recipe("nvpf4")
