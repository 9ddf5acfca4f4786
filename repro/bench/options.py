"""What commands that measure refuse, besides wrong words (repro.options): a device, a GPU, a batch.

Does not: know what a command measures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_named(words: str) -> torch.device:
    """The device of --device, which need not be there. Raises ValueError for anything but cpu, cuda and cuda:N."""
    import torch

    try:
        found = torch.device(words)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {words!r}: cpu, cuda or cuda:N")
    return found


def check_gpu(what: str) -> None:
    """Raises ValueError where there is no GPU; `what`: what then cannot be measured, e.g. "the scan's tiles"."""
    import torch

    if not (torch.cuda.is_available() and torch.cuda.device_count()):
        raise ValueError(f"no CUDA GPU here, and {what} are measured on one")


def check_batch(batch: int, micro_batches: Iterable[int]) -> None:
    """Raises ValueError where sequences of a step would be counted and not trained."""
    for micro in micro_batches:
        if batch % micro:
            raise ValueError(
                f"--batch {batch} is no multiple of --micro {micro}: {batch % micro} of its sequences would be "
                f"counted and not trained; --batch {batch + -batch % micro} is one"
            )
