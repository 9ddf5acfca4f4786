"""Records of trained segments: what they keep, that they come back, and that stale or missing ones are named."""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path

import pytest

from repro.analysis import recorded
from repro.analysis.curves import curve_table, missing_runs
from repro.analysis.record import read_record, record_segment, restore, write_record
from repro.analysis.results import NotRecorded, Results
from repro.experiments import load

RUNS = ("1p2b_bf16", "1p2b_last4")


@pytest.fixture(scope="module")
def plan():
    return load("tiny")


def trained(folder: Path, segment, *, offset: float = 0.0) -> Path:
    """The files of a segment as training writes them; losses are made up for the test."""
    frozen, schedule = segment.frozen, segment.frozen["schedule"]
    step = schedule["batch_sequences"] * schedule["sequence_length_tokens"]
    lines = []
    for tokens in range(schedule["start_tokens"] + step, schedule["end_tokens"] + 1, step):
        loss = 3.0 + 1000 / tokens + offset
        lines.append(
            {"kind": "train", "step": tokens // step, "tokens": tokens, "loss": loss, "grad_norm": loss / 3}
        )
        if tokens % (8 * step) == 0 or tokens == schedule["end_tokens"]:
            by_category = {"crawl": loss}
            validation = {"kind": "validation", "step": tokens // step, "tokens": tokens, "loss": loss}
            lines.append(validation | {"loss_by_category": by_category, "seconds": 0.1})
    made_with = {"git_commit": "c" * 40, "device": "a CPU", "seconds": 1.0, "versions": {"torch": "2"}}
    done = {
        "run": frozen["run"],
        "segment": segment.index,
        "run_hash": segment.run_hash,
        "status": "completed",
        "end_tokens": schedule["end_tokens"],
        "num_parameters": 870_000,
        "final": {},
        "provenance": made_with,
    }
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    (folder / "done.json").write_text(json.dumps(done), encoding="utf-8")
    return folder


@pytest.fixture
def kept(plan, tmp_path) -> Path:
    """A recorded folder that holds the two runs."""
    records = [
        record_segment(trained(tmp_path / name, plan.runs[name].segments[0], offset=0.01 * index))
        for index, name in enumerate(RUNS)
    ]
    assert recorded.add_records(records, tmp_path / "recorded" / "tiny", plan) == []
    return tmp_path / "recorded"


def path_of(kept: Path, run: str = "1p2b_bf16") -> Path:
    return kept / "tiny" / "runs" / run / "0.json.xz"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no readable record"),
        (lzma.compress(b"{"), "no readable record"),
        (lzma.compress(b"{}"), "no record of a segment; missing run, segment"),
        (lzma.compress(b"[]"), "no record of a segment; missing run, segment"),
    ],
)
def test_a_damaged_record_is_named_and_nothing_says_that_all_is_there(content, words, plan, kept, tmp_path):
    results = tmp_path / "results"
    recorded.restore_all(plan, kept, results)
    path_of(kept).write_bytes(content)
    with pytest.raises(ValueError, match=rf"1p2b_bf16/0\.json\.xz: {words}"):
        recorded.restore_all(plan, kept, results)
    assert not (results / "recorded.json").exists(), "that of the call before lists runs that are gone"


def test_a_record_under_another_name_is_named(plan, kept, tmp_path):
    """It would be counted for the run that it holds, beside or over that run's own record."""
    path_of(kept).replace(path_of(kept).with_name("7.json.xz"))
    with pytest.raises(ValueError, match=r"1p2b_bf16/7\.json\.xz: holds the record of 1p2b_bf16/0"):
        recorded.restore_all(plan, kept, tmp_path / "results")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x", "no readable table"),
        (lzma.compress(b"\xff"), "no readable table"),
        (lzma.compress(b""), "no readable table"),
        (lzma.compress(b"run,run_hash\n"), "it needs rows"),
        (lzma.compress(b"run\nabc\n"), "a last column run_hash"),
    ],
)
def test_a_damaged_table_is_named(content, words, plan, kept, tmp_path):
    path = kept / "tiny" / "evaluations" / "12b_fp8.csv.xz"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"evaluations/12b_fp8\.csv\.xz: .*{words}"):
        recorded.restore_all(plan, kept, tmp_path / "results")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--results", "results", "--recorded", "nowhere"), "error: nowhere: no such folder of records\n"),
        (("--results", "a_file"), "error: [Errno 20] Not a directory: 'a_file/runs'\n"),
    ],
)
def test_folders_that_are_none_are_told_in_one_line(options, words, tmp_path, monkeypatch, capsys):
    configs = Path("configs").resolve()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recorded").mkdir()
    (tmp_path / "a_file").touch()
    assert recorded.main(["restore", "--tier", "tiny", "--configs", str(configs), *options]) == 2
    assert capsys.readouterr().err == words


