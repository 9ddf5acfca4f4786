"""Where a segment starts: its own newest checkpoint, its parent's at the fork token, or fresh weights.

    state/<run_hash>/iter_0000120/           megatron-core's torch_dist checkpoint
    state/<run_hash>/step_00000120/meta.json written after it is complete: position, losses, length of the metrics
    state/<run_hash>/{lock,data_hash,metrics.jsonl,diverged,done.json}      as the portable trainer's
    state/<run_hash>/nonfinite.json          the newest step that was not finite, and from where it is trained again

A checkpoint without its meta.json was cut off and is not looked at; megatron-core overwrites it. One with a file of
another size than its meta.json notes is damaged, and the one before is taken; so is, at the next start, one whose
files `refuse_altered` found to hold something else than was written (repro.cluster.sums). A fork takes the parent's
weights, optimizer states, step and sample count and goes on under its own precision, in a new process: the recipe of
a running Transformer Engine cannot be changed. Positions count from the start of the lineage.

Not here: reading or writing tensors (megatron-core does). Reads no torch.
"""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.cluster.arguments import Folders
from repro.cluster.sums import altered
from repro.portable.frozen import FrozenSegment
from repro.portable.metrics import write_whole

log = logging.getLogger("repro.cluster")


@dataclass(frozen=True)
class Start:
    """`step` and what the checkpoint's meta.json holds; `resumed`: whether it is the segment's own."""

    folders: Folders
    step: int
    resumed: bool = False
    meta: dict[str, Any] = field(default_factory=dict)


def find_start(segment: FrozenSegment, state_root: Path) -> Start:
    """Raises ValueError when the parent's checkpoint at the fork token is not there or damaged."""
    own = state_root / segment.run_hash
    for step in reversed(complete_steps(own)):
        meta = read_meta(own, step)
        if (problem := damage(own, step, meta)) is None:
            return Start(Folders(own, own, step), step, True, meta)
        # Every process finds it; at this level one of them says so.
        log.info("%s: damaged checkpoint left out: %s", segment.name, problem)
    parent = segment.content["init_from"]
    if parent is None:
        return Start(Folders(own), segment.start_step)
    folder, step = state_root / parent["run_hash"], parent["tokens"] // segment.step_tokens
    if step not in complete_steps(folder):
        raise ValueError(
            f"{folder}: no complete checkpoint at step {step} of {parent['run']} segment {parent['segment']}, which "
            f"{segment.name} continues; train that segment first"
        )
    meta = read_meta(folder, step)
    if problem := damage(folder, step, meta):
        raise ValueError(f"{problem}: the checkpoint that {segment.name} continues is damaged")
    return Start(Folders(own, folder, step), step, False, meta)


def refuse_altered(start: Start, *, rank: int, size: int) -> None:
    """Raises ValueError naming a file of this process's share that is not what was written, in what `start` loads.

    The segment's own checkpoint is left out from then on, so that the next start takes the one before.
    """
    folder = start.folders.load
    if folder is None:
        return
    path = altered(tensors_folder(folder, start.step), start.meta.get("sha256", {}), share=rank, of=size)
    if path is None:
        return
    if not start.resumed:
        raise ValueError(
            f"{path}: not what was written (its SHA-256 differs); bring it back from a copy, or remove {folder} and "
            "the done.json of the segment that wrote it, which is then trained again"
        )
    _meta(folder, start.step).unlink(missing_ok=True)  # other processes may have found the same
    raise ValueError(
        f"damaged checkpoint left out: {path} is not what was written (its SHA-256 differs); run again to go on from "
        "the one before"
    )


def sizes(folder: Path, step: int) -> dict[str, int]:
    """Name -> bytes of the files of a checkpoint."""
    files = filter(Path.is_file, sorted(tensors_folder(folder, step).iterdir()))
    return {path.name: path.stat().st_size for path in files}


def damage(folder: Path, step: int, meta: dict[str, Any]) -> str | None:
    """The first file of a checkpoint that has not the size that its meta.json notes; None when all have."""
    there = sizes(folder, step)
    for name, size in meta.get("files", {}).items():
        if there.get(name) != size:
            return f"{tensors_folder(folder, step) / name} has {there.get(name, 'no')} bytes, not {size}"
    return None


def complete_steps(folder: Path) -> list[int]:
    """Steps whose checkpoint and meta.json are both there, in order."""
    found = []
    for meta in folder.glob("step_*/meta.json"):
        step = int(meta.parent.name.removeprefix("step_"))
        if tensors_folder(folder, step).is_dir():
            found.append(step)
    return sorted(found)


def read_meta(folder: Path, step: int) -> dict[str, Any]:
    """Raises ValueError naming the file when it is damaged."""
    path = _meta(folder, step)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path}: damaged ({error}); remove {path.parent} to go back one checkpoint"
        ) from None


def write_meta(folder: Path, step: int, meta: dict[str, Any]) -> None:
    """Marks the checkpoint of `step` as complete."""
    path = _meta(folder, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(meta, indent=1).encode())


def prune(folder: Path, *, keep_last: int, keep_steps: set[int]) -> None:
    """Removes checkpoints that are neither among the newest nor kept for good; the mark goes first."""
    steps = complete_steps(folder)
    newest = steps[-keep_last:] if keep_last else []
    for step in steps:
        if step not in newest and step not in keep_steps:
            shutil.rmtree(_meta(folder, step).parent, ignore_errors=True)
            shutil.rmtree(tensors_folder(folder, step), ignore_errors=True)


def marks_folder(folder: Path, step: int) -> Path:
    """Where it is noted what a checkpoint is."""
    return folder / f"step_{step:08d}"


def _meta(folder: Path, step: int) -> Path:
    return marks_folder(folder, step) / "meta.json"


def checkpoint_folder(folder: Path, step: int) -> Path:
    """The complete checkpoint of a step, every file read and compared with its checksum.

    Raises ValueError with the steps that there are, or naming the file that is not what was written.
    """
    if step not in (steps := complete_steps(folder)):
        raise ValueError(f"{folder}: no complete checkpoint at step {step}; there are: {steps or 'none'}")
    if path := altered(tensors_folder(folder, step), read_meta(folder, step).get("sha256", {})):
        raise ValueError(
            f"{path}: not what was written (its SHA-256 differs); bring it back from a copy, or remove {folder} and "
            "the segment's done.json and train it again"
        )
    return tensors_folder(folder, step)


def tensors_folder(folder: Path, step: int) -> Path:
    """megatron-core's folder of one checkpoint."""
    return folder / f"iter_{step:07d}"
