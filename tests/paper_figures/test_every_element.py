"""Every element: its three steps run, it reads what it says, it draws from its table alone, it claims no more than
the tiny tier carries; and together they judge every claim."""

from __future__ import annotations

import io
import json
from pathlib import Path

import matplotlib
import matplotlib.text
import pandas as pd
import pytest
import yaml
from synthetic_results import REPO

from paper_figures.__main__ import FOLDER, TEXT_COLUMNS, elements, main, run
from repro.analysis import check
from repro.analysis.claims_file import load_claims
from repro.analysis.paper import load_paper
from repro.analysis.results import Results
from repro.analysis.trained_run import replica_of

CONFIGS = REPO / "configs"
EXPECTED = [
    *(f"fig{i}" for i in range(1, 15)),
    *(f"table{i}" for i in range(1, 6)),
    "mechanisms",
    "claims_text",
]


def paper_yaml(element: str) -> dict:
    return yaml.safe_load((FOLDER / element / "paper.yaml").read_text())


def test_every_figure_and_table_of_the_paper_is_there() -> None:
    assert sorted(elements()) == sorted(EXPECTED)


def test_all_claims_are_judged_once_and_the_exact_ones_hold(made: Path) -> None:
    verdicts = check.collect(made, load_claims(CONFIGS / "claims.yaml"))
    assert not check.failures(verdicts)
    exact = {verdict.claim for verdict in verdicts if verdict.kind == "exact"}
    assert exact == {"C1", "C2", "C4", "C13", "C31b", "T3", "T4", "T5"}


def test_the_tiny_tier_confirms_and_refutes_nothing_but_arithmetic(made: Path) -> None:
    for path in made.glob("elements/*/claims.json"):
        for verdict in json.loads(path.read_text()):
            if verdict["kind"] != "exact":
                assert verdict["verdict"] in ("unresolved", "not measurable", "not measured"), verdict
                assert verdict["reason"], f"{verdict['claim']} has no reason"
                if verdict["verdict"] == "not measurable":
                    assert "not measurable at this size (" in verdict["reason"], verdict
                    assert verdict["ours"] not in ("", "-"), verdict


def test_claims_listed_by_an_element_are_those_it_judges(made: Path) -> None:
    for element in elements():
        verdicts = json.loads((made / "elements" / element / "claims.json").read_text())
        assert [verdict["claim"] for verdict in verdicts] == paper_yaml(element)["claims"], element
        assert {verdict["element"] for verdict in verdicts} <= {element}


