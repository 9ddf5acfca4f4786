"""The words of a verdict: what a tier lacks, and large numbers."""

from __future__ import annotations

import math

import pytest
from made_cases import LARGE, REACH, SMALL

from repro.analysis.verdicts import Reach, Scale, human


def test_reach_says_what_is_lacking_and_why() -> None:
    missing = REACH.missing(SMALL)
    assert missing.startswith(
        "600k of at least 1B parameters, 0.13 of at least 100 tokens a parameter: the paper shows it there"
    )
    assert REACH.missing(LARGE) == ""


def test_the_least_scale_itself_is_within_reach() -> None:
    reach = Reach("why", parameters=10, tokens=20, tokens_per_parameter=2)
    assert reach.missing(Scale("tiny", 10, 20)) == ""
    assert not reach.missing_model(Scale("tiny", 10, 20))
    assert reach.missing(Scale("tiny", 9, 20)).startswith("9 of at least 10 parameters:")
    assert Reach("why", tokens=20).missing(Scale("tiny", 10, 19)) == "19 of at least 20 tokens: why"


@pytest.mark.parametrize(
    ("number", "words"), [(1.3e12, "1.3T"), (8.08e9, "8.08B"), (81920, "81.9k"), (math.pi, "3.14"), (0, "0")]
)
def test_large_numbers_in_words(number: float, words: str) -> None:
    assert human(number) == words
