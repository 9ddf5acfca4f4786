"""Loads one Hugging Face folder as the model that lm-eval asks: by transformers or vLLM, on one GPU or several.

Weights are of the settings' dtype, whatever the folder holds. Not here: where checkpoints come from (repro.evaluate),
what the model is asked and how answers are scored (repro.evaluate.harness).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repro.evaluate.settings import EvalSettings, only_local


def load_lm(folder: Path, settings: EvalSettings, *, device: str | None = None, gpus: int = 1) -> Any:
    """lm-eval's model object over a Hugging Face folder.

    Engine `vllm` keeps ``gpus`` copies of the model; engine `hf` one on ``device`` (default: the GPU where there is
    one), or, started by accelerate, one in each process.
    Raises ``ValueError`` naming the folder when the model or its tokenizer cannot be read.
    """
    if settings.engine == "vllm":
        return _load_vllm(folder, settings, gpus)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return _load_shared(folder, settings)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        with _kernels_of(device):
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, settings.dtype))
        model = model.to(device)
    except Exception as error:  # whatever the libraries raise on damaged files, the user needs the folder
        raise ValueError(f"{folder}: not readable as a Hugging Face model ({error})") from error
    return _lm_class(split_at_boundary=only_local(settings.tasks))(
        pretrained=model.eval(),
        tokenizer=tokenizer,
        batch_size=settings.batch_size,
        max_length=settings.max_length_tokens,
        # Log-probabilities of BF16 logits in FP32: sums of BF16 ones tie, and a tie goes to the first choice.
        softmax_dtype="float32",
        device=device,
    )


@contextlib.contextmanager
def _kernels_of(device: str) -> Iterator[None]:
    """On a CPU mamba-ssm is not to be found: transformers takes its Triton kernels wherever it is installed, chosen
    when a model's code is imported, and they run on a GPU alone."""
    if not device.startswith("cpu"):
        yield
        return
    present = sys.modules.get("mamba_ssm")
    sys.modules["mamba_ssm"] = None  # type: ignore[assignment]  # an import fails then
    try:
        yield
    finally:
        del sys.modules["mamba_ssm"]
        if present is not None:
            sys.modules["mamba_ssm"] = present


def _load_shared(folder: Path, settings: EvalSettings) -> Any:
    """The model of one of several processes: lm-eval itself places it and deals out the questions."""
    from lm_eval.models.huggingface import HFLM

    try:
        return HFLM(
            pretrained=str(folder),
            dtype=settings.dtype,
            batch_size=settings.batch_size,
            max_length=settings.max_length_tokens,
            softmax_dtype="float32",
        )
    except (OSError, ValueError, AssertionError) as error:
        raise ValueError(f"{folder}: not readable as a Hugging Face model ({error})") from error


def _load_vllm(folder: Path, settings: EvalSettings, gpus: int) -> Any:
    try:
        from lm_eval.models.vllm_causallms import VLLM

        return VLLM(
            pretrained=str(folder),
            dtype=settings.dtype,
            batch_size="auto",
            max_model_len=settings.max_length_tokens,
            data_parallel_size=gpus,
        )
    except ImportError as error:
        raise ValueError(f"engine vllm: {error}; needs vllm (and ray for several GPUs)") from error


def _lm_class(*, split_at_boundary: bool) -> type:
    """lm-eval's Hugging Face model; for local tasks one that encodes question and choice apart.

    lm-eval encodes both together and cuts after as many tokens as the question alone has. Where a choice follows
    without a space ("next(" + "self"), the tokenizer may join across the border, and the choice loses its first
    token, or all. Published benchmarks keep lm-eval's way, to stay comparable.
    """
    from lm_eval.models.huggingface import HFLM

    class SplitAtBoundary(HFLM):
        def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
            num_spaces = len(context) - len(context.rstrip())
            if num_spaces:
                context, continuation = context[:-num_spaces], context[-num_spaces:] + continuation
            choice = self.tok_encode(continuation, add_special_tokens=False)
            return self.tok_encode(context) or [self.prefix_token_id], choice

    return SplitAtBoundary if split_at_boundary else HFLM
