"""megatron-core's model of a segment in a process of its own, for what the entry point does not show.

    logits RUN_YAML STATE OUT LAYOUT            the newest checkpoint, loaded by megatron-core itself into an FP32
                                                model without a quantised operand: `tokens` [B, S] and `logits`
    gradients RUN_YAML STATE OUT LAYOUT WEIGHTS [MAMBA]
                                                the loss and every gradient of one micro batch, at the weights of a
                                                Hugging Face file, in the segment's precision (emulated); MAMBA
                                                "fused": megatron-core's fused path, "plain": the other one with
                                                PyTorch's convolution; "": what the machine has
    walk RUN_YAML STATE OUT LAYOUT CHANGE       the precision walk before step 1 on the native path: its record as
                                                JSON, or `error: ...`; CHANGE "" or a variable that is set too late
    altered RUN_YAML STATE DATA LAYOUT CHANGE   the entry point with arguments that are not the run's
    fault RUN_YAML STATE DATA LAYOUT STEP       the entry point, where the gradient of one step is not finite
    bits RUN_YAML STATE DATA LAYOUT CHANGE      the emulated path of the entry point with other random bits: those of
                                                another run seed (CHANGE a number), or with every replica drawing
                                                the first one's (CHANGE "one-replica")

Start it with RANK, WORLD_SIZE, ... as a launcher does. OUT is a safetensors file under Hugging Face's names.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from repro.cluster.arguments import WITHOUT_CONV_KERNELS, Argument
from repro.cluster.convert import name_map, part_of_qkv
from repro.cluster.entry import build_model
from repro.cluster.frozen import load_segment
from repro.cluster.job import Job
from repro.cluster.layout import load_layout
from repro.cluster.state import find_start

#: Options of training: of its precision, and of how its state is spread over GPUs.
_PRECISION = ("--bf16", "--accumulate-allreduce-grads-in-fp32", "--first-last-layers-bf16")
_PRECISION_PREFIXES = ("--fp4-", "--fp8-", "--num-layers-at-")
_SPREAD = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")
_SPREAD_PREFIXES = ("--ddp-",)


def job_of(run_yaml, state, layout, data=Path(), *, emulate=True):
    return Job(load_segment(Path(run_yaml)), load_layout(layout), Path(data), Path(state), emulate=emulate)


def words_of(arguments, *, without=(), without_prefixes=()):
    return [
        word
        for argument in arguments
        if argument.option not in without and not argument.option.startswith(tuple(without_prefixes))
        for word in argument.words
    ]


def random_tokens(segment, rows):
    """int64 [rows, S + 1]."""
    shape = (rows, segment.schedule["sequence_length_tokens"] + 1)
    return torch.randint(0, segment.model.vocab_size, shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits(run_yaml, state, out, layout):
    job = job_of(run_yaml, state, layout)
    job.set_environment()
    arguments = job.arguments(find_start(job.segment, job.state_root))
    without, prefixes = (*_PRECISION, *_SPREAD), (*_PRECISION_PREFIXES, *_SPREAD_PREFIXES)
    words = words_of(arguments, without=without, without_prefixes=prefixes)
    model, *_ = build_model([*words, "--skip-train", "--no-load-optim", "--no-load-rng"])
    torch.backends.cuda.matmul.allow_tf32 = False
    tokens = random_tokens(job.segment, 2)[:, :-1].contiguous().cuda()
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    values = model[0].eval()(tokens, positions, None)
    save_file({"tokens": tokens.cpu(), "logits": values.float().cpu().contiguous()}, out)


def take_mamba_path(path, arguments):
    """Arguments of the path "fused" or "plain", whatever the machine has."""
    kept = [argument for argument in arguments if argument.option != WITHOUT_CONV_KERNELS.option]
    return [*kept, *([] if path == "fused" else [WITHOUT_CONV_KERNELS])]


def watch_mamba_path(path):
    """A list that gets longer with each fused call; "plain": as where causal-conv1d is not installed."""
    from megatron.core.ssm import mamba_mixer

    fused, calls = mamba_mixer.mamba_split_conv1d_scan_combined, []

    def called(*args, **options):
        calls.append(path)
        return fused(*args, **options)

    mamba_mixer.mamba_split_conv1d_scan_combined = called
    if path == "plain":
        mamba_mixer.causal_conv1d_fn = None
    return calls


def gradients(run_yaml, state, out, layout, weights, mamba=""):
    from repro.cluster.loop import MegatronLoop, _run, _unwrapped

    job = job_of(run_yaml, state, layout)
    job.set_environment()
    arguments = job.arguments(find_start(job.segment, job.state_root))
    if mamba:
        arguments = take_mamba_path(mamba, arguments)
    words = words_of(arguments, without=_SPREAD, without_prefixes=_SPREAD_PREFIXES)
    model, *_ = build_model(words)
    calls = watch_mamba_path(mamba)
    chunk, spec = _unwrapped(model), job.segment.model
    fill(chunk, load_file(weights), spec)
    loop = MegatronLoop(job.segment, job.decision, Path())
    loop.precision_before(model)
    model[0].zero_grad_buffer()
    loop._begin(0, training=True)
    window = random_tokens(job.segment, job.segment.schedule["micro_batch_sequences"]).cuda()
    batch = {
        "tokens": window[:, :-1].contiguous(),
        "labels": window[:, 1:].contiguous(),
        "position_ids": torch.arange(window.shape[1] - 1, device=window.device).expand_as(window[:, 1:]),
        "loss_mask": torch.ones(window[:, 1:].shape, device=window.device),
    }
    losses = _run(model[0], batch).float()
    loss = losses.mean()
    loss.backward()
    loop.precision_after(model)
    found = {
        name: take(parameter.main_grad).float().cpu().contiguous()
        for name, parameter, take in parameters(chunk, spec)
    }
    found |= {"losses": losses.detach().cpu().flatten(), "fused_calls": torch.tensor([len(calls)])}
    save_file({"loss": loss.detach().cpu()[None], "tokens": window.cpu(), **found}, out)


def walk(run_yaml, state, out, layout, change):
    from repro.cluster.loop import MegatronLoop

    job = job_of(run_yaml, state, layout, emulate=False)
    job.set_environment()
    if change:
        late = os.environ.pop(change)
        import transformer_engine.common.recipe  # noqa: F401 - reads the environment now

        os.environ[change] = late
    arguments = job.arguments(find_start(job.segment, job.state_root))
    model, *_ = build_model(words_of(arguments))
    try:
        record = MegatronLoop(job.segment, job.decision, Path()).precision_before(model)
    except ValueError as error:
        print(f"error: {error}", flush=True)
        return 1
    Path(out).write_text(json.dumps(record), encoding="utf-8")
    return 0


def parameters(chunk, spec):
    """(Hugging Face's name, megatron-core's parameter, the rows of it that are meant) of the whole model."""
    own = dict(chunk.named_parameters())
    for source in name_map(spec):
        key = source.keys[0]
        if len(source.keys) > 1:
            key = key.rpartition(".")[0]  # saved in pieces, one parameter in the model
        parameter = own[key.replace("conv1d.", "conv1d_")]
        part = source.part
        yield (
            source.name,
            parameter,
            (lambda t, part=part: part_of_qkv(t, part, spec)) if part else (lambda t: t),
        )


@torch.no_grad()
def fill(chunk, weights, spec):
    """Sets every parameter of the model from Hugging Face's names."""
    for name, parameter, take in parameters(chunk, spec):
        rows = take(torch.arange(len(parameter)).view(-1, 1)).flatten()
        parameter[rows.to(parameter.device)] = weights[name].to(parameter.device, parameter.dtype)


