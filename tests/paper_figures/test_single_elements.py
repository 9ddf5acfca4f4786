"""What is particular to a figure: drawings that follow the records, exact claims that can fail."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from stated import paper_of
from synthetic_results import write_bench, write_evaluations, write_mechanisms

from paper_figures.fig1 import figure as fig1
from paper_figures.fig5 import figure as fig5
from paper_figures.fig7 import figure as fig7
from repro.analysis.results import Results
from repro.analysis.verdicts import CONTRADICTED, REPRODUCED
from repro.numerics.formats import E2M1, E4M3, NVFP4


def test_figure_1_stores_numbers_of_the_formats_only(results: Results) -> None:
    table = fig1.data(results)
    assert set(table["stored"].abs()) <= set(E2M1.magnitudes)
    assert set(table["scale"]) <= set(E4M3.magnitudes)
    blocks = table.groupby(["row", "block"])["stored"]
    assert blocks.size().eq(NVFP4.tiles_1d[1]).all()
    assert blocks.apply(lambda stored: stored.abs().max()).eq(E2M1.max).all(), (
        "the amax is not stored as the largest"
    )


def test_a_scale_without_mantissa_keeps_few_maxima_near_fp8(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = paper_of("fig1")
    assert fig1.claims(fig1.data(results), paper)[0].verdict == REPRODUCED
    powers_of_two = replace(E4M3, name="E7M0", exponent_bits=7, mantissa_bits=0, bias=63)
    monkeypatch.setattr(fig1, "NVFP4", replace(NVFP4, scale=powers_of_two))
    verdict = fig1.claims(fig1.data(results), paper)[0]
    assert verdict.verdict == CONTRADICTED
    near = int(verdict.reason.split()[0])
    assert 0 < near < 16, "of 32: about one mantissa in six lies so near a power of two"
    assert verdict.ours == f"{near / 512:g} = {near} of 512 values"


@pytest.mark.parametrize(
    ("magnitude", "expected"), [(0.25, 0.0), (0.75, 1.0), (2.5, 2.0), (5.0, 4.0), (9.0, 6.0)]
)
def test_ties_go_to_the_even_code_and_large_numbers_saturate(magnitude: float, expected: float) -> None:
    assert fig1.nearest(E2M1, magnitude) == expected


def test_figure_5_is_the_recipe_that_ran(results: Results) -> None:
    table = fig5.data(results).set_index(["gemm", "operand"])
    assert table.loc[("wgrad", "x"), "hadamard"] == 16
    assert table.loc[("wgrad", "g"), "rounding"] == "sr"
    assert table.loc[("fprop", "w"), "tile"] == table.loc[("dgrad", "w"), "tile"] == "16x16"
    transposed = {pair for pair, row in table.iterrows() if row["transposed"]}
    assert transposed == {("dgrad", "w"), ("wgrad", "x"), ("wgrad", "g")}


def test_figure_5_refuses_a_run_that_recorded_another_precision(written: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(written / "runs" / "12b_nvfp4", folder / "runs" / "12b_nvfp4")
    last = sorted((folder / "runs" / "12b_nvfp4").glob("*/done.json"))[-1]
    done = json.loads(last.read_text())
    record = next(
        entry for entry in done["precision"] if entry["format"] == "nvfp4" and entry["gemm"] == "fprop"
    )
    record["format"] = "bf16"
    last.write_text(json.dumps(done))
    with pytest.raises(
        ValueError, match=rf"block {record['block']}, fprop\.{record['operand']} ran as \('bf16'"
    ):
        fig5.data(Results(folder))


def test_the_share_of_computation_follows_the_switch(made: Path) -> None:
    table = pd.read_csv(made / "elements" / "fig7" / "data.csv")
    verdicts = {verdict.claim: verdict for verdict in fig7.claims(table, paper_of("fig7"))}
    assert verdicts["C31b"].verdict == REPRODUCED
    table.loc[table["quantity"] == "switch", "fraction"] = 0.7
    verdicts = {verdict.claim: verdict for verdict in fig7.claims(table, paper_of("fig7"))}
    assert verdicts["C31b"].verdict == CONTRADICTED
    assert verdicts["C31b"].ours.startswith("10.00 %")


def test_inputs_are_written_in_the_formats_of_their_stages(tmp_path: Path) -> None:
    """The invented files have the columns that evaluation, mechanisms and benchmark write."""
    for write in (write_evaluations, write_mechanisms, write_bench):
        write(tmp_path)
    evaluate = pytest.importorskip("repro.evaluate.table")
    header = (tmp_path / "evaluations" / "12b_fp8.csv").read_text().splitlines()[0]
    assert header.split(",") == list(evaluate.COLUMNS)
