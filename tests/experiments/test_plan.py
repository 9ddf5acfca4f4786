"""Fractions become whole steps, runs are cut where others fork, and lineages join up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from repro.experiments import Plan


def test_every_position_is_a_whole_number_of_steps(tiny: Plan) -> None:
    for segment in tiny.segments:
        schedule = segment.frozen["schedule"]
        step = schedule["batch_sequences"] * schedule["sequence_length_tokens"]
        positions = {
            **{key: value for key, value in schedule.items() if key in ("start_tokens", "end_tokens")},
            "horizon": schedule["horizon_tokens"],
            "warmup": schedule["warmup_tokens"],
            "decay": schedule["decay_start_tokens"],
            "validation": segment.frozen["validation"]["every_tokens"],
            "checkpoints": segment.frozen["checkpoints"]["every_tokens"],
            **{f"keep {t}": t for t in segment.frozen["checkpoints"]["keep_tokens"]},
            **{f"phase {i}": p["until_tokens"] for i, p in enumerate(segment.frozen["data"]["phases"])},
        }
        wrong = {name: tokens for name, tokens in positions.items() if tokens % step}
        assert not wrong, f"{segment.folder}: {wrong} are no multiples of {step}"


def test_segments_of_a_run_join_up(tiny: Plan) -> None:
    for run in tiny.runs.values():
        for before, after in pairwise(run.segments):
            assert after.start_tokens == before.end_tokens
            assert after.parent == (run.name, before.index)


def test_segments_of_a_run_differ_in_their_place_only(tiny: Plan) -> None:
    places = {"segment", "run_hash", "init_from", "start_tokens", "end_tokens", "keep_tokens"}

    def rest(frozen: Any) -> Any:
        return (
            {k: rest(v) for k, v in frozen.items() if k not in places} if isinstance(frozen, dict) else frozen
        )

    for run in tiny.runs.values():
        assert all(rest(segment.frozen) == rest(run.segments[0].frozen) for segment in run.segments), run.name


def test_a_run_is_cut_where_others_fork(tiny: Plan) -> None:
    run = tiny.run("12b_nvfp4")
    steps = [segment.end_tokens // run.step_tokens for segment in run.segments]
    num_steps = run.horizon_tokens // run.step_tokens
    assert steps == [round(fraction * num_steps) for fraction in (0.343, 0.82, 0.99, 1.0)]


def test_a_fork_continues_the_segment_that_ends_at_its_token(tiny: Plan) -> None:
    forks = [run for run in tiny.runs.values() if run.parent]
    assert len(forks) == 14
    for run in forks:
        parent = tiny.segment(*run.segments[0].parent)
        assert parent.run == "12b_nvfp4"
        assert parent.end_tokens == run.start_tokens
        assert run.segments[0].frozen["init_from"] == {
            "run": parent.run, "segment": parent.index, "run_hash": parent.run_hash, "tokens": run.start_tokens,
        }  # fmt: skip


def test_a_fork_changes_nothing_but_what_its_file_says(plan: Plan) -> None:
    """Same seed, same data, same learning rate: the curves differ by the recipe alone."""
    forks = [run for run in plan.runs.values() if run.parent]
    assert forks
    for run in forks:
        own, parents = run.segments[0].frozen, plan.run(run.parent).segments[0].frozen
        for key in ("seed", "model", "data", "optimizer", "validation", "divergence"):
            assert own[key] == parents[key], f"{run.name}: {key}"
        moved = {k for k in own["schedule"] if own["schedule"][k] != parents["schedule"][k]}
        assert moved <= {"start_tokens", "end_tokens"}, f"{run.name}: {moved}"


def test_trial_17_a_switch_takes_effect_exactly_at_its_token(tiny: Plan) -> None:
    """Before the token the parent's recipe trains, after it the other one, with no step in between."""
    chain = tiny.lineage("12b_switch_both_82")
    assert [(s.run, s.index) for s in chain] == [
        ("12b_nvfp4", 0), ("12b_nvfp4", 1), ("12b_switch_both_82", 0),
    ]  # fmt: skip
    assert all(a.end_tokens == b.start_tokens for a, b in pairwise(chain))
    formats = [segment.frozen["recipe"]["fprop"]["x"]["format"] for segment in chain]
    assert formats == ["nvfp4", "nvfp4", "bf16"]


def test_fork_points_and_evaluated_checkpoints_are_kept(tiny: Plan) -> None:
    run = tiny.run("12b_nvfp4")
    kept = [t for segment in run.segments for t in segment.frozen["checkpoints"]["keep_tokens"]]
    assert kept == sorted(set(kept))
    assert {*run.evaluation_tokens, *run.measure_tokens, *(s.end_tokens for s in run.segments)} == set(kept)
    for segment in run.segments:
        tokens = segment.frozen["checkpoints"]["keep_tokens"]
        assert all(segment.start_tokens < t <= segment.end_tokens for t in tokens)


def test_what_is_measured_is_kept_and_the_end_is_evaluated_besides(configs) -> None:
    configs.edit("tiers/tiny.yaml", "1p2b_last4: [1.0]", "1p2b_last4: [0.5]")
    plan = configs.load()
    measured = plan.run("1p2b_last4")
    kept = {t for s in measured.segments for t in s.frozen["checkpoints"]["keep_tokens"]}
    (tokens,) = measured.measure_tokens
    assert tokens == measured.horizon_tokens // 2
    assert tokens in kept, f"nothing is left to measure at {tokens} tokens: {sorted(kept)}"
    evaluated = plan.run("12b_fp8")
    assert evaluated.evaluation_tokens[-1] == evaluated.end_tokens


