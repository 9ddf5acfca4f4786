"""A repeated run against its record: equal bits, the seeds' spread, what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repro.analysis import recorded
from repro.analysis.record import record_segment, write_record
from repro.analysis.repeats import compare, spread_of
from repro.cli import app
from repro.experiments import load

RUN, REPLICA = "1p2b_bf16", "1p2b_bf16_seed2"


@pytest.fixture(scope="module")
def plan():
    return load("tiny")


def write_segment(results: Path, plan, run: str, *, shift: float = 0.0, **changes) -> Path:
    """What training leaves of a run's only segment; losses are made up, `shift` moves the second half of them."""
    segment = plan.runs[run].segments[0]
    folder = results / "runs" / run / "0"
    lines = [
        {"kind": "train", "step": step, "tokens": 512 * step, "loss": 4 / step + shift * (step > 5)}
        for step in range(1, 11)
    ]
    last = {"kind": "validation", "step": 10, "tokens": 5120, "loss": 2.0 + shift, "loss_by_category": {}}
    done = {"run": run, "segment": 0, "run_hash": segment.run_hash, "status": "completed", **changes}
    folder.mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in (*lines, last))
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    (folder / "done.json").write_text(json.dumps(done), encoding="utf-8")
    return folder


@pytest.fixture
def kept(plan, tmp_path) -> Path:
    """Records of a run and of its replica, whose last losses are 1 % apart."""
    for run, shift in ((RUN, 0.0), (REPLICA, 0.02)):
        record = record_segment(write_segment(tmp_path / "first", plan, run, shift=shift))
        assert recorded.add_records([record], tmp_path / "recorded" / "tiny", plan) == []
    return tmp_path / "recorded"


def repro_compare(tmp_path: Path, kept: Path):
    options = ["--tier", "tiny", "--results", str(tmp_path), "--recorded", str(kept)]
    return CliRunner().invoke(app, ["compare", RUN, *options])


def test_equal_losses_are_said_to_be_equal(plan, kept, tmp_path):
    write_segment(tmp_path / "tiny", plan, RUN)
    said = repro_compare(tmp_path, kept)
    assert said.exit_code == 0, said.output
    assert "all 10 training losses equal" in said.output


@pytest.mark.parametrize(("shift", "code", "word"), [(0.01, 0, "inside"), (1.0, 1, "OUTSIDE")])
def test_other_losses_are_judged_by_the_spread_of_the_seeds(plan, kept, tmp_path, shift, code, word):
    write_segment(tmp_path / "tiny", plan, RUN, shift=shift)
    said = repro_compare(tmp_path, kept)
    assert said.exit_code == code, said.output
    assert "5 of 10 training losses equal" in said.output
    assert f"up to {shift:.4f} nats apart" in said.output
    assert f"({100 * shift / 2:+.2f} %)" in said.output
    assert word in said.output


def test_other_data_is_told(plan, kept, tmp_path):
    for folder, data in (("first", "a"), ("tiny", "b")):
        write_segment(tmp_path / folder / data, plan, RUN, provenance={"data_sha256": data})
    record = record_segment(tmp_path / "first" / "a" / "runs" / RUN / "0")
    assert recorded.add_records([record], kept / "tiny", plan) == []
    (comparison,) = compare(plan, RUN, tmp_path / "tiny" / "b", kept)
    assert "with other data" in comparison.words()
    (comparison,) = compare(plan, RUN, tmp_path / "first" / "a", kept)
    assert "other data" not in comparison.words()


def test_another_device_or_version_is_told(plan, kept, tmp_path):
    made_with = {
        "first": {"device": "NVIDIA H200", "versions": {"torch": "2.11.0", "python": "3.12.3"}},
        "tiny": {
            "device": "NVIDIA H200",
            "versions": {"torch": "2.13.0", "python": "3.12.3", "triton": "3.6.0"},
        },
    }
    for folder, provenance in made_with.items():
        write_segment(tmp_path / "made" / folder, plan, RUN, provenance=provenance)
    record = record_segment(tmp_path / "made" / "first" / "runs" / RUN / "0")
    assert recorded.add_records([record], kept / "tiny", plan) == []
    (comparison,) = compare(plan, RUN, tmp_path / "made" / "tiny", kept)
    assert comparison.made_otherwise == ("torch 2.13.0, recorded 2.11.0",)
    assert "equal (with torch 2.13.0, recorded 2.11.0);" in comparison.words()


def test_the_spread_is_that_of_the_recorded_seeds(plan, kept, tmp_path):
    spread = spread_of(plan, "1p2b", kept)
    assert (spread.dof, spread.sd) == (1, pytest.approx(100 * 0.02 / 2.01 / 2**0.5))
    assert spread.limit(1, 1) == pytest.approx(12.706 * spread.sd * 2**0.5, rel=1e-3)
    assert spread_of(plan, "8b", kept) is None


