"""What is particular to one element: drawings that follow the records, exact claims that can fail, tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_results import REPO, write_bench, write_evaluations, write_mechanisms

from paper_figures.__main__ import FOLDER
from paper_figures.fig1 import figure as fig1
from paper_figures.fig5 import figure as fig5
from paper_figures.fig7 import figure as fig7
from paper_figures.mechanisms import figure as mechanisms
from paper_figures.table1 import figure as table1
from paper_figures.table2 import figure as table2
from paper_figures.table3 import figure as table3
from repro.analysis.paper import Paper, load_paper
from repro.analysis.results import Results
from repro.analysis.tables import HEADING, markdown
from repro.analysis.verdicts import CONTRADICTED, NOT_MEASURABLE, NOT_MEASURED, REPRODUCED, UNRESOLVED
from repro.numerics.formats import E2M1, E4M3, NVFP4

CONFIGS = REPO / "configs"


def paper_of(element: str) -> Paper:
    return load_paper(FOLDER / element, CONFIGS / "claims.yaml")


@pytest.fixture
def results(written: Path) -> Results:
    return Results(written, configs=CONFIGS)


# Figure 1


def test_figure_1_stores_numbers_of_the_formats_only(results: Results) -> None:
    table = fig1.data(results)
    assert set(table["stored"].abs()) <= set(E2M1.magnitudes)
    assert set(table["scale"]) <= set(E4M3.magnitudes)
    blocks = table.groupby(["row", "block"])["stored"]
    assert blocks.size().eq(NVFP4.tiles_1d[1]).all()
    assert blocks.apply(lambda stored: stored.abs().max()).eq(E2M1.max).all(), (
        "the amax is not stored as the largest"
    )


@pytest.mark.parametrize(
    ("magnitude", "expected"), [(0.25, 0.0), (0.75, 1.0), (2.5, 2.0), (5.0, 4.0), (9.0, 6.0)]
)
def test_ties_go_to_the_even_code_and_large_numbers_saturate(magnitude: float, expected: float) -> None:
    assert fig1.nearest(E2M1, magnitude) == expected


# Figure 5


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


# Exact claims can fail


def test_the_share_of_computation_follows_the_switch(made: Path) -> None:
    table = pd.read_csv(made / "elements" / "fig7" / "data.csv")
    verdicts = {verdict.claim: verdict for verdict in fig7.claims(table, paper_of("fig7"))}
    assert verdicts["C31b"].verdict == REPRODUCED
    table.loc[table["quantity"] == "switch", "fraction"] = 0.7
    verdicts = {verdict.claim: verdict for verdict in fig7.claims(table, paper_of("fig7"))}
    assert verdicts["C31b"].verdict == CONTRADICTED
    assert verdicts["C31b"].ours.startswith("10.00 %")


def test_a_wrong_dimension_contradicts_table_3(results: Results) -> None:
    table = table3.data(results)
    assert {verdict.verdict for verdict in table3.claims(table, paper_of("table3"))} == {REPRODUCED}
    table.loc[(table["which"] == "paper") & (table["quantity"] == "num_key_value_heads"), "value"] = 4
    verdict = table3.claims(table, paper_of("table3"))[0]
    assert verdict.verdict == CONTRADICTED
    assert "key/value heads 4 instead of 8" in verdict.reason


def test_packed_bytes_that_disagree_with_the_format_contradict_c4(results: Results) -> None:
    table = table1.data(results)
    verdicts = {verdict.claim: verdict.verdict for verdict in table1.claims(table, paper_of("table1"))}
    assert verdicts == {"C2": REPRODUCED, "C3": NOT_MEASURED, "C4": REPRODUCED}
    chosen = (table["format"] == "nvfp4") & (table["fact"] == "bytes")
    table.loc[chosen, "value"] = table.loc[chosen, "value"].astype(float) + 100
    verdicts = {verdict.claim: verdict.verdict for verdict in table1.claims(table, paper_of("table1"))}
    assert verdicts["C4"] == CONTRADICTED


def test_table_1_says_what_a_rate_needs(results: Results) -> None:
    shown = table1.display(table1.data(results), paper_of("table1")).set_index("format")
    assert shown.loc["NVFP4", "measured: the product alone"] == "needs compute capability 10.0 or 10.3"
    assert shown.loc["NVFP4", "GB200 / GB300, the paper"] == "4x / 6x"
    assert shown.loc["BF16", "measured: the product alone"] == "0.02 TFLOP/s, 1.00x"
    assert shown.loc["NVFP4", "bits a value"] == "4.5"
    table = table1.data(results)
    table.loc[(table["format"] == "bf16") & (table["fact"] == "tflops"), "value"] = 1254.4
    fast = table1.display(table, paper_of("table1")).set_index("format")
    assert fast.loc["BF16", "measured: the product alone"] == "1,250 TFLOP/s, 1.00x"


def test_table_1_says_whose_operands_the_card_itself_multiplied(written: Path, tmp_path: Path) -> None:
    """The recorded rates of an H200: FP8 blocks are quantised on the fly, and their product is no emulated one."""
    shutil.copytree(written, tmp_path / "results")
    shutil.copy(REPO / "recorded" / "proxy" / "bench.json", tmp_path / "results" / "bench" / "gemm.json")
    table = table1.data(Results(tmp_path / "results", configs=CONFIGS))
    shown = table1.display(table, paper_of("table1")).set_index("format")[
        "measured: operands quantised on the fly"
    ]
    assert shown["FP8, blocks"] == "1,000 TFLOP/s, 1.46x\nFP8 on the card"
    assert shown["NVFP4"] == "663 TFLOP/s, 0.96x"


@pytest.mark.parametrize(
    ("device", "rates", "verdict", "words"),
    [
        ("NVIDIA GB200", {"mxfp8": 1.8, "nvfp4": 3.4}, REPRODUCED, "without MXFP6, MXFP4"),
        ("NVIDIA GB200", {"mxfp8": 1.8, "nvfp4": 2.4}, UNRESOLVED, "NVFP4 too far below"),
        ("NVIDIA GB300", {"mxfp8": 1.8, "nvfp4": 3.4}, UNRESOLVED, "NVFP4 too far below"),
        ("NVIDIA GB200", {}, NOT_MEASURED, "without MXFP8"),
        ("NVIDIA H200", {"mxfp8": 1.8, "nvfp4": 3.4}, NOT_MEASURED, "needs a GB200 and a GB300"),
    ],
)
def test_rates_are_judged_on_the_cards_that_table_1_names(
    results: Results, device: str, rates: dict[str, float], verdict: str, words: str
) -> None:
    table = table1.data(results).assign(device=device)
    rows = [
        {**table.iloc[0], "format": name, "kind": "native", "fact": "over_bf16", "value": rate}
        for name, rate in rates.items()
    ]
    table = pd.concat([table, pd.DataFrame(rows)])
    found = next(v for v in table1.claims(table, paper_of("table1")) if v.claim == "C3")
    assert found.verdict == verdict
    assert words in found.reason


# Table 2


def test_table_2_shows_groups_and_the_papers_scores(results: Results) -> None:
    shown = table2.display(table2.data(results), paper_of("table2"))
    code = shown[shown["accuracy (%)"] == f"{HEADING}Code"].iloc[0]
    assert code["NVFP4 - FP8"] == "-8.0 ± 2.8"
    assert code["difference, paper"] == "-2.85"
    assert "| **Code** |" in markdown(shown)


def large(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(num_parameters=12_310_000_000, end_tokens=10**13)


def test_only_code_may_differ(results: Results) -> None:
    table = large(table2.data(results))
    verdict = table2.claims(table, paper_of("table2"))[0]
    assert (verdict.claim, verdict.verdict) == ("C8", REPRODUCED), verdict.reason
    same = table.assign(value=0.45)
    assert table2.claims(same, paper_of("table2"))[0].verdict == UNRESOLVED
    worse = table.assign(
        value=np.where((table["run"] == "12b_nvfp4") & (table["group"] == "math"), 0.3, table["value"])
    )
    verdict = table2.claims(worse, paper_of("table2"))[0]
    assert verdict.verdict == CONTRADICTED
    assert "math differ" in verdict.reason


def test_scores_of_the_papers_own_benchmarks_are_compared_with_it(results: Results) -> None:
    table, paper = large(table2.data(results)), paper_of("table2")
    stated = paper.claims["T2"].numbers["tasks"]
    rows = [
        table.iloc[[0]].assign(run=run, task=name, group="general", value=stated[task][i] / 100, stderr=0.004)
        for task, name in paper.stated["tasks"].items()
        for i, run in enumerate(("12b_fp8", "12b_nvfp4"))
    ]
    table = pd.concat([table, *rows], ignore_index=True)
    verdicts = {verdict.claim: verdict.verdict for verdict in table2.claims(table, paper)}
    assert (verdicts["C9"], verdicts["T2"]) == (REPRODUCED, REPRODUCED)
    table.loc[table["task"] == paper.stated["tasks"]["AGIEval English CoT"], "value"] -= 0.2
    [verdict] = [verdict for verdict in table2.claims(table, paper) if verdict.claim == "T2"]
    assert verdict.verdict == REPRODUCED, "multiple choice was compared with chain of thought"
    assert "AGIEval English CoT as multiple choice, not compared" in verdict.ours
    table.loc[table["task"] == paper.stated["tasks"]["MMLU-Pro 5-shot"], "value"] -= 0.2
    verdicts = {verdict.claim: verdict.verdict for verdict in table2.claims(table, paper)}
    assert (verdicts["C9"], verdicts["T2"]) == (CONTRADICTED, CONTRADICTED)


# Mechanisms


def layers(values: list[float], name: str = "q_proj") -> pd.DataFrame:
    return pd.DataFrame(
        {"layer": [f"m.{i}.{name}" for i in range(len(values))], "block": range(len(values)), "value": values}
    )


def test_rank_correlation_by_hand() -> None:
    tau, z = mechanisms.rank_correlation(layers([1.0, 3.0, 2.0, 4.0]))
    assert tau == pytest.approx(4 / 6), "five pairs in order, one not"
    assert z == pytest.approx(4 / (4 * 3 * 13 / 18) ** 0.5)


def test_further_layers_of_a_block_are_no_further_observations() -> None:
    one = layers([1.0, 3.0, 2.0, 4.0])
    both = pd.concat([one, layers([5.0, 7.0, 6.0, 8.0], "down_proj")])
    assert mechanisms.rank_correlation(both) == mechanisms.rank_correlation(one)


def test_blocks_of_different_layers_are_not_ranked() -> None:
    """The kind of the later blocks has the larger values."""
    later = layers([9.0, 8.0], "down_proj").assign(block=[2, 3])
    with pytest.raises(AssertionError, match="blocks of different layers"):
        mechanisms.rank_correlation(pd.concat([layers([1.0, 2.0, 3.0]), later]))


@pytest.mark.parametrize(
    ("rising", "expected", "of_a_small_model"),
    [
        (0.05, REPRODUCED, NOT_MEASURABLE),
        (-0.05, CONTRADICTED, NOT_MEASURABLE),
        (0.0, UNRESOLVED, UNRESOLVED),
    ],
)
def test_the_profile_is_judged_where_the_model_is_large_enough(
    written: Path, tmp_path: Path, rising: float, expected: str, of_a_small_model: str
) -> None:
    folder = tmp_path / "tiny"
    for run in ("12b_nvfp4", "1p2b_last4"):
        shutil.copytree(written / "runs" / run, folder / "runs" / run)
    write_mechanisms(folder, rising=rising)
    table = mechanisms.data(Results(folder))
    verdict = mechanisms.claims(large(table), paper_of("mechanisms"))[0]
    assert verdict.verdict == expected, verdict.reason
    assert mechanisms.claims(table, paper_of("mechanisms"))[0].verdict == of_a_small_model


def test_blocks_kept_in_bf16_are_marked(results: Results) -> None:
    table = mechanisms.data(results)
    kept = set(table.loc[(table["run"] == "12b_nvfp4") & table["in_bf16"], "block"])
    counts = results.run("12b_nvfp4").frozen["recipe"]["bf16_blocks"]
    assert len(kept) == counts["first"] + counts["last"]


def test_inputs_are_written_in_the_formats_of_their_stages(tmp_path: Path) -> None:
    """The invented files have the columns that evaluation, mechanisms and benchmark write."""
    for write in (write_evaluations, write_mechanisms, write_bench):
        write(tmp_path)
    evaluate = pytest.importorskip("repro.evaluate.table")
    header = (tmp_path / "evaluations" / "12b_fp8.csv").read_text().splitlines()[0]
    assert header.split(",") == list(evaluate.COLUMNS)
