"""How a model trains on a GPU: activations in BF16, fused pointwise stretches, the same bits every time.

Activations, their gradients and all products are BF16 (products accumulate in FP32); weights, moments and weight
gradients stay FP32, and so does what happens inside norms, softmax, scan and loss: what Section 4.1 of arXiv
2509.25149 keeps. On a CPU activations stay FP32 (linear layers round theirs to BF16) and nothing here is called.

Not here: the linear layers' own kernels (repro.recipes, repro.numerics).
"""

from __future__ import annotations

import os
import warnings

import torch
from torch import Tensor, nn

from repro.models import LanguageModel
from repro.models.fragments import fuse_fragments


def device_of(name: str) -> str:
    """The GPU that this process takes: the one named ("cuda:1"), else its number among those of the machine.

    A launcher that shows each process a single GPU of its own (CUDA_VISIBLE_DEVICES) leaves number 0. Raises
    ValueError when the machine has fewer GPUs than processes.
    """
    if ":" in name:
        return name
    local_rank, present = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if present > 1 and local_rank >= present:
        raise ValueError(f"process {local_rank} of this machine has no GPU: {present} are visible")
    return f"cuda:{local_rank if present > 1 else 0}"


def prepare_process(device: torch.device) -> None:
    """Settings of the whole process; before the first product and before mamba_ssm is imported.

    A resumed run repeats the bits of an undisturbed one only when every kernel adds in a fixed order: deterministic
    attention, the scan with fixed tiles (MAMBA_DETERMINISTIC is for a mamba_ssm that is called as it comes), compiled
    fragments without timed choices. An operation without such a variant is an error, not a warning: with warnings
    only, PyTorch's attention stays unrepeatable.
    """
    torch.cuda.set_device(device)
    os.environ.setdefault("MAMBA_DETERMINISTIC", "1")
    torch.use_deterministic_algorithms(True)
    warnings.filterwarnings("ignore", message="Deterministic mode: set TRITON_CACHE_AUTOTUNING.*")
    torch.utils.deterministic.fill_uninitialized_memory = (
        False  # a debugging aid that costs a pass over every tensor
    )
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def prepare_model(model: LanguageModel, *, fuse: bool) -> None:
    """BF16 activations from the embedding on; fragments compiled when `fuse` (for every model of the process)."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(_to_bf16)
    fuse_fragments(fuse)


def _to_bf16(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.to(torch.bfloat16)
