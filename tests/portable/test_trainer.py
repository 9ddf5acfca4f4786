"""Training one frozen segment: learning, resuming to the bit, forks, switches, divergence."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from small_segment import STEP_TOKENS, freeze, write_data

from repro.portable import checkpoint
from repro.portable.frozen import load_frozen
from repro.portable.metrics import comparable
from repro.portable.schedule import learning_rate
from repro.portable.trainer import Stopped, Trainer


def train(path: Path, data_dir: Path, state: Path, **options) -> str:
    torch.set_num_threads(1)
    trainer = Trainer(load_frozen(path), data_dir=data_dir, state_root=state)
    try:
        return trainer.run(**options)
    finally:
        trainer.close()


def metrics(path: Path) -> list[dict]:
    return comparable((path.parent / "metrics.jsonl").read_text())


def losses(path: Path, kind: str = "train") -> list[float]:
    return [record["loss"] for record in metrics(path) if record["kind"] == kind]


def differing(left: list[dict], right: list[dict]) -> str:
    """The first record in which two runs differ, for the assertion's message."""
    for one, other in zip(left, right, strict=False):
        if one != other:
            return f"first difference: {one} v {other}"
    return f"{len(left)} v {len(right)} records"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data_dir):
    """Per recipe, the metrics of a run that was never stopped."""
    root = tmp_path_factory.mktemp("undisturbed")
    found = {}
    for recipe in ("bf16", "nvfp4"):
        path = freeze(root / f"run_{recipe}", recipe=recipe)
        assert train(path, data_dir, root / "state") == "completed"
        found[recipe] = metrics(path)
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_dir):
    """run.yaml, data and states of a segment of 3 steps that is trained."""
    folder = tmp_path_factory.mktemp("finished")
    path = freeze(folder / "run_bf16", recipe="bf16", end=3)
    train(path, data_dir, folder / "state")
    return path, data_dir, folder / "state"


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4"])
def test_the_loss_falls_on_text_that_can_be_learnt(undisturbed, recipe):
    found = [record["loss"] for record in undisturbed[recipe] if record["kind"] == "train"]
    assert len(found) == 20
    assert found[-1] < found[0] - 0.5, found


def test_every_step_has_the_rate_of_its_place_in_the_schedule(tmp_path, data_dir):
    path = freeze(tmp_path / "run_bf16", recipe="bf16")
    train(path, data_dir, tmp_path / "state")
    schedule = load_frozen(path).schedule
    steps = [record for record in metrics(path) if record["kind"] == "train"]
    expected = [learning_rate(number * STEP_TOKENS, schedule) for number in range(20)]
    assert [record["learning_rate"] for record in steps] == expected


def test_done_tells_what_ran(tmp_path, data_dir):
    path = freeze(tmp_path / "run_nvfp4", end=4)
    train(path, data_dir, tmp_path / "state")
    done = json.loads((path.parent / "done.json").read_text())
    assert done["status"] == "completed"
    assert done["end_tokens"] == 4 * STEP_TOKENS
    assert done["run_hash"] == done["provenance"]["run_hash"] == load_frozen(path).run_hash
    assert done["final"]["validation_loss"] == losses(path, "validation")[-1]
    manifest = (data_dir / "manifest.json").read_bytes()
    assert done["provenance"]["data_sha256"] == hashlib.sha256(manifest).hexdigest()
    formats = {(row["block"], row["gemm"], row["operand"]): row["format"] for row in done["precision"]}
    assert formats[0, "wgrad", "g"] == "nvfp4"
    assert formats[3, "wgrad", "g"] == "bf16", "the last block stays in BF16"


def check_speed(record, tokens, *, half):
    """tokens_per_second, rounded to tenths, is `tokens` over seconds, which were rounded by up to `half`."""
    slowest, fastest = tokens / (record["seconds"] + half), tokens / (record["seconds"] - half)
    assert slowest - 0.05 <= record["tokens_per_second"] <= fastest + 0.05


