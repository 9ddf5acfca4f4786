"""Whether the installed packages and the card can run a segment: one clear message, before anything is built.

The stack trains silently in the wrong precision where it is too old: up to megatron-core 0.16.1 a hybrid model under
--fp4-format runs BF16 without a word. Native NVFP4 is refused by Transformer Engine (TE) in the middle of a step on a
card without it, and leaves its global state broken. Hence all is checked here first.

Not here: what a layout says about sizes (repro.cluster.fit). Reads no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata

from repro.cluster.layout import Layout
from repro.cluster.paths import Decision
from repro.experiments.model import ModelSpec

#: Package -> (least version, why). Versions read and tried: megatron-core 0.19.2, TE 2.20.2, mamba-ssm 2.3.2.
_LEAST: dict[str, tuple[tuple[int, int], str]] = {
    "megatron-core": (
        (0, 19),
        "up to 0.16.1 hybrid models ignore --fp4-format and train BF16 without a message; the entry point and its "
        "options here are those of 0.19, which needs Python 3.12",
    ),
    "transformer-engine": (
        (2, 19),
        "IdentityQuantizer and quantiser roles that name their layer are needed to prove what runs",
    ),
    "mamba-ssm": ((2, 3), "its Mamba-2 kernels without a CUDA extension are used"),
}

Version = Callable[[str], str | None]


def installed(package: str) -> str | None:
    """Version of an installed package, None when it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_packages(
    model: ModelSpec, *, version: Version = installed, python: tuple[int, ...] = sys.version_info[:2]
) -> None:
    """Raises one ValueError that names every package that is missing or too old, and why its age matters."""
    problems = []
    if python < (3, 12):
        problems.append(f"Python {python[0]}.{python[1]} is too old for megatron-core 0.19: use 3.12")
    for package, (least, why) in _LEAST.items():
        if package == "mamba-ssm" and "M" not in model.pattern:
            continue
        found = version(package)
        wanted = ".".join(map(str, least))
        if found is None:
            problems.append(f"{package} >= {wanted} is not installed")
        elif _number(found) < least:
            problems.append(f"{package} {found} is older than {wanted}: {why}")
    if problems:
        raise ValueError("the cluster backend cannot run here: " + "; ".join(problems))


def check_card(layout: Layout, decision: Decision, *, name: str, capability: tuple[int, int]) -> None:
    """Raises ValueError when the card that is there cannot run the path, or is not the layout's.

    name, capability: of the process's own GPU.
    """
    found = f"{name} (compute capability {capability[0]}.{capability[1]})"
    if decision.path == "te_nvfp4" and capability not in ((10, 0), (10, 3)):
        raise ValueError(
            f"native NVFP4 needs compute capability 10.0 or 10.3 (B200, GB200, B300, GB300); this is {found}. "
            "Pass --emulate to compute the same operands in software, exactly and more slowly"
        )
    if decision.path in ("te_fp8", "emulated") and capability < (8, 9):
        raise ValueError(f"Transformer Engine quantises from compute capability 8.9 on; this is {found}")
    if decision.path == "te_fp8" and capability < (9, 0):
        raise ValueError(f"FP8 block scaling needs compute capability 9.0; this is {found}")
    # Blackwell and Hopper scale FP8 blocks differently, so the environment must be that of the card.
    if capability[0] != layout.compute_capability[0]:
        raise ValueError(
            f"layout {layout.name} is for {layout.device}; this is {found}. Pass another --layout"
        )


def _number(version: str) -> tuple[int, int]:
    """(major, minor) of a version like 0.19.2 or 2.20.2+cu13."""
    parts = version.replace("+", ".").split(".")
    return int(parts[0]), int("".join(filter(str.isdigit, parts[1])) or 0)
