"""A mistake in `common` of a tier file is told once, where it stands; a family's own mistake at the family."""

from __future__ import annotations

import re

import pytest

TIER = "tiers/tiny.yaml"
OPTIMIZER = "eps: 1.0e-8, weight_decay: 0.1"

# What stands in the file, what is written instead -> all that the message says after the file's name.
TOLD = {
    "value": (
        ("learning_rate_max: 3.0e-3", "learning_rate_max: 300"),
        "common.learning_rate_max: Input should be less than or equal to 1, found 300",
    ),
    "value in a section": (
        (OPTIMIZER, "eps: 1.0e-8, weight_decay: 10"),
        "common.optimizer.weight_decay: Input should be less than or equal to 1, found 10",
    ),
    "value of a section that one family adds to": (
        ("sequences: 32", "sequences: 0"),
        "common.validation.sequences: Input should be greater than 0, found 0",
    ),
    "unknown key": (
        ("  warmup: 0.05  ", "  warmup: 0.05\n  warm_up: 0.05  "),
        "unknown key 'common.warm_up'; did you mean 'warmup'?",
    ),
    "missing key": (("  warmup: 0.05", "  #"), "key 'common.warmup' is missing"),
    "missing key of a section": (
        (OPTIMIZER, "eps: 1.0e-8"),
        "key 'common.optimizer.weight_decay' is missing",
    ),
    "two keys that do not fit": (
        ("micro_batch_sequences: 4", "micro_batch_sequences: 3"),
        "common: batch_sequences 4 is no multiple of micro_batch_sequences 3",
    ),
    "sequence longer than the model takes": (
        ("sequence_length_tokens: 128", "sequence_length_tokens: 4096"),
        "common.sequence_length_tokens: 4096 is more than .*",
    ),
    "a family's own value": (
        ("blend: three_phase", "blend: three_phase\n    warmup: 5"),
        "families.12b.warmup: Input should be less than or equal to 1, found 5",
    ),
    "a family's own key of a section": (
        ("validation: {every: 0.05}", "validation: {every: 5}"),
        "families.12b.validation.every: Input should be less than or equal to 1, found 5",
    ),
    "a family's own key does not fit the common one": (
        ("blend: three_phase", "blend: three_phase\n    learning_rate_max: 1.0e-5"),
        "families.12b: learning_rate_min 3e-05 is above learning_rate_max 1e-05",
    ),
    "missing in one family": (
        ("    horizon_tokens: 51200", "    #"),
        "key 'families.8b.horizon_tokens' is missing",
    ),
    "unknown family": (("  8b:\n    horizon", "  8bb:\n    horizon"), r"families.8bb.\[key\]: .*'8bb'.*"),
}


@pytest.mark.parametrize("case", TOLD)
def test_a_mistake_is_told_once_where_it_stands(case: str, configs) -> None:
    (old, new), told = TOLD[case]
    configs.edit(TIER, old, new)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are checked below
        configs.load()
    place, words = f"{configs.folder / TIER}: ", str(caught.value)
    pattern = told if ".*" in told else re.escape(told)
    assert words.startswith(place)
    assert re.fullmatch(pattern, words.removeprefix(place)), words


def test_mistakes_of_both_kinds_are_told_together(configs) -> None:
    configs.edit(TIER, "learning_rate_max: 3.0e-3", "learning_rate_max: 300")
    configs.edit(TIER, "blend: three_phase", "blend: three_phase\n    learning_rate_max: 30")
    with pytest.raises(ValueError, match="found") as caught:
        configs.load()
    assert re.findall(r"(\S+): Input.*?found (\d+)", str(caught.value)) == [
        ("families.12b.learning_rate_max", "30"),
        ("common.learning_rate_max", "300"),
    ]