def test_metrics_tell_speed_and_memory_of_every_step(tmp_path, data_dir):
    path = freeze(tmp_path / "run_nvfp4", end=4)
    train(path, data_dir, tmp_path / "state")
    lines = [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    assert len(steps) == 4
    for line in steps:
        check_speed(line, STEP_TOKENS, half=0.5e-5)
        assert line["peak_memory_bytes"] > 1e7, "no less than Python and torch"
        assert 0 < line["data_seconds"] < line["seconds"], "the wait for samples is a part of the step"
    made_with = json.loads((path.parent / "done.json").read_text())["provenance"]
    # The whole segment's, as one number each: seconds to 1 ms, those of each step to 10 us.
    for key in ("seconds", "data_seconds"):
        assert made_with[key] == pytest.approx(sum(line[key] for line in steps), abs=0.5e-3 + 4 * 0.5e-5)
    check_speed(made_with, 4 * STEP_TOKENS, half=0.5e-3)
    assert made_with["peak_memory_bytes"] >= steps[-1]["peak_memory_bytes"]


def test_validation_does_not_disturb_training(tmp_path, data_dir, undisturbed):
    path = freeze(tmp_path / "run_nvfp4", validation={"sequences": 8, "every_tokens": STEP_TOKENS})
    train(path, data_dir, tmp_path / "state")
    expected = [record["loss"] for record in undisturbed["nvfp4"] if record["kind"] == "train"]
    assert losses(path) == expected


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4"])
def test_trial_14_a_stopped_run_goes_on_to_the_bit(tmp_path, data_dir, undisturbed, recipe):
    path = freeze(tmp_path / f"run_{recipe}", recipe=recipe)
    stops = iter([False] * 6 + [True])
    with pytest.raises(Stopped, match="stopped at step 7, saved"):
        train(path, data_dir, tmp_path / "state", should_stop=lambda: next(stops, False))
    assert not (path.parent / "metrics.jsonl").exists(), "an unfinished segment publishes nothing"
    assert train(path, data_dir, tmp_path / "state") == "completed"
    assert metrics(path) == undisturbed[recipe], differing(metrics(path), undisturbed[recipe])


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4"])
def test_trial_14_killed_at_random_moments_gives_the_same_bits(tmp_path, data_dir, undisturbed, recipe):
    path = freeze(tmp_path / f"run_{recipe}", recipe=recipe)
    command = [sys.executable, "-m", "repro.portable", str(path), "--data", str(data_dir)]
    command += ["--state", str(tmp_path / "state"), "--device", "cpu"]
    rng, kills = random.Random(recipe), 0
    state = tmp_path / "state" / load_frozen(path).run_hash
    while not (path.parent / "done.json").exists():
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        if kills < 3:
            before = (state / "metrics.jsonl").stat().st_size if (state / "metrics.jsonl").exists() else 0
            deadline = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline:
                live = state / "metrics.jsonl"
                if live.exists() and live.stat().st_size != before:
                    break  # it trains: now at a random moment
                time.sleep(0.005)
            time.sleep(rng.random() * 0.15)
            process.send_signal(signal.SIGKILL)
            kills += 1
        _, errors = process.communicate(timeout=120)
        assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    assert kills >= 1
    assert metrics(path) == undisturbed[recipe], differing(metrics(path), undisturbed[recipe])


def test_sigterm_saves_and_the_same_command_goes_on(tmp_path, data_dir, undisturbed):
    path = freeze(tmp_path / "run_bf16", recipe="bf16")
    # Checkpoints only when asked: what survives was saved because of the signal.
    content = yaml.safe_load(path.read_text())
    state = tmp_path / "state"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "repro.portable",
        str(path),
        "--data",
        str(data_dir),
        "--state",
        str(state),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
    live = state / content["run_hash"] / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not live.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    if process.returncode == 0:
        pytest.fail("the run ended before the signal: make it longer")
    assert process.returncode == 143, errors.decode()
    assert b"saved; run again to go on" in errors
    assert checkpoint.steps(state / content["run_hash"])
    assert subprocess.run(command, check=False, env=environment, capture_output=True).returncode == 0
    assert metrics(path) == undisturbed["bf16"], differing(metrics(path), undisturbed["bf16"])


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path, data_dir, undisturbed, caplog):
    path = freeze(tmp_path / "run_nvfp4")
    stops = iter([False] * 9 + [True])
    with pytest.raises(Stopped):
        train(path, data_dir, tmp_path / "state", should_stop=lambda: next(stops, False))
    state = tmp_path / "state" / load_frozen(path).run_hash
    newest = state / f"step_{checkpoint.steps(state)[-1]:08d}" / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    train(path, data_dir, tmp_path / "state")
    assert "truncated or altered" in caplog.text
    assert metrics(path) == undisturbed["nvfp4"], differing(metrics(path), undisturbed["nvfp4"])


def test_two_segments_give_the_bits_of_one(tmp_path, data_dir, undisturbed):
    first = freeze(tmp_path / "run_nvfp4" / "0", end=8)
    train(first, data_dir, tmp_path / "state")
    parent = {
        "run": "run_nvfp4",
        "segment": 0,
        "run_hash": load_frozen(first).run_hash,
        "tokens": 8 * STEP_TOKENS,
    }
    second = freeze(tmp_path / "run_nvfp4" / "1", start=8, parent=parent)
    train(second, data_dir, tmp_path / "state")
    expected = [record["loss"] for record in undisturbed["nvfp4"] if record["kind"] == "train"]
    assert losses(first) + losses(second) == expected


def test_trial_17_a_switch_takes_effect_at_its_token_and_is_recorded(tmp_path, data_dir, undisturbed):
    first = freeze(tmp_path / "run" / "0", end=8)
    train(first, data_dir, tmp_path / "state")
    parent = {"run": "run", "segment": 0, "run_hash": load_frozen(first).run_hash, "tokens": 8 * STEP_TOKENS}
    second = freeze(tmp_path / "run" / "1", recipe="bf16", start=8, end=10, parent=parent)
    torch.set_num_threads(1)
    trainer = Trainer(load_frozen(second), data_dir=data_dir, state_root=tmp_path / "state")
    seen = []
    trainer.context.observer = lambda *arguments: seen.append((trainer.context.step, arguments))
    trainer.run()
    trainer.close()
    assert min(step for step, _ in seen) == 8, "the first operand under the new recipe belongs to step 8"
    assert {row["format"] for row in json.loads((second.parent / "done.json").read_text())["precision"]} == {
        "bf16"
    }
    without_switch = [record["loss"] for record in undisturbed["nvfp4"] if record["kind"] == "train"][8:10]
    assert losses(second) != without_switch


