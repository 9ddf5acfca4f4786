"""Frozen files: the same text for the same configuration, touched only by what influences the numbers."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from repro.experiments import Plan, freeze_all, frozen_text, load
from repro.experiments.content import run_hash_of
from repro.experiments.model import ModelSpec
from repro.experiments.recipe import Recipe

CONFIGS = Path(__file__).parents[2] / "configs"
KEYS = {
    "schema", "run", "segment", "tier", "family", "backend", "seed", "model", "recipe", "schedule", "optimizer",
    "data", "validation", "checkpoints", "divergence", "init_from", "run_hash",
}  # fmt: skip


def names(written: list[Path]) -> set[str]:
    """Runs that were written, as run/segment."""
    return {f"{path.parts[-3]}/{path.parts[-2]}" for path in written}


def test_every_segment_gets_a_file_that_reads_back(tiny: Plan, tmp_path: Path) -> None:
    written = freeze_all(tiny, tmp_path)
    assert len(written) == len(list(tiny.segments))
    for segment in tiny.segments:
        content = yaml.safe_load((tmp_path / segment.folder / "run.yaml").read_text())
        assert content == segment.frozen
        assert set(content) == KEYS
        assert content["run_hash"] == run_hash_of(content)
        Recipe.model_validate(content["recipe"])
        ModelSpec.model_validate(content["model"])


def test_a_full_disk_is_told_with_the_file_which_stays_as_it_was(
    tiny: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze_all(tiny, tmp_path)
    path = tmp_path / "runs" / "12b_nvfp4" / "0" / "run.yaml"
    path.write_text("old")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(
        OSError, match=r"12b_nvfp4/0/run\.yaml: cannot be written \(No space left on device\)"
    ):
        freeze_all(tiny, tmp_path)
    assert path.read_text() == "old"
    assert [file.name for file in path.parent.iterdir()] == ["run.yaml"]


def test_second_time_touches_nothing(tiny: Plan, tmp_path: Path) -> None:
    freeze_all(tiny, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert freeze_all(tiny, tmp_path) == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_damaged_file_is_written_again(tiny: Plan, tmp_path: Path) -> None:
    path = freeze_all(tiny, tmp_path)[0]
    path.write_text("cut of")
    assert freeze_all(tiny, tmp_path) == [path]


def test_a_file_that_cannot_be_replaced_stays_whole(
    tiny: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = freeze_all(tiny, tmp_path)[0]
    path.write_text("old")

    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        freeze_all(tiny, tmp_path)
    assert path.read_text() == "old"
    assert not list(path.parent.glob(".run.yaml.*")), "a temporary file is left behind"


def test_text_is_the_same_in_another_process(tiny: Plan) -> None:
    code = (
        "from repro.experiments import load, frozen_text; import hashlib;"
        f"plan = load('tiny', configs_dir={str(CONFIGS)!r});"
        "print(hashlib.sha256(''.join(frozen_text(s.frozen) for s in plan.segments).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, cwd=CONFIGS.parent, check=True,
            capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


def test_loading_and_freezing_is_quick_enough_to_do_always(tmp_path: Path) -> None:
    def seconds() -> float:
        start = time.process_time()
        freeze_all(load("tiny", configs_dir=CONFIGS), tmp_path)
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 1.0


def test_a_label_retrains_nothing(configs, tmp_path: Path) -> None:
    freeze_all(configs.load(), tmp_path)
    configs.edit("experiments/ablate_12b.yaml", "label: 4 x 4 Hadamard", "label: H4")
    configs.edit("tiers/tiny.yaml", "minutes: ", "minutes: 9")
    configs.edit("models/tiny/12b.yaml", "keeps: >-\n", "keeps: >-\n  In other words.\n")
    assert freeze_all(configs.load(), tmp_path) == []


def test_a_changed_recipe_retrains_its_users_and_the_forks_below(configs, tmp_path: Path) -> None:
    freeze_all(configs.load(), tmp_path)
    configs.edit("experiments/main_12b.yaml", "bf16_blocks: first2_last8", "bf16_blocks: last4")
    written = names(freeze_all(configs.load(), tmp_path))
    runs = {name.split("/")[0] for name in written}
    assert {"12b_nvfp4", "12b_nvfp4_seed2", "12b_rht4", "12b_switch_both_99"} <= runs
    assert not [run for run in runs if not run.startswith("12b")]
    assert "12b_fp8" not in runs


def test_a_changed_fork_retrains_itself_only(configs, tmp_path: Path) -> None:
    freeze_all(configs.load(), tmp_path)
    configs.edit("experiments/ablate_12b.yaml", "wgrad.*.hadamard: 128", "wgrad.*.hadamard: 64")
    assert names(freeze_all(configs.load(), tmp_path)) == {"12b_rht128/0"}


def test_a_new_fork_leaves_the_segments_before_it(configs, tmp_path: Path) -> None:
    freeze_all(configs.load(), tmp_path)
    configs.add_run("12b_new: {parent: 12b_nvfp4, fork_at: 0.6, end_at: 0.7, changes: {fprop: bf16}}")
    written = names(freeze_all(configs.load(), tmp_path))
    assert "12b_new/0" in written
    assert "12b_nvfp4/0" not in written
    assert "12b_rht4/0" not in written


def test_hash_follows_the_lineage(configs) -> None:
    before = {s.folder: s.run_hash for s in configs.load().segments}
    configs.edit("models/tiny/12b.yaml", "norm_eps: 1.0e-5", "norm_eps: 1.0e-6")
    after = {s.folder: s.run_hash for s in configs.load().segments}
    changed = {folder for folder in before if before[folder] != after[folder]}
    assert changed == {folder for folder in before if folder.startswith("runs/12b")}


def test_the_hash_covers_every_key_whatever_their_order(tiny: Plan) -> None:
    """A fork's: with another parent, seed or limit of divergence it would be another run in the old one's folder."""
    content = dict(tiny.run("12b_rht4").segments[0].frozen)
    own = run_hash_of(content)
    alike = [key for key in content if key != "run_hash" and run_hash_of({**content, key: "other"}) == own]
    assert not alike, f"the run's hash says nothing of {', '.join(alike)}"
    other_parent = {**content["init_from"], "run_hash": "0" * 16}
    assert run_hash_of({**content, "init_from": other_parent}) != own, (
        "a change of the parent reaches its forks"
    )
    assert run_hash_of(dict(sorted(content.items()))) == own, "the hash depends on the order of keys"


def test_no_two_segments_share_a_state_folder(tiny: Plan) -> None:
    hashes = [segment.run_hash for segment in tiny.segments]
    assert len(set(hashes)) == len(hashes)


def test_frozen_text_says_where_it_comes_from(tiny: Plan) -> None:
    assert frozen_text(next(tiny.segments).frozen).startswith("# Frozen from configs/")
