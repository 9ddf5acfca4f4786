"""From a frozen segment to the complete arguments and environment of megatron-core's training entry point.

Sections 3 to 5 and Appendix A of arXiv 2509.25149. Everything that influences the numbers is said, also where it is
megatron-core's default, so that a new default changes nothing. Each argument carries its source: a key of the frozen
run, or why it stands here.

Positions. Megatron counts iterations, from the start of the lineage as the frozen run does. It rates an iteration by
the samples before it, repro by the tokens that it reaches; hence "- 1" in the schedule: the rates are then equal.

Written for megatron-core 0.19 (0.19.2 read and its parser run). Not here: how a model is spread (configs/cluster),
which path its precision takes (repro.cluster.paths). Reads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from repro.cluster.layout import Layout, stages
from repro.cluster.paths import FP8_SCALES_VARIABLE, Decision
from repro.experiments.model import ModelSpec
from repro.portable.frozen import FrozenSegment

QUANTIZER_FACTORY = "repro.cluster.quantizers.factory"
#: Gradients are exchanged in so many pieces. megatron-core's own number depends on the GPUs (34 for the 12B model on
#: 368), and so would checkpoints.
_GRADIENT_BUCKETS = 32


@dataclass(frozen=True)
class Argument:
    """One option of Megatron's command line with its values, and where they come from."""

    option: str
    values: tuple[str, ...]
    source: str

    @property
    def words(self) -> tuple[str, ...]:
        return (self.option, *self.values)


#: Of hybrids on machines without causal-conv1d, whose kernels the fused path calls: PyTorch's convolution, the same
#: function.
WITHOUT_CONV_KERNELS = Argument("--disable-mamba-mem-eff-path", (), "where causal-conv1d is not installed")


@dataclass(frozen=True)
class Folders:
    """Where checkpoints go and where the first state comes from; `load_step` None: the newest in `load`."""

    save: Path
    load: Path | None = None
    load_step: int | None = None


def argument_list(
    segment: FrozenSegment, layout: Layout, decision: Decision, folders: Folders
) -> list[Argument]:
    """All arguments of one segment, in the order in which they are read best."""
    return [
        *_model(segment.model, layout.spread(segment.content["family"]).pipeline),
        *_precision(segment, decision),
        *_schedule(segment),
        *_optimizer(segment),
        *_data(segment),
        *_checkpoints(segment, folders),
        *_machine(segment, layout),
    ]


def environment(layout: Layout, decision: Decision) -> dict[str, str | None]:
    """Variables that must be set before transformer_engine is imported; None: must not be set."""
    hopper = layout.compute_capability < (10, 0)
    return {
        **decision.environment,
        # FP32 scales as Appendix A.1 states them; Blackwell has powers of two only.
        FP8_SCALES_VARIABLE: "1" if hopper and decision.path == "te_fp8" else "0",
        "NVTE_USE_FAST_MATH": "0",  # rounds to BF16 after the transform, as the reference does
        # megatron-core's own cache manager for Mamba's kernels refuses every Triton after 3.1, whose own is safe.
        "TRITON_CACHE_MANAGER": None,
        "CUDA_DEVICE_MAX_CONNECTIONS": "1" if hopper else None,
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }


def _flag(option: str, source: str) -> Argument:
    return Argument(option, (), source)


def _value(option: str, value: object, source: str) -> Argument:
    return Argument(option, (str(value),), source)


