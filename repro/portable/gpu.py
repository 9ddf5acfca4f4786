"""How a model trains on a GPU: activations in BF16, fused pointwise stretches, the same bits every time.

Activations, their gradients and all products are BF16 (products accumulate in FP32); weights, moments and weight
gradients stay FP32, and so does what happens inside norms, softmax, scan and loss: what Section 4.1 of arXiv
2509.25149 keeps. On a CPU activations stay FP32 (linear layers round theirs to BF16) and nothing here is called.

Not here: the linear layers' own kernels (repro.recipes, repro.numerics).
"""

from __future__ import annotations

import os
import re
import warnings

import torch
from torch import Tensor, nn

from repro.models import LanguageModel
from repro.models.fragments import fuse_fragments
from repro.portable.parallel import variable


def device_of(name: str | None) -> str:
    """ "cpu", or the GPU that this process takes: the one named ("cuda:1"), else its number among the machine's.

    name: cpu, cuda, cuda:N; None: cuda where there is one. A launcher that shows each process a single GPU of its own
    (CUDA_VISIBLE_DEVICES) leaves number 0. Raises ValueError for another name, a GPU that is not here, and when the
    machine has fewer GPUs than processes.
    """
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = name or ("cuda" if present else "cpu")
    if name == "cpu":
        return name
    if not re.fullmatch(r"cuda(:\d{1,4})?", name, re.ASCII):
        raise ValueError(f"device {name!r}: cpu, cuda or cuda:N")
    if not present:
        raise ValueError(f"device {name!r}: no CUDA GPU here; --device cpu takes the processor")
    if ":" in name:
        if int(name.partition(":")[2]) >= present:
            raise ValueError(f"device {name!r}: the last CUDA GPU here is cuda:{present - 1}")
        return name
    local_rank = variable("LOCAL_RANK")
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