def test_same_start_and_samples_for_every_recipe(undisturbed):
    first = {recipe: found[0]["loss"] for recipe, found in undisturbed.items()}
    assert abs(first["bf16"] - first["nvfp4"]) < 0.05, f"step 1 differs by more than rounding: {first}"


def test_divergence_is_a_result_and_reaches_the_forks(tmp_path, data_dir):
    # A learning rate that no model survives: the loss climbs and stays.
    schedule = yaml.safe_load(freeze(tmp_path / "parent").read_text())["schedule"]
    hot = {**schedule, "learning_rate_max": 3.0, "end_tokens": 10 * STEP_TOKENS}
    path = freeze(tmp_path / "parent", schedule=hot, divergence={"window_steps": 2, "rise_nats": 1.0})
    assert train(path, data_dir, tmp_path / "state") == "diverged"
    done = json.loads((path.parent / "done.json").read_text())
    assert done["status"] == "diverged"
    assert done["end_tokens"] < 10 * STEP_TOKENS
    assert metrics(path)[-1]["event"] == "diverged"
    assert "above the lowest before" in metrics(path)[-1]["reason"]
    parent = {
        "run": "parent",
        "segment": 0,
        "run_hash": load_frozen(path).run_hash,
        "tokens": 10 * STEP_TOKENS,
    }
    fork = freeze(tmp_path / "fork", start=10, parent=parent)
    assert train(fork, data_dir, tmp_path / "state") == "diverged"
    assert "parent run diverged" in metrics(fork)[-1]["reason"]


def test_a_non_finite_weight_is_counted_and_ends_the_run_as_diverged(tmp_path, data_dir):
    path = freeze(tmp_path / "run_nvfp4")
    torch.set_num_threads(1)
    trainer = Trainer(load_frozen(path), data_dir=data_dir, state_root=tmp_path / "state")
    with torch.no_grad():
        next(iter(trainer.model.quantizable_linears()))[2].weight[0, 0] = float("inf")
    assert trainer.run() == "diverged"
    trainer.close()
    first = metrics(path)[0]
    assert first["nonfinite"] > 0, first


def test_a_finished_segment_is_not_trained_again(tmp_path, data_dir):
    path = freeze(tmp_path / "run_nvfp4", end=3)
    train(path, data_dir, tmp_path / "state")
    before = (path.parent / "metrics.jsonl").read_bytes()
    (path.parent / "metrics.jsonl").unlink()
    train(path, data_dir, tmp_path / "state")
    assert (path.parent / "metrics.jsonl").read_bytes() == before, "the very lines, timings included"


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("done.json", lambda content: content[: len(content) // 2], "missing or damaged"),
        ("done.json", lambda content: b"{}", "missing or damaged"),
        ("metrics.jsonl", lambda content: b"", "missing or damaged"),
        ("metrics.jsonl", lambda content: content[:-20], "missing or damaged"),
        (
            "metrics.jsonl",
            lambda content: b"".join(content.splitlines(keepends=True)[:1]),
            "done.json says .* tokens, metrics",
        ),
    ],
)
def test_damaged_results_of_a_finished_segment_are_named_and_not_handed_on(
    name, damage, words, tmp_path, finished
):
    path, data_dir, state = finished
    folder = state / yaml.safe_load(path.read_text())["run_hash"]
    shutil.copytree(folder, tmp_path / "state" / folder.name)
    frozen = shutil.copy(path, tmp_path / "run.yaml")
    file = tmp_path / "state" / folder.name / name
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(
        ValueError, match=rf"{folder.name}: done\.json or metrics\.jsonl: .*{words}.* remove the folder"
    ):
        train(Path(frozen), data_dir, tmp_path / "state")
    assert not (tmp_path / "done.json").exists()
    assert not (tmp_path / "metrics.jsonl").exists()


def test_other_data_under_the_same_run_trains_anew(tmp_path, data_dir, caplog):
    path = freeze(tmp_path / "run_bf16", recipe="bf16", end=3)
    train(path, data_dir, tmp_path / "state")
    before = losses(path)
    train(path, write_data(tmp_path / "other", seed=5), tmp_path / "state")
    assert losses(path) != before
    assert "the data changed" in caplog.text


def test_the_switch_for_fp8_products_reaches_the_layers(tmp_path, data_dir):
    segment = load_frozen(freeze(tmp_path / "run"))
    for emulate in (False, True):
        trainer = Trainer(segment, data_dir=data_dir, state_root=tmp_path / str(emulate), emulate_fp8=emulate)
        assert trainer.context.emulate_fp8 == emulate
        trainer.close()
