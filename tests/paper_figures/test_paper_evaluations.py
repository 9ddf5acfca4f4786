"""Table 2 and Figure 3 from the table that the paper tier's evaluation writes: names, groups, standard errors."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from synthetic_results import REPO

from paper_figures.__main__ import run
from paper_figures.fig3 import figure as fig3
from paper_figures.table2 import figure as table2
from repro.analysis.paper import load_paper
from repro.evaluate.harness import read_score
from repro.evaluate.settings import EvalTask, load_settings
from repro.evaluate.table import COLUMNS, rows_of_checkpoint
from repro.portable.csv_file import write_csv

SETTINGS = load_settings(REPO / "configs" / "evals" / "paper.yaml")


def stated(element: str) -> dict:
    return yaml.safe_load((REPO / "paper_figures" / element / "paper.yaml").read_text(encoding="utf-8"))[
        "paper"
    ]


def test_the_table_finds_every_benchmark_under_the_name_that_the_evaluation_gives_it() -> None:
    ours = {task.name: task for task in SETTINGS.tasks}
    for benchmark, name in stated("table2")["tasks"].items():
        assert ours[name].stands_for == benchmark
        [group] = [group for group, tasks in stated("table2")["groups"].items() if benchmark in tasks]
        assert ours[name].group == group.lower()
    assert set(stated("table2")["stand_ins"]) == {
        t.stands_for for t in SETTINGS.tasks if t.stands_for != t.name
    }
    assert set(fig3.BENCHMARKS) == set(stated("fig3")["panels"].values()) <= set(ours)


def harness_results(task: EvalTask, value: float) -> dict:
    """What lm-eval returns for one benchmark of 1000 items."""
    number = {f"{task.metric},{task.filter}": value, f"{task.metric}_stderr,{task.filter}": 0.02}
    names = task.harness_tasks
    counts = {name: {"original": 1000, "effective": 1000} for name in names}
    return {"results": {name: {"alias": name, **number} for name in names}, "groups": {}, "n-samples": counts}


@pytest.fixture
def evaluated(written: Path, tmp_path: Path) -> Path:
    """Invented runs, evaluated with the paper tier's benchmarks at two checkpoints."""
    results = tmp_path / "tiny"
    shutil.copytree(written, results)
    for name, value in (("12b_fp8", 0.5), ("12b_nvfp4", 0.55)):
        rows = []
        for fraction in (0.5, 1.0):
            point = SimpleNamespace(run=name, tokens=int(81920 * fraction), fraction=fraction)
            scores = {t.name: read_score(harness_results(t, value * fraction), t) for t in SETTINGS.tasks}
            rows += rows_of_checkpoint(point, SETTINGS.tasks, scores)
        write_csv(results / "evaluations" / f"{name}.csv", rows, columns=COLUMNS)
    return results


@pytest.mark.parametrize("element", ["table2", "fig3"])
def test_elements_are_made_from_it(element: str, evaluated: Path) -> None:
    for step in ("data", "draw", "claims"):
        run(element, step, evaluated, configs=REPO / "configs")
    assert (evaluated / "elements" / element / "figure.png").stat().st_size > 10_000


def test_every_row_of_the_table_has_ours_beside_the_papers_with_its_error(evaluated: Path) -> None:
    run("table2", "data", evaluated, configs=REPO / "configs")
    table = pd.read_csv(evaluated / "elements" / "table2" / "data.csv")
    paper = load_paper(REPO / "paper_figures" / "table2", REPO / "configs" / "claims.yaml")
    shown = table2.display(table, paper).set_index("accuracy (%)")
    mmlu = shown.loc["MMLU"]
    assert (mmlu["FP8"], mmlu["NVFP4"], mmlu["NVFP4 - FP8"]) == ("50.0 ± 2.0", "55.0 ± 2.0", "+5.0 ± 2.8")
    assert (mmlu["FP8, paper"], mmlu["NVFP4, paper"]) == ("77.36", "76.57")
    eight = 2.0 / math.sqrt(8)  # Global MMLU: the mean of eight languages
    assert shown.loc["Global MMLU"]["FP8"] == f"50.0 ± {eight:.1f}"
    assert shown.loc["AGIEval English (multiple choice)"]["FP8, paper"] == "67.01"
    assert "MATH 500" in shown.index, "Figure 3's benchmark is evaluated too"


def test_the_verdict_counts_the_benchmarks(evaluated: Path) -> None:
    for step in ("data", "claims"):
        run("table2", step, evaluated, configs=REPO / "configs")
    verdicts = json.loads((evaluated / "elements" / "table2" / "claims.json").read_text(encoding="utf-8"))
    assert [verdict["verdict"] for verdict in verdicts] == ["not measurable"] * 3, (
        "all is there, on a small model"
    )
    [scores] = [verdict for verdict in verdicts if verdict["claim"] == "T2"]
    assert scores["ours"].startswith("14 of 14 benchmarks evaluated; AGIEval English CoT as multiple choice")
