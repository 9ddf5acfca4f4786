"""Model files: the paper's numbers are in them, stand-ins keep what they promise, bad shapes get plain messages."""

import pytest
from model_specs import FAMILIES, ROOT, TIERS, from_config, small
from pydantic import ValidationError

from repro.experiments.model import load_model_spec
from repro.experiments.recipe import load_recipe

# Tables 3, 4, 5: blocks, hidden, FFN, query heads, key/value heads, state, groups.
PAPER_TABLES = {
    "12b": (62, 5120, 20480, 40, 8, 128, 8),
    "8b": (52, 4096, 21504, 32, 4, 128, 8),
    "1p2b": (20, 2048, 6144, 16, 8, None, None),
}
# Embedding and untied head of 131072 tokens included. Nemotron Nano 2 and Nemotron-H state 12.31e9 and 8.1e9 for
# these shapes; 1,291,929,600 is the count that others report for the paper's 1.2B model.
PAPER_PARAMETERS = {"12b": 12_314_591_360, "8b": 8_084_075_520, "1p2b": 1_291_929_600}
PAPER_BLOCK_KINDS = {"12b": "28 M 28 - 6 *", "8b": "24 M 24 - 4 *", "1p2b": "0 M 20 - 20 *"}
EXPERIMENT_KEYS = {
    "12b": {"first2_last8", "last4", "first1_last2", "none"},
    "8b": {"last8", "none"},
    "1p2b": {"last4", "last2", "last1", "first4", "first2_last2", "none"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_paper_models_state_the_papers_tables(family):
    spec = from_config("paper", family)
    found = (
        spec.num_blocks,
        spec.hidden_size,
        spec.ffn_hidden_size,
        spec.num_attention_heads,
        spec.num_key_value_heads,
        spec.mamba_state_size,
        spec.mamba_num_groups,
    )
    assert found == PAPER_TABLES[family]
    assert " ".join(f"{spec.pattern.count(s)} {s}" for s in "M-*") == PAPER_BLOCK_KINDS[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_paper_models_have_the_papers_parameter_counts(family):
    assert from_config("paper", family).num_parameters() == PAPER_PARAMETERS[family]


def test_bf16_blocks_of_the_12b_model_hold_16_per_cent_of_its_linear_layers():
    spec = from_config("paper", "12b")
    recipe = load_recipe(ROOT / "configs" / "recipes" / "nvfp4.yaml")
    recipe = recipe.model_copy(update={"bf16_blocks": spec.bf16_blocks["first2_last8"]})
    kept = recipe.blocks_in_bf16(spec.num_blocks)
    assert kept == {0, 1, 54, 55, 56, 57, 58, 59, 60, 61}
    assert round(100 * len(kept) / spec.num_blocks) == 16
    weights = spec.linear_parameters_by_block()
    assert round(100 * sum(weights[i] for i in kept) / sum(weights), 1) == 17.2
    assert "*" not in [spec.pattern[i] for i in kept], "the paper's BF16 blocks hold no attention"


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tier_knows_the_bf16_blocks_that_experiments_name(tier, family):
    assert set(from_config(tier, family).bf16_blocks) == EXPERIMENT_KEYS[family]


@pytest.mark.parametrize("tier", ["tiny", "proxy"])
@pytest.mark.parametrize("family", FAMILIES)
def test_stand_ins_keep_the_share_of_bf16_blocks_to_the_nearest_block(tier, family):
    paper, stand_in = from_config("paper", family), from_config(tier, family)
    for key, counts in paper.bf16_blocks.items():
        wanted = (counts.first + counts.last) / paper.num_blocks * stand_in.num_blocks
        found = stand_in.bf16_blocks[key].first + stand_in.bf16_blocks[key].last
        assert abs(found - wanted) <= 0.55, (
            f"{stand_in.name} {key}: {found} blocks, the share asks for {wanted:.2f}"
        )


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_kept_widths_are_multiples_of_the_quantisation_block(tier, family):
    spec = from_config(tier, family)
    for field in ("vocab_size", "hidden_size", "ffn_hidden_size", "head_dim"):
        assert getattr(spec, field) % 32 == 0, f"{spec.name}: {field} {getattr(spec, field)}"


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("hybrid", {"num_key_value_heads": 3}, "3 key/value heads do not divide the 4 attention heads"),
        ("hybrid", {"num_attention_heads": 6}, "6 heads do not divide hidden_size 32"),
        ("hybrid", {"pattern": "M-xM"}, "symbol 'x' at position 2 is none of M (Mamba-2)"),
        ("hybrid", {"pattern": ""}, "at least one block"),
        ("hybrid", {"mamba_head_dim": 4}, "8 heads x mamba_head_dim 4 = 32, but the inner width must be 2 x"),
        ("hybrid", {"mamba_num_groups": 3}, "3 groups do not divide the 8 Mamba heads"),
        (
            "hybrid",
            {"mamba_state_size": None},
            "mamba_state_size: missing, but the pattern has Mamba-2 blocks",
        ),
        ("hybrid", {"rope_base": 1e4}, "the hybrid has no position embeddings"),
        ("hybrid", {"symbols_per_block": 2}, "a hybrid has 1 pattern symbol(s) a block, not 2"),
        (
            "hybrid",
            {"bf16_blocks": {"last9": {"first": 0, "last": 9}}},
            "more than the 8 blocks of small_hybrid",
        ),
        ("transformer", {"pattern": "*--*"}, "a transformer repeats attention + feed-forward"),
        ("transformer", {"rope_base": None}, "needs rotary positions"),
        ("transformer", {"mamba_state_size": 4}, "set, but the pattern has no Mamba-2 block"),
        ("transformer", {"bf16_blocks": {"all": {"first": 2, "last": 2}}}, "first 2 + last 2 blocks in BF16"),
        ("transformer", {"hidden_size": 0}, "greater than 0"),
    ],
)
def test_shapes_that_do_not_fit_are_named_in_plain_words(kind, changes, message):
    with pytest.raises(ValidationError) as error:
        small(kind, **changes)
    assert message in str(error.value)


def test_a_misspelt_key_names_the_file_and_the_nearest_key(tmp_path):
    text = (ROOT / "configs" / "models" / "tiny" / "8b.yaml").read_text()
    path = tmp_path / "8b.yaml"
    path.write_text(text.replace("ffn_hidden_size:", "fnn_hidden_size:"))
    with pytest.raises(ValueError, match=r"8b\.yaml: .*'fnn_hidden_size'.*did you mean 'ffn_hidden_size'"):
        load_model_spec(path)
