"""Bad configuration: one message each that names the file, the key and the nearest valid value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repro.experiments.errors import nearest, read_mapping

FORK = "parent: 12b_nvfp4, fork_at: 0.343, end_at: 0.394"

# What is added to the 12B ablations -> the words that the message must hold.
BAD_RUNS = {
    "unknown key": (f"12b_x: {{{FORK}, chnages: {{}}}}", "ablate_12b.yaml", "runs.12b_x.chnages", "'changes'"),
    "unknown operand": (f"12b_x: {{{FORK}, changes: {{wgrad.q.rounding: rne}}}}", "runs.12b_x.changes", "'q'"),
    "unknown rule key": (f"12b_x: {{{FORK}, changes: {{wgrad.g.roundin: rne}}}}", "12b_x", "'rounding'"),
    "unknown rounding": (f"12b_x: {{{FORK}, changes: {{wgrad.g.rounding: rn}}}}", "12b_x", "wgrad.g.rounding", "rne"),
    "unknown format": (f"12b_x: {{{FORK}, changes: {{fprop.x.format: nvpf4}}}}", "12b_x", "fprop.x.format", "nvfp4"),
    "hadamard of size 12": (f"12b_x: {{{FORK}, changes: {{wgrad.*.hadamard: 12}}}}", "size 12", "nearest is 8"),
    "one side of a transform": (f"12b_x: {{{FORK}, changes: {{wgrad.x.hadamard: 4}}}}", "12b_x", "cancels"),
    "unknown parent": ("12b_x: {parent: 12b_nvpf4, fork_at: 0.5}", "runs.12b_x.parent", "'12b_nvfp4'"),
    "unknown recipe": ("12b_x: {base: nvpf4, bf16_blocks: none}", "runs.12b_x.base", "'nvfp4'"),
    "unknown blocks": (f"12b_x: {{{FORK}, bf16_blocks: last5}}", "runs.12b_x.bf16_blocks", "'last4'"),
    "too many blocks": (
        f"12b_x: {{{FORK}, bf16_blocks: {{first: 9, last: 9}}}}", "12b_x.bf16_blocks", "9 \\+ last 9", "16 blocks",
    ),
    "fork beyond the horizon": ("12b_x: {parent: 12b_nvfp4, fork_at: 1.2}", "12b_x.fork_at", "beyond", "12b_nvfp4"),
    "fork on step 0": ("12b_x: {parent: 12b_nvfp4, fork_at: 0.001}", "12b_x.fork_at", "0.001 falls on step 0"),
    "fork at the very end": ("12b_x: {parent: 12b_nvfp4, fork_at: 1.0}", "12b_x.fork_at", "nothing is left"),
    "fork past the parent's end": ("12b_x: {parent: 12b_rht4, fork_at: 0.5}", "12b_x.fork_at", "ends at 0.394"),
    "fork before the parent's start": ("12b_x: {parent: 12b_rht4, fork_at: 0.2}", "12b_x.fork_at", "starts at 0.343"),
    "ends before it starts": ("12b_x: {parent: 12b_nvfp4, fork_at: 0.5, end_at: 0.4}", "12b_x", "0.5 is not before"),
    "ends beyond the horizon": ("12b_x: {parent: 12b_nvfp4, fork_at: 0.5, end_at: 1.5}", "12b_x.end_at", "beyond"),
    "two origins": ("12b_x: {base: nvfp4, parent: 12b_fp8, bf16_blocks: none}", "12b_x", "exactly one of"),
    "no origin": ("12b_x: {label: x}", "12b_x", "exactly one of"),
    "fork without a parent": ("12b_x: {base: nvfp4, bf16_blocks: none, fork_at: 0.5}", "12b_x", "needs a parent"),
    "fork with its own horizon": ("12b_x: {parent: 12b_nvfp4, fork_at: 0.5, horizon: 2}", "12b_x", "horizon"),
    "no blocks said": ("12b_x: {base: nvfp4}", "12b_x", "bf16_blocks is missing"),
    "a horizon in tokens": (
        "12b_x: {base: nvfp4, bf16_blocks: none, horizon: 2.0e+8}", "12b_x.horizon", "less than or equal to 10",
    ),
    "a horizon without its phases": (
        "12b_x: {base: nvfp4, bf16_blocks: none, horizon: 1.0e-3}",
        "ablate_12b.yaml: runs.12b_x", "1 steps are too few",
    ),
    "a switch for a number": ("12b_x: {parent: 12b_nvfp4, fork_at: yes}", "12b_x.fork_at", "true and false"),
    "replica that differs": ("12b_x: {replica_of: 12b_fp8, seed: 2, horizon: 2}", "12b_x", "seed only"),
    "replica without a seed": ("12b_x: {replica_of: 12b_fp8}", "12b_x", "belong together"),
    "circle": ("12b_x: {parent: 12b_y}\n  12b_y: {parent: 12b_x}", "12b_x -> 12b_y -> 12b_x"),
    "twice in one file": (f"12b_rht4: {{{FORK}}}", "ablate_12b.yaml", "12b_rht4", "twice"),
    "twice in two files": ("12b_fp8: {base: nvfp4, bf16_blocks: none}", "12b_fp8 is already told", "main_12b.yaml"),
    "the same run under two names": (f"12b_x: {{{FORK}, changes: {{wgrad.*.hadamard: 4}}}}", "12b_x", "12b_rht4"),
    "name of another family": (f"8b_x: {{{FORK}}}", "'8b_x'", "starting with 12b_"),
    "name of a replica": (f"12b_x_seed2: {{{FORK}}}", "12b_x_seed2", "replicas"),
    "a parent of another family": ("12b_x: {parent: 8b_bf16}", "12b_x.parent", "8b run"),
    "a fork of no step": (
        "12b_x: {parent: 12b_nvfp4, fork_at: 0.5, end_at: 0.501}", "12b_x", "no whole step", "tiny.yaml",
    ),
}  # fmt: skip

# File, what stands there, what is written instead -> the words.
BAD_FILES = {
    "tier: unknown key": ("tiers/tiny.yaml", "backend:", "bakend:", "tiny.yaml", "'bakend'", "'backend'"),
    "tier: unknown key of a family": (
        "tiers/tiny.yaml", "decay_shape:", "decay_shap:", "tiny.yaml", "decay_shap", "'decay_shape'",
    ),
    "tier: unknown key of the optimizer": ("tiers/tiny.yaml", "beta2:", "beta_2:", "beta_2", "'beta2'"),
    "tier: unknown shape": ("tiers/tiny.yaml", "minus_sqrt ", "minus_squrt ", "decay_shape", "'minus_sqrt'"),
    "tier: unknown backend": ("tiers/tiny.yaml", "portable", "portabel", "backend", "'portable'"),
    "tier: unknown replica": ("tiers/tiny.yaml", "  1p2b_last4: [2]", "  1p2b_last5: [2]", "'1p2b_last4'"),
    "tier: replica of the first seed": ("tiers/tiny.yaml", "  1p2b_last4: [2]", "  1p2b_last4: [1]", "seed 1"),
    "tier: replica of a fork alone": (
        "tiers/tiny.yaml", "  12b_nvfp4: [2]\n", "  12b_rht4: [2]\n", "12b_rht4", "replicas.12b_nvfp4",
    ),
    "tier: unknown data": ("tiers/tiny.yaml", "data: tiny", "data: tinny", "tinny.yaml"),
    "tier: name is not the file's": ("tiers/tiny.yaml", "tier: tiny", "tier: proxy", "tiny.yaml", "'proxy'"),
    "tier: learning rate of 300": (
        "tiers/tiny.yaml", "learning_rate_max: 3.0e-3", "learning_rate_max: 300",
        "tiny.yaml", "learning_rate_max", "less than or equal to 1", "found 300",
    ),
    "tier: least learning rate above the largest": (
        "tiers/tiny.yaml", "learning_rate_min: 3.0e-5", "learning_rate_min: 3.0e-1",
        "tiny.yaml", "learning_rate_min 0.3 is above learning_rate_max 0.003",
    ),
    "tier: learning rate of a sweep": (
        "tiers/proxy.yaml", "    8b: [1.0e-3,", "    8b: [1.0e+3,",
        "proxy.yaml", "sweep.learning_rates.8b.0", "less than or equal to 1", "found 1000",
    ),
    "tier: weight decay in per cent": (
        "tiers/tiny.yaml", "weight_decay: 0.1", "weight_decay: 10",
        "tiny.yaml", "optimizer.weight_decay", "less than or equal to 1", "found 10",
    ),
    "tier: epsilon without its minus": (
        "tiers/tiny.yaml", "eps: 1.0e-8", "eps: 1.0e+8",
        "tiny.yaml", "optimizer.eps", "less than or equal to 1", "found 100000000",
    ),
    "tier: beta of 95": ("tiers/tiny.yaml", "beta2: 0.95", "beta2: 95", "optimizer.beta2", "less than 1", "found 95"),
    "tier: warm-up in per cent": (
        "tiers/tiny.yaml", "warmup: 0.05", "warmup: 5", ".warmup", "less than or equal to 1", "found 5",
    ),
    "tier: rate of a device in TFLOP/s": (
        "tiers/proxy.yaml", "{bf16: 2.1e+14,", "{bf16: 210,",
        "proxy.yaml", "cost.flops_per_second.bf16", "greater than or equal to 1000000", "found 210",
    ),
    "tier: a switch for a number": ("tiers/tiny.yaml", "seed: 1", "seed: on", "tiny.yaml: seed: true and false"),
    "tier: a switch in a list": (
        "tiers/tiny.yaml", "  1p2b_last4: [1.0]", "  1p2b_last4: [yes]", "measure_at: true and false",
    ),
    "tier: a family left out": (
        "tiers/tiny.yaml", "  1p2b:\n    horizon_tokens: 40960      # 80 steps\n"
        "    decay_start: 0.85          # Appendix A.3: the last 15 %\n    blend: two_phase\n", "",
        "tiny.yaml: families: no 1p2b, which", "ablate_1p2b.yaml: runs.1p2b_",
    ),
    "tier: batch": ("tiers/tiny.yaml", "micro_batch_sequences: 4", "micro_batch_sequences: 3", "multiple", "3"),
    "tier: more GPUs than micro batches": (
        "tiers/tiny.yaml", "threads: 1, gpus_per_node: 0, nodes: 1", "threads: 1, gpus_per_node: 8, nodes: 1",
        "families.12b: resources ask for 8 GPUs, which cannot share the 1 micro batches of a step",
    ),
    "tier: horizon below a step": (
        "tiers/tiny.yaml", "  8b:\n    horizon_tokens: ", "  8b:\n    horizon_tokens: 81 #", "families.8b.horizon",
    ),
    "data: a source that no file can be named after": (
        "data/tiny.yaml", "  - name: exercises\n", "  - name: ex er\n",
        "tiny.yaml", "sources.", "name", "found 'ex er'",
    ),
    "data: more shards than four digits name": (
        "data/paper.yaml", "shards: 64, gated", "shards: 64000, gated",
        "paper.yaml", "shards", "less than or equal to 10000",
    ),
    "model: a standard deviation of 20": (
        "models/tiny/8b.yaml", "init_std: 0.112 ", "init_std: 112 ", "8b.yaml", "init_std", "less than or equal to 1",
    ),
    "experiment: family": ("experiments/formats_8b.yaml", "family: 8b", "family: 8bb", "family", "'8b'"),
    "recipe: unknown format": ("recipes/mxfp4.yaml", "name: mxfp4", "nme: mxfp4", "mxfp4.yaml", "name"),
}  # fmt: skip


def message_of(configs, tier: str = "tiny") -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are checked by the caller
        configs.load(tier)
    message = str(caught.value)
    assert "\n" not in message, f"more than one line:\n{message}"
    assert "pydantic" not in message, f"not in the user's words: {message}"
    return message


@pytest.mark.parametrize("case", BAD_RUNS)
def test_bad_run_is_named_with_what_would_be_right(case: str, configs) -> None:
    text, *words = BAD_RUNS[case]
    configs.add_run(text)
    message = message_of(configs)
    missing = [word for word in words if not re.search(word, message)]
    assert not missing, f"{missing} not in: {message}"


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_is_named_with_what_would_be_right(case: str, configs) -> None:
    name, old, new, *words = BAD_FILES[case]
    configs.edit(name, old, new)
    message = message_of(
        configs, next((tier for tier in ("proxy", "paper") if name.endswith(f"{tier}.yaml")), "tiny")
    )
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} not in: {message}"


def test_unknown_tier_names_the_nearest(configs) -> None:
    with pytest.raises(ValueError, match=r"no tier 'tinny'.*did you mean 'tiny'"):
        configs.load("tinny")


def test_unknown_run_names_the_nearest(configs) -> None:
    with pytest.raises(ValueError, match=r"no run '12b_rht_4'.*did you mean '12b_rht4'"):
        configs.load().run("12b_rht_4")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", "line 2: 'a' is there twice"), ("- a\n", "found list"),
        ("a: [1\n", "not valid YAML"), ("", "NoneType"),
    ],
)  # fmt: skip
def test_unreadable_yaml_names_the_file(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"x\.yaml: .*{words}"):
        read_mapping(path)


def test_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text("a: 1\n")
    with pytest.raises(ValueError, match=r"tinny\.yaml: no such file.*tiny\.yaml"):
        read_mapping(tmp_path / "tinny.yaml")


def test_nearest_lists_a_few_when_nothing_is_near() -> None:
    assert nearest("zzz", ["ab", "cd"]) == "; known: ab, cd"
    assert nearest("zzz", [f"name{i}" for i in range(40)]).endswith(", ...")
    assert nearest("zzz", []) == "; known: none"