def altered(run_yaml, state, data, layout, change):
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    job = job_of(run_yaml, state, layout, data)
    plain = job.arguments

    def arguments(start):
        kept = plain(start)
        if change == "no-fp4-format":
            return [a for a in kept if not a.option.startswith("--fp4-")]
        if change == "any-stages":
            return [*kept, Argument("--dist-ckpt-optim-fully-reshardable", (), "for other stages")]
        assert change == "more-bf16-layers"
        more = Argument("--num-layers-at-end-in-bf16", ("3",), "a mistake")
        return [more if a.option == more.option else a for a in kept]

    job.arguments = arguments
    return outcome_of(job)


def outcome_of(job):
    """The exit code, as the command's own."""
    try:
        return job.run()
    except ValueError as error:
        print(f"error: {error}", flush=True)
        return 1


def fault(run_yaml, state, data, layout, step):
    from repro.cluster.recorder import Recorder

    plain = Recorder.train

    def train(recorder, now, **values):
        return plain(recorder, now, **values | ({"grad_norm": float("nan")} if now == int(step) else {}))

    Recorder.train = train
    return outcome_of(job_of(run_yaml, state, layout, data))


def bits(run_yaml, state, data, layout, change):
    from repro.cluster import loop
    from repro.cluster.emulation import Clock

    def clock(seed, **place):
        return Clock(seed) if change == "one-replica" else Clock(seed + int(change), **place)

    loop.Clock = clock
    return job_of(run_yaml, state, layout, data).run()


if __name__ == "__main__":
    actions = (logits, gradients, walk, altered, fault, bits)
    sys.exit({action.__name__: action for action in actions}[sys.argv[1]](*sys.argv[2:]))
