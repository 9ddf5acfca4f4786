"""Elements are read from their folders; what they need is what experiments make."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.experiments.elements import curves_of, elements_of, load_elements, runs_of

FIGURES = Path(__file__).parents[2] / "paper_figures"


def write_element(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "paper.yaml").write_text(text)


def test_elements_stand_in_the_papers_order(tmp_path: Path) -> None:
    for name in ("table1", "fig10", "mechanisms", "fig2", "claims_text"):
        write_element(tmp_path, name, "title: x\n")
    assert list(load_elements(tmp_path)) == ["fig2", "fig10", "table1", "claims_text", "mechanisms"]


def test_runs_come_with_their_replicas(tiny, tmp_path: Path) -> None:
    write_element(
        tmp_path, "fig2", "title: x\nneeds: {runs: [12b_fp8, 12b_rht4], evaluations: [12b_nvfp4]}\n"
    )
    element = load_elements(tmp_path)["fig2"]
    assert runs_of(element, tiny) == ["12b_fp8", "12b_fp8_seed2", "12b_rht4", "12b_nvfp4"]


def test_noise_is_borrowed_from_runs_that_the_tier_repeats(tiny, tmp_path: Path) -> None:
    """Of both only 12b_nvfp4 has a replica at the tiny tier; the other would be trained for nothing."""
    write_element(tmp_path, "fig2", "title: x\nneeds: {runs: [12b_rht4], noise: [12b_nvfp4, 12b_rht128]}\n")
    element = load_elements(tmp_path)["fig2"]
    assert runs_of(element, tiny) == curves_of(element, tiny) == ["12b_rht4", "12b_nvfp4", "12b_nvfp4_seed2"]
    write_element(tmp_path, "fig3", "title: x\nneeds: {noise: [12b_fp9]}\n")
    with pytest.raises(ValueError, match=r"fig3/paper\.yaml: needs: no run '12b_fp9'.*'12b_fp8'"):
        runs_of(load_elements(tmp_path)["fig3"], tiny)


def test_unknown_run_of_an_element_is_named(tiny, tmp_path: Path) -> None:
    write_element(tmp_path, "fig2", "title: x\nneeds: {runs: [12b_fp9]}\n")
    with pytest.raises(ValueError, match=r"fig2/paper\.yaml: needs: no run '12b_fp9'.*'12b_fp8'"):
        runs_of(load_elements(tmp_path)["fig2"], tiny)


def test_unknown_need_is_named(tmp_path: Path) -> None:
    write_element(tmp_path, "fig2", "title: x\nneeds: {run: []}\n")
    with pytest.raises(ValueError, match=r"fig2/paper\.yaml: unknown key 'needs\.run'.*'runs'"):
        load_elements(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title: x\nneeds: {runs: 12b_fp8}\n", "needs.runs: Input should be a list, found '12b_fp8'"),
        ("title: x\nneeds: {runs: 3}\n", "needs.runs: Input should be a list, found 3"),
        ("title: x\nneeds: [12b_fp8]\n", "needs: Input should be"),
        ("title: x\nneeds: {bench: maybe}\n", "needs.bench: Input should be a valid boolean"),
        ("title: x\nclaims: C1\n", "claims: Input should be a list, found 'C1'"),
        ("title: x\nclaims: [null]\n", "claims.0: Input should be a valid string"),
        ("title:\n", "title: Input should be a valid string"),
        ("caption: x\n", "key 'title' is missing"),
        ("title: x\ntitel: y\n", "unknown key 'titel'; did you mean 'title'?"),
    ],
)
def test_what_an_element_says_wrongly_is_named(text: str, words: str, tmp_path: Path) -> None:
    write_element(tmp_path, "fig2", text)
    with pytest.raises(ValueError, match=r"fig2/paper\.yaml: ") as caught:
        load_elements(tmp_path)
    assert words in str(caught.value)


def test_a_folder_that_no_rule_can_be_named_after_is_told(tmp_path: Path) -> None:
    write_element(tmp_path, "fig 9", "title: x\n")
    with pytest.raises(ValueError, match=r"fig 9/paper\.yaml: 'fig 9' is no name of an element"):
        load_elements(tmp_path)


def test_runs_say_which_elements_use_them_as_the_elements_do(tiny) -> None:
    """paper_figures/<element>/paper.yaml and configs/experiments tell the same story."""
    elements = load_elements(FIGURES)
    for element in elements.values():
        for name in runs_of(element, tiny):
            assert element.name in tiny.run(name).elements, (
                f"paper_figures/{element.name}/paper.yaml needs {name}, whose elements in "
                f"{tiny.run(name).derived.file} are {tiny.run(name).elements}"
            )
    for run in tiny.runs.values():
        for name in run.elements:
            assert run.name in runs_of(elements[name], tiny), (
                f"{run.name} names {name}, which does not need it"
            )


def test_a_run_that_names_no_element_or_claim_is_told(tiny, tmp_path: Path) -> None:
    assert elements_of(tiny, tmp_path) == {}
    write_element(tmp_path, "fig2", "title: x\n")
    with pytest.raises(ValueError, match=r"\.yaml: runs\.\w+\.elements: there is no 'fig"):
        elements_of(tiny, tmp_path)
    assert list(elements_of(tiny, FIGURES)) == list(load_elements(FIGURES))
    claimed = {claim for run in tiny.runs.values() for claim in run.claims}
    for name in {element for run in tiny.runs.values() for element in run.elements} - {"fig2"}:
        write_element(tmp_path, name, "title: x\n")
    with pytest.raises(ValueError, match=r"\.claims: there is no 'C"):
        elements_of(tiny, tmp_path)
    assert claimed, "the runs name claims"