def test_further_runs_of_the_same_seeds_are_no_further_seeds(plan, kept, tmp_path):
    for run, shift in (("1p2b_last4", 1.0), ("1p2b_last4_seed2", 1.06)):
        record = record_segment(write_segment(tmp_path / "more", plan, run, shift=shift))
        assert recorded.add_records([record], kept / "tiny", plan) == []
    spread = spread_of(plan, "1p2b", kept)
    of_two = (100 * 0.02 / 2.01) ** 2 / 2, (100 * 0.06 / 3.03) ** 2 / 2
    assert spread.sd == pytest.approx((sum(of_two) / 2) ** 0.5)
    assert (spread.dof, spread.num_runs) == (1, 4)


def test_records_that_diverged_or_are_stale_do_not_spread(plan, kept, tmp_path):
    for name, changes in (("stale", {"run_hash": "0" * 16}), ("diverged", {"status": "diverged"})):
        record = record_segment(write_segment(tmp_path / name, plan, REPLICA, **changes))
        write_record(record, recorded.segment_path(kept / "tiny", REPLICA, 0))
        assert spread_of(plan, "1p2b", kept) is None, name


def test_a_run_that_diverged_in_both_has_no_last_loss_to_compare(plan, tmp_path):
    kept = tmp_path / "recorded"
    for results, shift in (("first", 0.0), ("tiny", 0.5)):
        folder = write_segment(tmp_path / results, plan, RUN, shift=shift, status="diverged")
        lines = (folder / "metrics.jsonl").read_text().splitlines()[:-1]
        (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    recorded.add_records([record_segment(tmp_path / "first" / "runs" / RUN / "0")], kept / "tiny", plan)
    said = repro_compare(tmp_path, kept)
    assert said.exit_code == 0, said.output
    assert "diverged, as the record did" in said.output


def test_a_run_that_diverged_earlier_than_its_record_is_not_equal_to_it(plan, tmp_path):
    kept = tmp_path / "recorded"
    for results, number in (("first", 10), ("tiny", 7)):
        folder = write_segment(tmp_path / results, plan, RUN, status="diverged")
        lines = (folder / "metrics.jsonl").read_text().splitlines()[:number]
        (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    recorded.add_records([record_segment(tmp_path / "first" / "runs" / RUN / "0")], kept / "tiny", plan)
    (comparison,) = compare(plan, RUN, tmp_path / "tiny", kept)
    assert not comparison.is_equal
    assert (comparison.equal_steps, comparison.steps) == (7, 10)


def test_without_a_second_seed_the_spread_is_unknown(plan, kept, tmp_path):
    (kept / "tiny" / "runs" / REPLICA / "0.json.xz").unlink()
    write_segment(tmp_path / "tiny", plan, RUN, shift=0.01)
    said = repro_compare(tmp_path, kept)
    assert said.exit_code == 3
    assert "is not known" in said.output


def test_what_cannot_be_compared_is_named(plan, kept, tmp_path):
    with pytest.raises(ValueError, match=r"1p2b_bf61: no such run at tier tiny.*did you mean '1p2b_bf16'"):
        compare(plan, "1p2b_bf61", tmp_path, kept)
    write_segment(tmp_path / "a", plan, RUN, run_hash="0" * 16)
    with pytest.raises(ValueError, match=f"repeated with {'0' * 16}"):
        compare(plan, RUN, tmp_path / "a", kept)
    write_segment(tmp_path / "b", plan, RUN, status="diverged")
    with pytest.raises(ValueError, match="diverged, but the record completed"):
        compare(plan, RUN, tmp_path / "b", kept)
    write_segment(tmp_path / "c", plan, "12b_fp8")
    with pytest.raises(ValueError, match="12b_fp8/0: not recorded in"):
        compare(plan, "12b_fp8", tmp_path / "c", kept)


def test_before_training_the_command_that_trains_is_given(plan, kept, tmp_path, monkeypatch):
    results = tmp_path / "tiny"
    said = repro_compare(tmp_path, kept)
    assert said.exit_code == 2
    assert f"{RUN}: not trained in {results}; " in said.stderr
    assert said.stderr.count("\n") == 1
    target, options = f"{results}/runs/{RUN}/0/done.json", f"--config tier=tiny results={tmp_path}"
    assert f"`snakemake --cores 2 {target} {options}` trains it" in said.stderr
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"done\.json --config tier=tiny` trains it"):
        compare(plan, RUN, Path("results/tiny"), kept)


def test_a_run_of_the_sweep_is_trained_by_the_campaign(tmp_path):
    """It is recorded, but the workflow has no rule that trains it."""
    with pytest.raises(ValueError, match=r"repro.campaign --recorded none run 8b_rate_2em3 .* trains it"):
        compare(load("proxy"), "8b_rate_2em3", tmp_path, Path("recorded"))


def test_a_tier_without_records_names_those_that_have_some(plan, kept, tmp_path):
    (kept / "tiny").rename(kept / "proxy")
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match=r"no run of tier tiny is recorded; .* holds those of proxy \(`--tier proxy`\)"
    ):
        compare(plan, RUN, tmp_path / "tiny", kept)
    with pytest.raises(ValueError, match=f"{RUN}: no run of tier tiny is recorded$"):
        compare(plan, RUN, tmp_path / "tiny", empty)
    with pytest.raises(ValueError, match="nowhere: no such folder of records"):
        compare(plan, RUN, tmp_path / "tiny", tmp_path / "nowhere")
