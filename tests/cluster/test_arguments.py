"""Arguments and environment: golden texts, megatron-core's own options, positions and rates."""

import json
from pathlib import Path

import pytest

from repro.cluster import golden
from repro.cluster.arguments import Folders, argument_list, environment
from repro.cluster.paths import decide
from repro.portable.schedule import learning_rate

OPTIONS = json.loads((Path(__file__).parent / "megatron_core_0_19_2_options.json").read_text())
FOLDERS = Folders(Path("STATE/own"), Path("STATE/parent"), 7)


def by_option(segment, layout, decision=None):
    arguments = argument_list(segment, layout, decision or decide(segment.recipe), FOLDERS)
    return {argument.option: " ".join(argument.values) for argument in arguments}


def test_golden_texts_of_every_paper_run_are_up_to_date():
    wanted = golden.texts()
    there = {path.stem: path.read_text(encoding="utf-8") for path in golden.GOLDEN_DIR.glob("*.txt")}
    stale = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    assert not stale, (
        f"arguments changed in {stale}; renew with: python -m repro.cluster.golden, and read the diff"
    )


def test_every_argument_is_an_option_of_megatron_core_with_values_that_it_takes(paper, segment, layouts):
    for run in paper.runs:
        for layout in layouts.values():
            for argument in argument_list(segment(run), layout, decide(segment(run).recipe), FOLDERS):
                assert argument.option in OPTIONS, f"{run}: megatron-core 0.19.2 has no {argument.option}"
                known = OPTIONS[argument.option]
                if isinstance(known["nargs"], int):
                    assert len(argument.values) == known["nargs"], f"{run}: {argument.words}"
                for value in argument.values:
                    assert value in known.get("choices", [value]), f"{run}: {argument.words}"
                    assert {"int": int, "float": float}.get(known.get("type"), str)(value) is not None
                assert argument.source, f"{run}: {argument.option} has no source"


def test_no_argument_is_there_twice(paper, segment, layouts):
    for run in paper.runs:
        options = [
            a.option
            for a in argument_list(segment(run), layouts["gb200"], decide(segment(run).recipe), FOLDERS)
        ]
        assert len(options) == len(set(options)), run


@pytest.mark.parametrize(
    ("run", "first", "last"),
    [
        ("12b_nvfp4", 2, 8),
        ("12b_fp8", 1, 2),
        ("8b_nvfp4", 0, 8),
        ("1p2b_last4", 0, 8),
        ("1p2b_first2_last2", 4, 4),
    ],
)
def test_trial_18_bf16_blocks_are_counted_in_the_layers_of_megatron(segment, layouts, run, first, last):
    """A block of the 1.2B transformer is two layers of Megatron's pattern: four blocks are eight."""
    options = by_option(segment(run), layouts["gb200"])
    assert options["--first-last-layers-bf16"] == ""
    assert (options["--num-layers-at-start-in-bf16"], options["--num-layers-at-end-in-bf16"]) == (
        str(first),
        str(last),
    )


def test_trial_16_a_quantised_run_always_carries_its_format(paper, segment, layouts):
    for run in paper.runs:
        options = by_option(segment(run), layouts["gb200"])
        path = decide(segment(run).recipe).path
        assert ("--fp4-format" in options) == (path in ("te_nvfp4", "emulated")), run
        assert ("--fp8-format" in options) == (path == "te_fp8"), run
        assert ("--fp4-quantizer-factory" in options) == (path == "emulated"), run


def test_gradients_are_never_accumulated_by_a_fused_gemm(paper, segment, layouts):
    """A CustomRecipe drops `out` and `accumulate`: with fusion the weight gradients would stay zero."""
    for run in paper.runs:
        options = by_option(segment(run), layouts["gb200"])
        assert "--no-gradient-accumulation-fusion" in options, run
        assert "--accumulate-allreduce-grads-in-fp32" in options, run


def test_what_is_not_quantised_is_bf16_and_what_is_summed_is_fp32(paper, segment, layouts):
    for run in paper.runs:
        options = by_option(segment(run), layouts["gb200"])
        assert {"--bf16", "--attention-softmax-in-fp32"} <= set(options), run
        kept = ("--main-params-dtype", "--main-grads-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype")
        assert {options[option] for option in kept} == {"fp32"}, run
        assert not {"--grad-reduce-in-bf16", "--use-precision-aware-optimizer"} & set(options), run