def test_a_record_keeps_every_loss_and_comes_back(plan, tmp_path):
    folder = trained(tmp_path / "a", plan.runs["1p2b_bf16"].segments[0])
    record = record_segment(folder)
    write_record(record, tmp_path / "r.json.xz")
    restore(read_record(tmp_path / "r.json.xz"), tmp_path / "b")
    assert record_segment(tmp_path / "b") == record
    before, after = (
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (folder, tmp_path / "b")
    )
    assert [(a["kind"], a["tokens"]) for a in after] == [(b["kind"], b["tokens"]) for b in before]
    assert all(a["loss"] == pytest.approx(b["loss"], abs=1e-6) for a, b in zip(after, before, strict=True))
    norms = [[line["grad_norm"] for line in lines if line["kind"] == "train"] for lines in (after, before)]
    assert norms[0] == pytest.approx(norms[1], rel=5e-4)
    assert (tmp_path / "r.json.xz").stat().st_size < 4000


def test_a_record_without_gradient_norms_comes_back_without(plan, tmp_path):
    """Those made before they were kept."""
    record = record_segment(trained(tmp_path / "a", plan.runs["1p2b_bf16"].segments[0]))
    del record["train"]["grad_norm"]
    restore(record, tmp_path / "b")
    assert record_segment(tmp_path / "b") == record


def test_a_segment_with_a_missing_step_is_no_record(plan, tmp_path):
    folder = trained(tmp_path / "a", plan.runs["1p2b_bf16"].segments[0])
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:5] + lines[6:]), encoding="utf-8")
    with pytest.raises(ValueError, match="steps are missing"):
        record_segment(folder)


def test_recorded_runs_read_like_trained_ones_and_others_are_named(plan, kept, tmp_path):
    recorded.restore_all(plan, kept, tmp_path / "results")
    results = Results(tmp_path / "results")
    table = curve_table(results, ["1p2b_last4", "1p2b_last4_2d"], baseline="1p2b_bf16", text="validation")
    gaps = table[(table["run"] == "1p2b_last4") & (table["quantity"] == "gap")]
    assert (gaps["value"] < 0).all()
    assert set(gaps["run_hash"]) == {plan.runs["1p2b_last4"].segments[-1].run_hash}
    assert missing_runs(table) == {"1p2b_last4_2d": "not recorded"}
    with pytest.raises(NotRecorded, match="1p2b_last4_2d"):
        results.run("1p2b_last4_2d")


def test_without_its_baseline_no_run_is_drawn(plan, kept, tmp_path):
    (recorded.segment_path(kept / "tiny", "1p2b_bf16", 0)).unlink()
    recorded.restore_all(plan, kept, tmp_path / "results")
    table = curve_table(Results(tmp_path / "results"), ["1p2b_last4"], baseline="1p2b_bf16", text="train")
    assert missing_runs(table) == {"1p2b_bf16": "not recorded", "1p2b_last4": "without its baseline"}


def test_a_record_of_another_configuration_is_refused_and_left_out_by_name(plan, kept, tmp_path):
    path = recorded.segment_path(kept / "tiny", "1p2b_last4", 0)
    record = read_record(path) | {"run_hash": "0" * 16}
    write_record(record, path)
    content = recorded.restore_all(plan, kept, tmp_path / "results")
    assert content["recorded"] == ["1p2b_bf16/0"]
    assert "run it again" in content["stale"]["1p2b_last4/0"]
    assert Results(tmp_path / "results").missing("1p2b_last4")["status"] == "stale record"
    [why] = recorded.add_records([record], tmp_path / "other", plan)
    assert "1p2b_last4/0" in why


def test_a_record_of_other_data_is_refused_and_left_out_by_name(plan, kept, tmp_path):
    """Its losses would be compared with those of the recorded data, and nothing would say so."""
    (kept / "tiny" / "data_manifest.json").write_bytes(b"the recorded data\n")
    theirs = hashlib.sha256(b"the recorded data\n").hexdigest()
    record = read_record(path_of(kept))
    record["done"]["provenance"]["data_sha256"] = theirs
    assert recorded.add_records([record], kept / "tiny", plan) == []
    before = path_of(kept).read_bytes()
    record["done"]["provenance"]["data_sha256"] = "ab" * 32
    why = (
        f"1p2b_bf16/0: trained on other data (manifest {'ab' * 8}) than the records ({theirs[:16]}, "
        f"{kept / 'tiny' / 'data_manifest.json'}); run it again on theirs"
    )
    assert recorded.add_records([record], kept / "tiny", plan) == [why]
    assert path_of(kept).read_bytes() == before
    write_record(record, path_of(kept))
    content = recorded.restore_all(plan, kept, tmp_path / "results")
    assert content["stale"] == {"1p2b_bf16/0": why}
    assert content["recorded"] == ["1p2b_last4/0"]


