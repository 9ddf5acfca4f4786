"""Reading runs: lineage, divergence, and what is said about a file that is missing, cut off or does not fit."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import yaml

from repro.analysis.results import Results
from repro.analysis.trained_run import Segment, replica_of, short_commit
from repro.experiments.content import run_hash_of


def test_a_fork_continues_the_curve_of_its_parent(results: Results) -> None:
    parent, fork = results.run("12b_nvfp4"), results.run("12b_without_sr")
    before, whole = fork.curve("train"), parent.curve("train")
    shared = before[before["tokens"] <= fork.own_start_tokens]
    expected = whole[whole["tokens"] <= fork.own_start_tokens]
    assert len(shared) > 10, "the parent's part is missing"
    np.testing.assert_array_equal(shared["tokens"], expected["tokens"])
    np.testing.assert_array_equal(shared["loss"], expected["loss"])
    assert before["tokens"].is_monotonic_increasing
    assert before["tokens"].is_unique, "a token count appears in parent and fork"


def test_segments_of_one_run_join_without_gap_or_overlap(results: Results) -> None:
    run = results.run("12b_nvfp4")
    assert len(run.lineage) > 1, "12b_nvfp4 is cut at its fork points"
    steps = np.diff(run.curve("train")["tokens"])
    assert set(steps) == {steps[0]}, f"uneven steps {set(steps)}"
    assert run.curve("train")["tokens"].iloc[-1] == run.horizon_tokens


def test_a_diverged_run_ends_at_its_divergence(results: Results) -> None:
    run = results.run("1p2b_last1")
    assert run.diverged_tokens == pytest.approx(0.4 * run.horizon_tokens, rel=0.05)
    assert run.curve("validation")["tokens"].max() < run.diverged_tokens
    assert run.meta()["status"] == "diverged"


def test_a_run_that_diverged_before_its_first_validation_has_an_empty_curve(results: Results) -> None:
    assert results.run("1p2b_base_all").curve("validation").empty


def test_a_fork_of_a_diverged_parent_is_diverged_too(damaged: Path) -> None:
    first = Results(damaged).run("12b_without_sr").lineage[0].folder
    done = json.loads((first / "done.json").read_text())
    (first / "done.json").write_text(json.dumps(done | {"status": "diverged"}))
    run = Results(damaged).run("12b_without_sr")
    assert run.diverged_tokens == done["end_tokens"]
    assert len(run.lineage) == 1, "segments after the divergence belong to no curve"


def test_replicas_are_found_by_their_name(results: Results) -> None:
    assert replica_of("12b_fp8_seed3") == ("12b_fp8", 3)
    assert replica_of("12b_fp8") == ("12b_fp8", 1)
    assert results.replicas("12b_fp8") == ["12b_fp8_seed2"]
    assert results.replicas("12b_without_sr") == []


def test_a_missing_file_is_named(damaged: Path) -> None:
    path = damaged / "runs" / "12b_fp8" / "0" / "metrics.jsonl"
    path.unlink()
    with pytest.raises(ValueError, match=r"12b_fp8/0/metrics\.jsonl: missing"):
        Results(damaged).run("12b_fp8").curve("train")


def test_an_unfinished_run_is_named(damaged: Path) -> None:
    (damaged / "runs" / "12b_fp8" / "0" / "done.json").unlink()
    with pytest.raises(ValueError, match=r"12b_fp8/0/done\.json: missing; training writes it"):
        Results(damaged).run("12b_fp8")


def test_metrics_cut_off_in_mid_line_are_named_with_the_line(damaged: Path) -> None:
    path = damaged / "runs" / "12b_fp8" / "0" / "metrics.jsonl"
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(
        ValueError, match=r"metrics\.jsonl: line \d+ is no complete JSON object; the file is cut off"
    ):
        Results(damaged).run("12b_fp8").curve("train")


def test_metrics_cut_off_between_lines_are_named_with_the_tokens(damaged: Path) -> None:
    path = damaged / "runs" / "12b_fp8" / "0" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-4]))
    with pytest.raises(ValueError, match=r"metrics\.jsonl: ends at \d+ tokens but done\.json says"):
        Results(damaged).run("12b_fp8").curve("train")


def test_metrics_take_less_memory_than_their_file_has_bytes(tmp_path: Path) -> None:
    """A segment of the paper tier has 1.7 million lines: whole records of them took 3 GB of a login node."""
    line = {"kind": "train", "step": 1, "tokens": 6291456, "loss": 2.25, "grad_norm": 0.125, "nonfinite": 0}
    line |= {
        "learning_rate": 4.5e-4,
        "seconds": 0.9,
        "tokens_per_second": 6990506.7,
        "peak_memory_bytes": 10**11,
    }
    validation = {
        "kind": "validation",
        "step": 1,
        "tokens": 6291456,
        "loss": 2,
        "loss_by_category": {"code": 1.5},
    }
    lines = [line, validation, line | {"loss": None}] * 10_000
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    (tmp_path / "done.json").write_text('{"run_hash": "x", "end_tokens": 6291456}')
    segment = Segment(tmp_path, {"run_hash": "x"})
    tracemalloc.start()
    metrics = segment.metrics
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(text)
    assert list(metrics["kind"][:3]) == ["train", "validation", "train"]
    np.testing.assert_array_equal(metrics["loss"], [2.25, 2.0, np.nan] * 10_000)


def test_a_cut_off_done_file_is_named(damaged: Path) -> None:
    path = damaged / "runs" / "12b_fp8" / "0" / "done.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(ValueError, match=r"done\.json: not complete JSON"):
        Results(damaged).run("12b_fp8")


def test_results_of_another_frozen_run_are_refused(damaged: Path) -> None:
    path = damaged / "runs" / "12b_fp8" / "0" / "run.yaml"
    frozen = yaml.safe_load(path.read_text()) | {"seed": 7}
    path.write_text(yaml.safe_dump(frozen | {"run_hash": run_hash_of(frozen)}))
    with pytest.raises(ValueError, match="the run changed after it was trained"):
        Results(damaged).run("12b_fp8")


def test_a_fork_of_a_parent_that_was_frozen_anew_is_refused(damaged: Path) -> None:
    """The parent was trained again, the fork is still of what it was."""
    path = damaged / "runs" / "12b_nvfp4" / "0" / "run.yaml"
    frozen = yaml.safe_load(path.read_text()) | {"seed": 7}
    path.write_text(yaml.safe_dump(frozen | {"run_hash": run_hash_of(frozen)}))
    done = path.with_name("done.json")
    done.write_text(json.dumps(json.loads(done.read_text()) | {"run_hash": run_hash_of(frozen)}))
    with pytest.raises(ValueError, match=r"but that run is now .*; freeze the runs again"):
        Results(damaged).run("12b_without_sr")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  horizon_tokens: ", "  horizon_tokens: 1", "does not fit its run_hash"),
        ("seed: 1\n", "seed: 1\nsed: 2\n", "does not fit its run_hash"),
        ("seed: 1\n", "seed: 2\nseed: 1\n", "'seed' is there twice"),
        ("run_hash: ", "run_hsh: ", "missing run_hash"),
        ("schedule:", "schedule", "not valid YAML"),
    ],
)
def test_a_frozen_run_that_was_changed_by_hand_is_named(old, new, words, damaged: Path) -> None:
    """A longer horizon would move every point of the curve to the left, and nobody would be told."""
    path = damaged / "runs" / "12b_fp8" / "0" / "run.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=rf"12b_fp8/0/run\.yaml: .*{words}"):
        Results(damaged).run("12b_fp8").curve("train")


def test_an_unknown_run_names_the_nearest(results: Results) -> None:
    with pytest.raises(ValueError, match="no frozen run '12b_nvfp'; did you mean '12b_nvfp4'"):
        results.run("12b_nvfp")


def test_a_missing_results_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such results folder"):
        Results(tmp_path / "tiny")


def test_a_table_without_a_column_is_named(damaged: Path) -> None:
    (damaged / "mechanisms").mkdir()
    (damaged / "mechanisms" / "12b_nvfp4.csv").write_text("run,tokens\n12b_nvfp4,1\n")
    with pytest.raises(ValueError, match=r"mechanisms/12b_nvfp4\.csv: no column fraction, layer"):
        Results(damaged).mechanisms("12b_nvfp4")


def test_a_shortened_commit_still_says_that_there_were_changes() -> None:
    assert short_commit("0123456789abcdef" * 2) == "0123456789ab"
    assert short_commit("0123456789abcdef" * 2 + "+changes") == "0123456789ab+changes"
    assert short_commit("unknown") == "unknown"


def test_a_run_says_that_its_checkout_had_changes(damaged: Path) -> None:
    run = Results(damaged).run("12b_fp8")
    run.last.done["provenance"]["git_commit"] = "0" * 40 + "+changes"
    assert run.meta()["git_commit"] == "0" * 12 + "+changes"