def test_parameters_are_never_gathered_in_four_or_eight_bits(paper, segment, layouts):
    for run in paper.runs:
        assert not {"--fp4-param-gather", "--fp8-param-gather", "--finetune"} & set(
            by_option(segment(run), layouts["gb200"])
        )


def test_no_checkpoint_puts_all_states_into_the_memory_of_every_process(paper, segment, layouts):
    """What can be loaded into other stages is gathered in each process: 148 GB of host memory for the 12B model."""
    for run in paper.runs:
        options = by_option(segment(run), layouts["gb200"])
        assert "--dist-ckpt-optim-fully-reshardable" not in options, run


def test_the_pieces_of_a_checkpoint_are_the_same_on_any_number_of_gpus(segment, layouts):
    """Without the option megatron-core makes them larger where there are more than 40 replicas."""
    on = [by_option(segment("12b_nvfp4"), layouts[name])["--ddp-num-buckets"] for name in ("gb200", "h200x8")]
    assert on[0] == on[1]


def test_the_fp8_baseline_uses_e4m3_for_gradients_too(segment, layouts):
    options = by_option(segment("12b_fp8"), layouts["gb200"])
    assert (options["--fp8-format"], options["--fp8-recipe"]) == ("e4m3", "blockwise")


def test_fp32_scales_where_the_card_has_them(segment, layouts):
    decision = decide(segment("12b_fp8").recipe)
    assert environment(layouts["h200x8"], decision)["NVTE_FP8_BLOCK_SCALING_FP32_SCALES"] == "1"
    assert environment(layouts["gb200"], decision)["NVTE_FP8_BLOCK_SCALING_FP32_SCALES"] == "0"


@pytest.mark.parametrize("run", ["12b_nvfp4", "8b_mxfp4_1p25x", "1p2b_bf16"])
def test_learning_rates_equal_those_of_the_portable_trainer(segment, layouts, run):
    """megatron-core's own scheduler on these arguments, at the start, in warm-up, at the corners and in the decay."""
    scheduler_module = pytest.importorskip("megatron.core.optimizer_param_scheduler")
    part = segment(run)
    options, batch = by_option(part, layouts["gb200"]), part.schedule["batch_sequences"]

    class Optimizer:
        param_groups = [{}]  # noqa: RUF012 - stands in for an optimizer

    def steps(option):
        return int(options[option]) * batch

    scheduler = scheduler_module.OptimizerParamScheduler(
        Optimizer(),
        init_lr=float(options["--lr-warmup-init"]),
        max_lr=float(options["--lr"]),
        min_lr=float(options["--min-lr"]),
        lr_warmup_steps=steps("--lr-warmup-iters"),
        lr_decay_steps=steps("--lr-decay-iters"),
        lr_decay_style=options["--lr-decay-style"],
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=steps("--train-iters"),
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        wsd_decay_steps=steps("--lr-wsd-decay-iters"),
        lr_wsd_decay_style=options["--lr-wsd-decay-style"],
    )
    horizon = part.schedule["horizon_tokens"] // part.step_tokens
    warmup, decay = (
        part.schedule[key] // part.step_tokens for key in ("warmup_tokens", "decay_start_tokens")
    )
    for step in (
        0,
        1,
        warmup // 2,
        warmup - 2,
        warmup - 1,
        warmup,
        decay - 1,
        decay,
        decay + 1,
        horizon - 2,
        horizon - 1,
    ):
        scheduler.num_steps = step * batch
        ours = learning_rate(step * part.step_tokens, part.schedule)
        assert scheduler.get_lr({}) == pytest.approx(ours, rel=1e-12), f"{run}: step {step}"


def test_a_fork_loads_the_checkpoint_of_its_parent_and_keeps_the_optimizer(segment, layouts):
    options = by_option(segment("12b_rht4", 0), layouts["gb200"])
    assert options["--load"] == "STATE/parent"
    assert options["--ckpt-step"] == "7"
    assert not {"--no-load-optim", "--no-load-rng", "--finetune", "--pretrained-checkpoint"} & set(options)