class Recorder(Results):
    """Results that remember which runs and files were asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, configs=CONFIGS)
        self.seen: dict[str, set] = {"runs": set(), "evaluations": set(), "mechanisms": set(), "bench": set()}

    def run(self, name: str):
        self.seen["runs"].add(replica_of(name)[0])
        return super().run(name)

    def evaluations(self, run: str):
        self.seen["evaluations"].add(run)
        return super().evaluations(run)

    def mechanisms(self, run: str):
        self.seen["mechanisms"].add(run)
        return super().mechanisms(run)

    def bench(self):
        self.seen["bench"].add(True)
        return super().bench()


@pytest.mark.parametrize("element", EXPECTED)
def test_an_element_reads_what_it_says_it_needs(element: str, written: Path) -> None:
    module = __import__(f"paper_figures.{element}.figure", fromlist=["data"])
    recorder = Recorder(written)
    module.data(recorder)
    needs = paper_yaml(element)["needs"]
    lent = {run for run in needs.get("noise", []) if recorder.replicas(run)}
    assert recorder.seen["runs"] == {*needs.get("runs", []), *lent}, f"{element}: needs.runs and .noise"
    for kind in ("evaluations", "mechanisms"):
        assert recorder.seen[kind] == set(needs.get(kind, [])), f"{element}: needs.{kind}"
    assert bool(recorder.seen["bench"]) == needs.get("bench", False), f"{element}: needs.bench"


@pytest.mark.parametrize("element", EXPECTED)
def test_an_element_draws_from_its_table_alone(element: str, made: Path) -> None:
    """draw() sees the table and paper.yaml, no results folder; all text of the picture has to be drawable."""
    module = __import__(f"paper_figures.{element}.figure", fromlist=["draw"])
    table = pd.read_csv(made / "elements" / element / "data.csv", dtype=TEXT_COLUMNS)
    with matplotlib.rc_context(fname=FOLDER / "style.mplstyle"):
        figure = module.draw(table, load_paper(FOLDER / element, CONFIGS / "claims.yaml"))
        picture = io.BytesIO()
        figure.savefig(picture, dpi=30)
    assert picture.tell() > 2_000
    words = " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))
    assert words.count(paper_yaml(element)["title"].split(":")[0]) == 1, "no title"
    if element not in ("fig1", "table1"):
        assert "not the paper's result" in " ".join(words.split()), "a reduced tier must say so"


@pytest.mark.parametrize("element", ["fig11", "table5"])
def test_the_draw_step_writes_picture_document_and_table(element: str, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elements" / element
    folder.mkdir(parents=True)
    (folder / "data.csv").write_bytes((made / "elements" / element / "data.csv").read_bytes())
    names = {path.name for path in run(element, "draw", tmp_path, configs=CONFIGS)}
    assert names == {"figure.png", "figure.pdf"} | ({"table.md"} if element == "table5" else set())
    assert (folder / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_a_recorded_table_carries_its_provenance(made: Path) -> None:
    for element in ("fig2", "fig8", "fig3", "table2", "mechanisms", "fig5"):
        table = pd.read_csv(made / "elements" / element / "data.csv", dtype=TEXT_COLUMNS)
        for column in ("tier", "git_commit", "run_hash", "device", "torch", "seed", "seconds"):
            assert table[column].notna().all(), f"{element}: {column}"
        assert table["git_commit"].eq("0" * 12).all(), "a hash was read as a number"


def test_every_drawn_series_is_a_needed_run() -> None:
    for element in elements():
        content = paper_yaml(element)
        for series in content.get("series", []):
            assert series["run"] in content["needs"]["runs"], f"{element}: {series['run']}"


def test_every_judgement_has_its_reason() -> None:
    for element in elements():
        for claim, rule in paper_yaml(element).get("judge", {}).items():
            for key in ("tolerance", "equal_within"):
                assert key not in rule or rule.get("because"), f"{element}.{claim}: {key} without because"
            assert "reach" not in rule or rule["reach"]["because"], (
                f"{element}.{claim}: reach without because"
            )


def test_tolerances_agree_with_the_claims_file() -> None:
    claims = load_claims(CONFIGS / "claims.yaml")
    for element in elements():
        for claim, rule in paper_yaml(element).get("judge", {}).items():
            stated = claims[claim].numbers.get("tolerance")
            assert stated is None or stated == rule["tolerance"], f"{element}.{claim}"


def test_the_papers_curves_end_where_the_claims_say() -> None:
    """Reading of the vector figures against the numbers noted with the claims, in %-points."""
    ends = {
        "fig8": {
            "1p2b_last4": -3.23,
            "1p2b_last4_2d": -2.68,
            "1p2b_last4_2d_rht": -2.24,
            "1p2b_last4_2d_rht_sr": -2.11,
        },
        "fig11": {
            "1p2b_rht_wgrad": -2.39,
            "1p2b_last4": -2.92,
            "1p2b_rht_dgrad": -3.16,
            "1p2b_rht_fprop": -3.35,
        },
        "fig14": {"1p2b_weights_same": -1.14, "1p2b_weights_2d": -1.67, "1p2b_weights_different": -2.16},
        "fig7": {"12b_nvfp4": -1.47, "12b_switch_both_82": 0.05, "12b_switch_forward_82": -0.52},
    }
    for element, stated in ends.items():
        paper = load_paper(FOLDER / element, CONFIGS / "claims.yaml")
        for run_name, value in stated.items():
            end = paper.curve(run_name).tail(4)["value"].mean()
            assert end == pytest.approx(value, abs=0.05), f"{element}: {run_name}"


def test_an_unknown_element_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no element 'fig22'; did you mean 'fig2'"):
        run("fig22", "data", tmp_path)


def test_a_missing_table_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["fig8", "draw", "--results", str(tmp_path), "--configs", str(CONFIGS)]) == 1
    assert "fig8/data.csv: missing; make it with" in capsys.readouterr().err


def test_a_missing_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "runs").mkdir()
    assert main(["fig8", "data", "--results", str(tmp_path), "--configs", str(CONFIGS)]) == 1
    assert "no frozen run '1p2b_bf16'" in capsys.readouterr().err
