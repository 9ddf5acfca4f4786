"""What a machine must have before a campaign starts there: told at once, in one line, not once in every run's log.

Does not: look at free memory or disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from repro.campaign.machine import Machine
from repro.campaign.tasks import Task, read_frozen
from repro.data.manifest import MANIFEST


def link_data(out: Path, data: Path) -> None:
    """Let OUT/data point to the prepared data. Raises ValueError when there is none."""
    if not (data / MANIFEST).is_file():
        raise ValueError(
            f"{data}: no complete data ({MANIFEST} and perhaps more is missing); unpack every part first"
        )
    link = out / "data"
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        link.symlink_to(data)


def check_machine(machine: Machine, tasks: Iterable[Task], frozen: Path) -> None:
    """Whether GPUs and packages are those that training takes.

    Raises:
        ValueError: a package is missing, there are fewer GPUs than asked for, or a hybrid model would be trained
            without the kernels of its scan: that is slower and gives other last bits.
    """
    try:
        import repro.portable.trainer  # noqa: F401
    except ImportError as error:
        raise ValueError(f"{error}: docs/campaign.md says what to bring along") from None
    if machine.device != "cuda":
        return
    import torch

    if (found := torch.cuda.device_count()) < machine.gpus:
        remedy = f"say --gpus {found}" if found else "without one, say --device cpu"
        raise ValueError(f"{machine.gpus} GPUs asked for, {found} found: {remedy}")
    runs = {task.run for task in tasks if task.kind == "train"}
    if any(read_frozen(frozen, run)[0]["model"]["kind"] == "hybrid" for run in runs):
        from repro.models.ssd_launch import VERSION, load_kernels

        try:
            load_kernels()
        except (ImportError, AttributeError, OSError) as error:
            raise ValueError(
                f"hybrid models need mamba_ssm {VERSION} ({error}); docs/campaign.md says how to bring it"
            ) from None