def _model(model: ModelSpec, num_stages: int) -> Iterator[Argument]:
    def of(option: str, key: str) -> Argument:
        return _value(option, getattr(model, key), f"model.{key}")

    spec = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
    yield Argument("--spec", spec, "one stack for all three models; a symbol of the pattern is a layer")
    yield _value(
        "--hybrid-layer-pattern", stages(model.pattern, num_stages), "model.pattern, | between stages"
    )
    yield of("--hidden-size", "hidden_size")
    yield of("--ffn-hidden-size", "ffn_hidden_size")
    yield of("--num-attention-heads", "num_attention_heads")
    yield _flag("--group-query-attention", "model.num_key_value_heads")
    yield of("--num-query-groups", "num_key_value_heads")
    yield of("--kv-channels", "head_dim")
    if "M" in model.pattern:
        yield of("--mamba-num-heads", "mamba_num_heads")
        yield of("--mamba-head-dim", "mamba_head_dim")
        yield of("--mamba-state-dim", "mamba_state_size")
        yield of("--mamba-num-groups", "mamba_num_groups")
    yield _flag("--squared-relu", "Appendix A: squared ReLU")
    yield _flag("--disable-bias-linear", "Appendix A: no biases")
    yield _value("--hidden-dropout", 0.0, "Appendix A: no dropout")
    yield _value("--attention-dropout", 0.0, "Appendix A: no dropout")
    yield _value("--normalization", "RMSNorm", "Appendix A.1; not stated for the 1.2B model")
    yield of("--norm-epsilon", "norm_eps")
    yield _flag("--untie-embeddings-and-output-weights", "Appendix A.1: separate embedding and output layer")
    if model.rope_base is None:
        yield _value("--position-embedding-type", "none", "model.rope_base is null")
    else:
        yield _value("--position-embedding-type", "rope", "model.rope_base")
        yield _value("--rotary-base", f"{model.rope_base:g}", "model.rope_base")
        yield _value("--rotary-percent", 1.0, "all of a head's features")
    yield of("--init-method-std", "init_std")
    yield of("--max-position-embeddings", "max_sequence_tokens")
    yield _value("--tokenizer-type", "NullTokenizer", "the data is tokenized already")
    yield of("--vocab-size", "vocab_size")
    yield _value("--make-vocab-size-divisible-by", 1, "no padded rows: checkpoints convert one to one")


def _precision(segment: FrozenSegment, decision: Decision) -> Iterator[Argument]:
    yield _flag("--bf16", "Section 4.1: what is not quantised is BF16, main weights FP32")
    yield _flag("--attention-softmax-in-fp32", "Section 4.1: softmax keeps precision")
    yield _flag(
        "--accumulate-allreduce-grads-in-fp32", "Section 4.1: FP32 gradients over micro batches and GPUs"
    )
    yield _flag(
        "--no-gradient-accumulation-fusion",
        "fused accumulation loses the gradients of a CustomRecipe; off for all runs, so that they compare",
    )
    recipe = f"recipe {segment.recipe.name}: path {decision.path}"
    if decision.path == "te_fp8":
        yield _value("--fp8-format", "e4m3", recipe)
        yield _value("--fp8-recipe", "blockwise", recipe)
    elif decision.path == "te_nvfp4":
        yield _value("--fp4-format", "e2m1", recipe)
        yield _value("--fp4-recipe", "nvfp4", recipe)
    elif decision.path == "emulated":
        yield _value("--fp4-format", "e2m1", recipe)
        yield _value("--fp4-recipe", "custom", recipe)
        yield _value("--fp4-quantizer-factory", QUANTIZER_FACTORY, recipe)
    counts, symbols = segment.recipe.bf16_blocks, segment.model.symbols_per_block
    if decision.path != "bf16" and (counts.first or counts.last):
        # Megatron counts pattern symbols, the paper blocks.
        yield _flag("--first-last-layers-bf16", "recipe.bf16_blocks")
        first, last = counts.first * symbols, counts.last * symbols
        yield _value("--num-layers-at-start-in-bf16", first, f"recipe.bf16_blocks.first x {symbols} layer(s)")
        yield _value("--num-layers-at-end-in-bf16", last, f"recipe.bf16_blocks.last x {symbols} layer(s)")


def _schedule(segment: FrozenSegment) -> Iterator[Argument]:
    schedule, step = segment.schedule, segment.step_tokens
    horizon, decay_start = schedule["horizon_tokens"] // step, schedule["decay_start_tokens"] // step
    warmup = schedule["warmup_tokens"] // step
    peak = schedule["learning_rate_max"]
    yield _value("--seq-length", schedule["sequence_length_tokens"], "schedule.sequence_length_tokens")
    yield _value("--global-batch-size", schedule["batch_sequences"], "schedule.batch_sequences")
    yield _value("--micro-batch-size", schedule["micro_batch_sequences"], "schedule.micro_batch_sequences")
    yield _value("--train-iters", segment.end_step, "schedule.end_tokens; from the start of the lineage")
    yield _value("--lr", peak, "schedule.learning_rate_max")
    yield _value("--min-lr", schedule["learning_rate_min"], "schedule.learning_rate_min")
    yield _value("--lr-decay-style", "WSD", "Appendix A: warm-up, stable, decay")
    yield _value("--lr-wsd-decay-style", schedule["decay_shape"], "schedule.decay_shape")
    yield _value(
        "--lr-warmup-init", peak / max(1, warmup), "schedule.warmup_tokens: one step's share at step 1"
    )
    yield _value("--lr-warmup-iters", max(0, warmup - 1), "schedule.warmup_tokens, - 1")
    yield _value("--lr-decay-iters", horizon - 1, "schedule.horizon_tokens, - 1")
    yield _value("--lr-wsd-decay-iters", horizon - decay_start, "schedule.decay_start_tokens to the horizon")
    yield _flag(
        "--override-opt-param-scheduler", "a segment ends earlier than its lineage; the rest is equal"
    )
    yield _value("--seed", segment.content["seed"], "seed")