def test_a_table_comes_back_without_its_hash(plan, kept, tmp_path):
    text = "run,tokens,fraction,task,group,metric,value,stderr,num_items\n12b_fp8,1,1.0,mean,code,acc,0.5,0.1,9\n"
    recorded.add_table("evaluations", "12b_fp8", text, kept / "tiny", plan)
    recorded.restore_all(plan, kept, tmp_path / "results")
    table = Results(tmp_path / "results").evaluations("12b_fp8")
    assert table["value"].tolist() == [0.5]
    assert "run_hash" not in table
    with pytest.raises(NotRecorded):
        Results(tmp_path / "results").evaluations("12b_nvfp4")


def test_a_table_of_another_configuration_is_left_out_by_name(plan, kept, tmp_path):
    text = "run,tokens,fraction,task,group,metric,value,stderr,num_items\n12b_fp8,1,1.0,mean,code,acc,0.5,0.1,9\n"
    recorded.add_table("evaluations", "12b_fp8", text, kept / "tiny", plan)
    path = kept / "tiny" / "evaluations" / "12b_fp8.csv.xz"
    now = plan.run("12b_fp8").segments[-1].run_hash.encode()
    path.write_bytes(lzma.compress(lzma.decompress(path.read_bytes()).replace(now, b"0" * 16)))
    content = recorded.restore_all(plan, kept, tmp_path / "results")
    assert "run it again" in content["stale"]["evaluations of 12b_fp8"]
    with pytest.raises(NotRecorded):
        Results(tmp_path / "results").evaluations("12b_fp8")


def test_records_are_restored_again_although_the_workflow_deleted_the_list_of_the_last_time(
    plan, kept, tmp_path
):
    before = recorded.restore_all(plan, kept, tmp_path / "results")
    (tmp_path / "results" / "recorded.json").unlink()
    assert recorded.restore_all(plan, kept, tmp_path / "results") == before


def test_recorded_rates_take_the_place_of_this_machines(plan, kept, tmp_path):
    results = tmp_path / "results" / "tiny-recorded"
    recorded.restore_all(plan, kept, results)
    assert not (results / "bench").exists(), "nothing recorded: the workflow measures"
    (kept / "tiny" / "bench.json").write_text('{"device": "a GPU", "rows": []}', encoding="utf-8")
    recorded.restore_all(plan, kept, results)
    assert Results(results).bench()["device"] == "a GPU"


def test_results_of_training_are_never_replaced(plan, kept, tmp_path):
    trained(tmp_path / "results" / "runs" / "1p2b_bf16" / "0", plan.runs["1p2b_bf16"].segments[0])
    with pytest.raises(ValueError, match="results of training"):
        recorded.restore_all(plan, kept, tmp_path / "results")


def test_the_sweep_marks_the_best_rate_of_each_family_and_says_where_it_is_no_choice_yet(tmp_path, capsys):
    proxy = load("proxy")
    rates = proxy.spec.sweep.learning_rates
    lowest = {"12b": rates["12b"][1], "8b": rates["8b"][0], "1p2b": rates["1p2b"][2]}
    command = ["sweep", "--tier", "proxy", "--recorded", str(tmp_path / "recorded")]
    assert recorded.main(command) == 2
    assert "no run of the sweep is recorded" in capsys.readouterr().err
    for name, run in list(proxy.sweep.items())[:-1]:
        rate = run.segments[0].frozen["schedule"]["learning_rate_max"]
        record = record_segment(
            trained(tmp_path / name, run.segments[0], offset=0.1 * (rate != lowest[run.family]))
        )
        assert recorded.add_records([record], tmp_path / "recorded" / "proxy", proxy) == []
    rows, open_ends = recorded.sweep_table(proxy, tmp_path / "recorded")
    assert {row["family"]: row["learning_rate"] for row in rows if row["best"]} == lowest
    assert open_ends == {
        "1p2b": "not recorded: 1p2b_rate_8em3",
        "8b": "the best rate, 0.001, has none beyond it",
    }
    assert recorded.main(command) == 0
    said = capsys.readouterr()
    assert said.out.count("<- best") == 3
    assert "8b: no choice yet: the best rate" in said.err
    assert (tmp_path / "recorded" / "proxy" / "sweep.csv").read_text(encoding="utf-8").count("\n") == 15


def test_the_proxy_tiers_learning_rates_are_the_best_of_the_recorded_sweep():
    """Of families whose sweep is recorded to both sides of its best; the others are to be set before they run."""
    proxy = load("proxy")
    rows, open_ends = recorded.sweep_table(proxy, Path("recorded"))
    for row in rows:
        if row.get("best") and row["family"] not in open_ends:
            chosen = proxy.spec.families[row["family"]]
            assert chosen.learning_rate_max == row["learning_rate"], row["family"]
            assert chosen.learning_rate_min == pytest.approx(row["learning_rate"] / 100)
