"""Which rows a run takes, and what becomes of a measurement that cannot be made."""

from __future__ import annotations

import re

import pytest

from repro.bench.rows import Case, Measurement, MissingError, Target, choose, only_elsewhere, run_case


def _case(name: str, **options) -> Case:
    return Case(name, "words", lambda: Measurement(1.0), **options)


CASES = [_case("qdq/nvfp4/1x16/rne"), _case("qdq/nvfp4/16x16/rne"), _case("step/12b/nvfp4", is_long=True)]


def _names(*patterns: str, is_full: bool = False) -> list[str]:
    return [case.name for case in choose(CASES, patterns, is_full=is_full)]


def test_a_short_run_leaves_long_rows_out_unless_they_are_asked_for() -> None:
    assert _names() == ["qdq/nvfp4/1x16/rne", "qdq/nvfp4/16x16/rne"]
    assert _names(is_full=True) == [case.name for case in CASES]
    assert _names("step") == ["step/12b/nvfp4"]


def test_a_pattern_is_part_of_a_name_and_a_wildcard_the_whole() -> None:
    assert _names("NVFP4/1X16") == ["qdq/nvfp4/1x16/rne"]
    assert _names("qdq/*/rne") == ["qdq/nvfp4/1x16/rne", "qdq/nvfp4/16x16/rne"]
    assert _names("step", "16x16") == ["qdq/nvfp4/16x16/rne", "step/12b/nvfp4"]


def test_a_pattern_that_matches_nothing_names_the_nearest_group() -> None:
    with pytest.raises(ValueError, match=r"no row matches 'stepp'; did you mean 'step'\? Groups: qdq, step"):
        _names("qdq", "stepp")


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("stap/12b/*", "step/12b/*"),
        ("qdd/nvfp4/1x16/rne", "qdq/nvfp4/1x16/rne"),
        ("qdq/nvfp4/16x61/rne", "qdq/nvfp4/16x16/rne"),
        ("stap/nothing/like/that/at/all", "step"),
    ],
)
def test_a_pattern_with_a_mistyped_group_is_mended_there(pattern: str, meant: str) -> None:
    """The nearest of whole names was one of another group that shares the rest."""
    with pytest.raises(ValueError, match=f"did you mean {re.escape(repr(meant))}"):
        _names(pattern)


def test_rows_of_another_kind_of_device_are_known_and_say_where_they_are_measured() -> None:
    others = [CASES[0], _case("qdq/nvfp4/1x16/rne/amax-given"), _case("wide/nvfp4")]
    elsewhere = only_elsewhere(CASES, others, kind="GPU")
    assert [case.name for case in elsewhere] == ["qdq/nvfp4/1x16/rne/amax-given", "wide/nvfp4"]

    def chosen(*patterns: str) -> list[str]:
        return [case.name for case in choose(CASES, patterns, is_full=False, elsewhere=elsewhere)]

    assert chosen("qdq/nvfp4/1x16") == ["qdq/nvfp4/1x16/rne"], "those that can be measured are enough"
    assert chosen("16x16", "amax-given") == ["qdq/nvfp4/16x16/rne", "qdq/nvfp4/1x16/rne/amax-given"]
    assert chosen() == _names()
    with pytest.raises(ValueError, match="did you mean 'wide'"):
        chosen("wede")
    row = run_case(elsewhere[0])
    assert (row.note, row.failed, row.measured) == ("measured on a GPU only", False, None)


def test_what_a_machine_lacks_is_a_note_and_no_failure() -> None:
    def lacks() -> Measurement:
        raise MissingError("needs sm_100")

    def lacks_a_package() -> Measurement:
        import no_such_package  # noqa: F401

    for measure, note in ((lacks, "needs sm_100"), (lacks_a_package, "needs no_such_package")):
        row = run_case(Case("a/b", "words", measure, Target(">=", 0.9)))
        assert (row.measured, row.note, row.failed, row.met, row.target) == (
            None,
            note,
            False,
            None,
            ">= 0.90",
        )


def test_a_measurement_that_breaks_is_told_from_one_that_is_missing() -> None:
    def breaks() -> Measurement:
        raise RuntimeError("out of memory\nstack")

    row = run_case(Case("a/b", "words", breaks))
    assert (row.failed, row.note) == (True, "failed: out of memory")


@pytest.mark.parametrize(
    ("target", "ratio", "met"),
    [(Target(">=", 0.9), 0.9, True), (Target(">=", 0.9), 0.89, False), (Target("<=", 1.02), 1.03, False)],
)
def test_a_target_is_a_bound_in_its_own_direction(target: Target, ratio: float, met: bool) -> None:
    assert run_case(Case("a/b", "words", lambda: Measurement(2.0, ratio=ratio), target)).met is met