def _optimizer(segment: FrozenSegment) -> Iterator[Argument]:
    optimizer = segment.content["optimizer"]
    yield _value("--optimizer", "adam", "optimizer.name: adamw (decoupled weight decay)")
    yield _value("--adam-beta1", optimizer["beta1"], "optimizer.beta1")
    yield _value("--adam-beta2", optimizer["beta2"], "optimizer.beta2")
    yield _value("--adam-eps", optimizer["eps"], "optimizer.eps")
    yield _value("--weight-decay", optimizer["weight_decay"], "optimizer.weight_decay")
    yield _value("--weight-decay-incr-style", "constant", "no schedule of it is stated")
    yield _value("--clip-grad", optimizer["clip_grad_norm"], "optimizer.clip_grad_norm")
    for option in ("--main-params-dtype", "--main-grads-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype"):
        yield _value(option, "fp32", "Section 4.1: FP32 main weights, gradients and optimizer states")


def _data(segment: FrozenSegment) -> Iterator[Argument]:
    every = segment.content["validation"]["every_tokens"] // segment.step_tokens
    yield _value("--dataloader-type", "single", "the frozen order of samples, each exactly once")
    yield _value("--num-workers", 1, "one reader a GPU")
    yield _flag("--no-create-attention-mask-in-dataloader", "causal everywhere, as in the portable trainer")
    yield _value("--eval-interval", every, "validation.every_tokens")
    yield _value("--eval-iters", 1, "turns validation on; its samples are repro's fixed set")


def _checkpoints(segment: FrozenSegment, folders: Folders) -> Iterator[Argument]:
    every = segment.content["checkpoints"]["every_tokens"] // segment.step_tokens
    yield _value("--save", folders.save, "--state / run_hash")
    yield _value("--save-interval", every, "checkpoints.every_tokens")
    yield _value("--ckpt-format", "torch_dist", "can be loaded on another number of GPUs")
    yield _flag("--ckpt-fully-parallel-load", "every GPU reads its part")
    # Not --dist-ckpt-optim-fully-reshardable: every process would hold the states of all in host memory (12 bytes a
    # parameter) at each save and load. As it is, optimizer states fit any number of replicas, but not of stages.
    yield _value("--dist-ckpt-strictness", "raise_unexpected", "a checkpoint that lacks a weight is an error")
    if folders.load is not None:
        yield _value("--load", folders.load, "own state, or the state that init_from names")
    if folders.load_step is not None:
        yield _value("--ckpt-step", folders.load_step, "init_from.tokens")
    yield _flag("--exit-signal-handler", "SIGTERM saves and ends; the same command goes on")


def _machine(segment: FrozenSegment, layout: Layout) -> Iterator[Argument]:
    spread, source = layout.spread(segment.content["family"]), f"configs/cluster/{layout.name}.yaml"
    yield _value("--tensor-model-parallel-size", spread.tensor, source)
    yield _value("--pipeline-model-parallel-size", spread.pipeline, source)
    yield _value("--context-parallel-size", 1, "a sequence stays on one GPU")
    if spread.tensor > 1:
        yield _flag("--sequence-parallel", "with tensor parallelism")
    yield _flag("--use-distributed-optimizer", "FP32 main weights and moments shared out over replicas")
    yield _flag("--overlap-grad-reduce", "speed")
    yield _value(
        "--ddp-num-buckets", _GRADIENT_BUCKETS, "a checkpoint's optimizer states lie in these pieces"
    )
    yield _flag("--overlap-param-gather", "speed")
    yield _flag("--no-check-for-nan-in-loss-and-grad", "divergence is a result, recorded and not raised")
    yield _value("--rerun-mode", "disabled", "no second pass over a step")
    yield _flag("--manual-gc", "garbage is collected at the same step on every GPU")
    yield _value("--manual-gc-interval", 100, "steps")
    yield _value("--distributed-timeout-minutes", 30, "the first step compiles kernels")
    yield _value("--log-interval", 1, "one line a step, as metrics.jsonl has")
