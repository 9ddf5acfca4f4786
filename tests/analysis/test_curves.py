"""Tidy curves: what rows there are, and what they carry."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from synthetic_results import named_gap

from repro.analysis.arms import arm
from repro.analysis.curves import MAX_POINTS, curve_table, select
from repro.analysis.curves import _thin as thin
from repro.analysis.noise import seed_noise
from repro.analysis.results import Results
from repro.experiments.content import run_hash_of


def test_the_gap_that_was_put_in_comes_out(results: Results) -> None:
    table = curve_table(results, ["1p2b_last4_2d"], baseline="1p2b_bf16", text="validation")
    gap = select(table, "1p2b_last4_2d", "gap").iloc[-1]
    loss = table[table["quantity"] == "loss"].groupby("run")["value"].last()
    assert gap["fraction"] == 1.0
    assert gap["value"] == pytest.approx(
        100 * (loss["1p2b_bf16"] - loss["1p2b_last4_2d"]) / loss["1p2b_bf16"]
    )
    assert gap["value"] == pytest.approx(-named_gap("1p2b_last4_2d", 1.0), abs=0.5), "noise is 0.1 % a run"


def test_a_fork_contributes_its_own_part_only(results: Results) -> None:
    table = curve_table(results, ["12b_without_sr"], baseline="12b_fp8", text="train")
    fork = select(table, "12b_without_sr", "gap")
    assert fork["fraction"].min() > 0.343
    assert fork["fraction"].max() < 0.40


def test_the_point_where_a_fork_leaves_is_its_parents(results: Results) -> None:
    table = curve_table(results, ["12b_without_sr"], baseline="12b_fp8", text="train")
    start = results.run("12b_without_sr").own_start_tokens
    assert start in set(results.run("12b_nvfp4").curve("train")["tokens"])
    assert select(table, "12b_without_sr", "loss")["tokens"].iloc[0] > start


def test_a_longer_run_lies_on_the_axis_of_its_baseline(results: Results) -> None:
    longer = "8b_mxfp4_1p25x"
    table = curve_table(results, [longer], baseline="8b_bf16", text="validation", quantities=("loss",))
    assert select(table, longer, "loss")["fraction"].iloc[-1] == pytest.approx(1.25)


def test_a_fork_that_was_repeated_alone_keeps_the_baseline_of_its_parent(
    results: Results, tmp_path: Path
) -> None:
    """Its other random streams begin at the fork: up to there it is seed 1."""
    runs, fork = tmp_path / "tiny" / "runs", "12b_without_sr"
    for run in ("12b_fp8", "12b_fp8_seed2", "12b_nvfp4", fork):
        shutil.copytree(results.folder / "runs" / run, runs / run)
    shutil.copytree(runs / fork, runs / f"{fork}_seed2")
    for path in (runs / f"{fork}_seed2").glob("*/run.yaml"):
        frozen = yaml.safe_load(path.read_text()) | {"run": f"{fork}_seed2"}
        frozen["run_hash"] = run_hash_of(frozen)
        path.write_text(yaml.safe_dump(frozen))
        done = path.with_name("done.json")
        done.write_text(json.dumps(json.loads(done.read_text()) | {"run_hash": frozen["run_hash"]}))
    table = curve_table(Results(tmp_path / "tiny"), [fork], baseline="12b_fp8", text="train")
    one, other = (select(table, run, "gap") for run in (fork, f"{fork}_seed2"))
    assert one["value"].tolist() == other["value"].tolist(), "copies against the same baseline"
    assert other["paired"].all()


def test_replicas_are_paired_with_the_baseline_of_their_seed(results: Results) -> None:
    table = curve_table(results, ["12b_nvfp4"], baseline="12b_fp8", text="validation")
    replica = table[table["run"] == "12b_nvfp4_seed2"]
    assert set(replica["role"]) == {"replica"}
    assert replica["paired"].all()
    last = table[(table["quantity"] == "loss")].groupby("run")["value"].last()
    expected = 100 * (last["12b_fp8_seed2"] - last["12b_nvfp4_seed2"]) / last["12b_fp8_seed2"]
    assert select(table, "12b_nvfp4_seed2", "gap")["value"].iloc[-1] == pytest.approx(expected)


def test_a_run_that_is_not_drawn_lends_its_noise(results: Results) -> None:
    table = curve_table(
        results, ["1p2b_last4_2d"], baseline="1p2b_bf16", text="validation", noise_from=["1p2b_last4"]
    )
    gaps = table[table["quantity"] == "gap"]
    roles = dict(zip(gaps["run"], gaps["role"], strict=True))
    assert roles == {"1p2b_last4_2d": "run", "1p2b_last4": "replica", "1p2b_last4_seed2": "replica"}
    found = seed_noise(table)
    assert found is not None
    assert found.source == "1p2b_last4 (2 seeds)"


def test_a_run_that_was_not_repeated_lends_nothing(results: Results) -> None:
    lender = "1p2b_last4_2d_rht_sr"
    table = curve_table(
        results, ["1p2b_last4_2d"], baseline="1p2b_bf16", text="validation", noise_from=[lender]
    )
    assert lender not in set(table["run"])


def test_a_run_that_is_not_recorded_lends_no_noise(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Results, "has", lambda _, name: name != "1p2b_last4")
    table = curve_table(
        results, ["1p2b_last4_2d"], baseline="1p2b_bf16", text="validation", noise_from=["1p2b_last4"]
    )
    assert "1p2b_last4" not in set(table["replica_of"])


def test_a_curve_is_selected_in_the_order_of_its_tokens(results: Results) -> None:
    table = curve_table(results, ["1p2b_last4"], baseline="1p2b_bf16", text="train")
    backwards = select(table.iloc[::-1], "1p2b_last4", "gap")
    pd.testing.assert_frame_equal(backwards, select(table, "1p2b_last4", "gap"))


def diverge(run: Path, share: float, *, at_last_step: bool = False) -> None:
    """Rewrite a run's only segment as one that diverged at `share` of its steps, or with the last of them."""
    done = json.loads((run / "0" / "done.json").read_text())
    lines = [json.loads(line) for line in (run / "0" / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["tokens"] <= share * done["end_tokens"]]
    end = kept[-1]["tokens"] + (0 if at_last_step else 512)
    kept.append({"kind": "event", "event": "diverged", "tokens": end, "step": 0, "reason": "invented"})
    (run / "0" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    (run / "0" / "done.json").write_text(json.dumps(done | {"status": "diverged", "end_tokens": end}))


@pytest.mark.parametrize("share", [0.5, 0.02])
def test_a_gap_ends_where_its_baseline_diverged(results: Results, tmp_path: Path, share: float) -> None:
    """At half of its horizon, or before its first validation."""
    runs = ("1p2b_bf16", "1p2b_bf16_seed2", "1p2b_last4", "1p2b_last4_seed2")
    for run in runs:
        shutil.copytree(results.folder / "runs" / run, tmp_path / "tiny" / "runs" / run)
    diverge(tmp_path / "tiny" / "runs" / "1p2b_bf16_seed2", share)
    table = curve_table(Results(tmp_path / "tiny"), ["1p2b_last4"], baseline="1p2b_bf16", text="validation")
    gap = select(table, "1p2b_last4_seed2", "gap")
    assert gap["fraction"].iloc[-1] == 1.0, "the run itself goes on"
    assert gap["value"].isna().tolist() == (gap["fraction"] > share).tolist()
    found = arm(table, "1p2b_last4", "plain")
    assert found.by_seed.keys() == {1}
    assert found.value == pytest.approx(select(table, "1p2b_last4", "gap")["value"].iloc[-1])
    noise = seed_noise(table)
    assert noise is not None
    assert noise.words().startswith("seed noise without bound: 1 of 2 seeds of 1p2b_last4")


def test_the_step_at_which_a_baseline_diverged_has_no_gap(results: Results, tmp_path: Path) -> None:
    """Its loss there may be finite: too high for too long is divergence as well."""
    for run in ("1p2b_bf16", "1p2b_last4"):
        shutil.copytree(results.folder / "runs" / run, tmp_path / "tiny" / "runs" / run)
    diverge(tmp_path / "tiny" / "runs" / "1p2b_bf16", 0.5, at_last_step=True)
    table = curve_table(Results(tmp_path / "tiny"), ["1p2b_last4"], baseline="1p2b_bf16", text="train")
    gap = select(table, "1p2b_last4", "gap")
    end = Results(tmp_path / "tiny").run("1p2b_bf16").diverged_tokens
    assert end in set(gap["tokens"])
    assert gap["value"].isna().tolist() == (gap["tokens"] >= end).tolist()


def test_the_step_at_which_a_run_diverged_has_one_row_without_a_value(
    results: Results, tmp_path: Path
) -> None:
    """As above: the loss that was logged there is of no model that trains."""
    for run in ("1p2b_bf16", "1p2b_last4"):
        shutil.copytree(results.folder / "runs" / run, tmp_path / "tiny" / "runs" / run)
    diverge(tmp_path / "tiny" / "runs" / "1p2b_last4", 0.5, at_last_step=True)
    found = Results(tmp_path / "tiny")
    table = curve_table(found, ["1p2b_last4"], baseline="1p2b_bf16", text="train")
    assert found.run("1p2b_last4").curve("train")["loss"].notna().all()
    for quantity in ("loss", "gap"):
        rows = select(table, "1p2b_last4", quantity)
        assert rows["tokens"].is_unique
        assert rows["tokens"].iloc[-1] == found.run("1p2b_last4").diverged_tokens
        assert rows["value"].isna().tolist() == [False] * (len(rows) - 1) + [True]


def test_losses_of_another_horizon_need_no_common_tokens_and_gaps_do(
    results: Results, tmp_path: Path
) -> None:
    """A longer run validates as often in its own horizon: at the proxy tier never where its baseline does."""
    baseline, longer = "8b_bf16", "8b_mxfp4_1p25x"
    for run in (baseline, longer):
        shutil.copytree(results.folder / "runs" / run, tmp_path / "tiny" / "runs" / run)
    common = set(results.run(baseline).curve("validation")["tokens"])
    path = tmp_path / "tiny" / "runs" / longer / "0" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [line for line in lines if line["kind"] != "validation" or line["tokens"] not in common]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    apart = Results(tmp_path / "tiny")
    table = curve_table(apart, [longer], baseline=baseline, text="validation", quantities=("loss",))
    assert (
        select(table, longer, "loss")["value"].iloc[-1]
        == apart.run(longer).curve("validation")["loss"].iloc[-1]
    )
    with pytest.raises(ValueError, match="share no token count"):
        curve_table(apart, [longer], baseline=baseline, text="validation")


def test_every_row_carries_its_provenance(results: Results) -> None:
    table = curve_table(results, ["12b_nvfp4"], baseline="12b_fp8", text="validation")
    for column in (
        "tier",
        "run_hash",
        "git_commit",
        "device",
        "seed",
        "torch",
        "triton",
        "mamba_ssm",
        "seconds",
        "num_parameters",
    ):
        assert table[column].notna().all(), f"{column} is missing in some rows"


def test_the_seconds_of_a_run_are_those_of_its_whole_lineage(results: Results) -> None:
    """Each segment of the invented results took one."""
    fork = results.run("12b_without_sr")
    assert fork.meta()["seconds"] == len(fork.lineage) > 1


def test_kernels_that_a_record_does_not_name_are_not_recorded(results: Results, tmp_path: Path) -> None:
    shutil.copytree(results.folder / "runs" / "1p2b_bf16", tmp_path / "tiny" / "runs" / "1p2b_bf16")
    known = Results(tmp_path / "tiny")
    assert known.run("1p2b_bf16").meta()["triton"] == "not recorded"
    path = tmp_path / "tiny" / "runs" / "1p2b_bf16" / "0" / "done.json"
    done = json.loads(path.read_text())
    done["provenance"]["versions"] |= {"triton": "3.6.0", "mamba-ssm": "2.3.2"}
    path.write_text(json.dumps(done))
    meta = Results(tmp_path / "tiny").run("1p2b_bf16").meta()
    assert (meta["triton"], meta["mamba_ssm"]) == ("3.6.0", "2.3.2")


def test_a_run_that_diverged_early_keeps_one_row_for_its_end(results: Results) -> None:
    table = curve_table(results, ["1p2b_base_all"], baseline="1p2b_bf16", text="validation")
    rows = table[table["run"] == "1p2b_base_all"]
    assert sorted(rows["quantity"]) == ["gap", "loss"]
    assert rows["value"].isna().all()
    assert rows["status"].eq("diverged").all()


def test_thinning_keeps_the_mean_and_the_span() -> None:
    fraction = np.linspace(0.0, 1.0, 3 * MAX_POINTS)
    curve = pd.DataFrame({"tokens": fraction, "fraction": fraction, "value": fraction, "quantity": "gap"})
    thinned = thin(curve)
    assert len(thinned) == MAX_POINTS
    assert thinned["value"].mean() == pytest.approx(curve["value"].mean())
    long = thin(curve.assign(tokens=100 * np.arange(3 * MAX_POINTS)))
    assert long["tokens"].tolist() == [100 + 300 * number for number in range(MAX_POINTS)], (
        "of three the middle"
    )
    assert len(thin(curve.head(2))) == 2


def test_a_mean_over_the_end_of_a_thinned_curve_is_that_of_its_points() -> None:
    """Groups of one and of two points, averaged as if they were alike, moved a gap of -1.444 % to -1.446."""
    number = MAX_POINTS * 3 // 2 + 1
    values = np.random.default_rng(1).normal(size=number)
    curve = pd.DataFrame({"tokens": range(number), "fraction": np.arange(number) / number, "value": values})
    thinned = thin(curve.assign(quantity="gap"))
    assert len(thinned) <= MAX_POINTS
    for points in (2, 62, 1000):
        assert thinned["value"].tail(points // 2).mean() == pytest.approx(values[-points:].mean())
    assert thinned["value"].iloc[0] == values[0], "the first group may be smaller, the last is whole"