def test_every_run_but_replicas_has_the_seed_of_its_tier_and_the_same_order_of_samples(configs) -> None:
    data_seeds = {name: run.segments[0].frozen["data"]["seed"] for name, run in configs.load().runs.items()}
    configs.edit("tiers/tiny.yaml", "\nseed: 1", "\nseed: 7")
    plan = configs.load()
    for run in plan.runs.values():
        frozen = run.segments[0].frozen
        if run.replica_of is None:
            assert frozen["seed"] == 7, f"{run.name} has seed {frozen['seed']}"
            assert frozen["data"]["seed"] == data_seeds[run.name], run.name


def test_every_run_has_steps_to_show(tiny: Plan) -> None:
    few = {run.name: run.num_tokens // run.step_tokens for run in tiny.runs.values()}
    short = {"12b_switch_both_99"}
    assert all(steps >= 8 for name, steps in few.items() if name not in short), few
    assert few["12b_switch_both_99"] >= 2


def test_longer_horizon_stretches_decay_and_phases_but_not_warmup(tiny: Plan) -> None:
    base, longer = (tiny.run(name).segments[0].frozen for name in ("8b_mxfp4", "8b_mxfp4_1p5x"))
    assert longer["schedule"]["horizon_tokens"] == 1.5 * base["schedule"]["horizon_tokens"]
    assert longer["schedule"]["warmup_tokens"] == base["schedule"]["warmup_tokens"]
    step = tiny.run("8b_mxfp4").step_tokens
    for own, short in (
        (longer["schedule"]["decay_start_tokens"], base["schedule"]["decay_start_tokens"]),
        (longer["data"]["phases"][0]["until_tokens"], base["data"]["phases"][0]["until_tokens"]),
    ):
        assert abs(own - 1.5 * short) <= step


def test_replica_differs_by_its_seeds_only(tiny: Plan) -> None:
    own, original = (tiny.run(name).segments[0].frozen for name in ("1p2b_last4_seed2", "1p2b_last4"))
    assert own["seed"] == 2
    assert own["data"]["seed"] != original["data"]["seed"]
    for key in ("model", "recipe", "schedule", "optimizer", "validation"):
        assert own[key] == original[key], key
    assert tiny.replicas("1p2b_last4") == ["1p2b_last4_seed2"]


def test_runs_that_are_compared_share_initial_weights_and_sample_order(plan: Plan) -> None:
    """Weights follow from seed and model, samples from seed and phases; a longer horizon stretches the phases."""
    originals = [run for run in plan.runs.values() if run.replica_of is None]
    assert len({(s.frozen["seed"], s.frozen["data"]["seed"]) for run in originals for s in run.segments}) == 1
    first: dict[Any, Any] = {}
    for run in originals:
        for frozen in (segment.frozen for segment in run.segments):
            model = first.setdefault(run.family, frozen["model"])
            data = first.setdefault((run.family, run.horizon_tokens), frozen["data"])
            assert (frozen["model"], frozen["data"]) == (model, data), run.name


def test_replica_of_a_fork_continues_the_replica_of_its_parent(configs) -> None:
    configs.edit("tiers/tiny.yaml", "  12b_nvfp4: [2]\n", "  12b_nvfp4: [2]\n  12b_rht4: [2]\n")
    plan = configs.load()
    run = plan.run("12b_rht4_seed2")
    assert run.segments[0].parent == ("12b_nvfp4_seed2", 0)
    assert [s.run for s in plan.lineage(run.name)] == ["12b_nvfp4_seed2", "12b_rht4_seed2"]
    assert list(plan.runs).index("12b_nvfp4_seed2") < list(plan.runs).index(run.name)


def test_rounding_is_said(tiny: Plan) -> None:
    assert any("fork_at" in note and "rounded to" in note for note in tiny.run("12b_rht4").notes)
    assert not tiny.run("1p2b_bf16").notes


def test_unknown_segment_is_refused(tiny: Plan) -> None:
    with pytest.raises(ValueError, match="segments 0 to 3, not 4"):
        tiny.segment("12b_nvfp4", 4)


@pytest.mark.parametrize("fraction", [0.2, 1.2])
def test_evaluation_outside_a_run_is_refused(fraction: float, configs) -> None:
    configs.edit("tiers/tiny.yaml", "evaluate_at:", f"evaluate_at:\n  12b_rht4: [{fraction}]\n #")
    with pytest.raises(ValueError, match=r"evaluate_at\.12b_rht4"):
        configs.load()


def test_a_child_takes_horizon_and_blocks_from_its_parent_where_it_says_nothing(configs) -> None:
    configs.add_run(
        "8b_longer_fp8: {parent: 8b_mxfp4_1p5x, recipe: fp8_block, fork_at: 0.5}", file="formats_8b"
    )
    plan = configs.load()
    parent, child = plan.run("8b_mxfp4_1p5x"), plan.run("8b_longer_fp8")
    assert child.horizon_tokens == parent.horizon_tokens
    assert child.recipe.fprop.x.format == "fp8_block"
    assert child.recipe.bf16_blocks == parent.recipe.bf16_blocks, (
        "another recipe in other blocks: two changes"
    )
