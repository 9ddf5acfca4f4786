"""Checkpoints that survive kills, full disks and bit rot.

A state folder belongs to one frozen segment (its name is the run's hash) and is written by one process at a time
(a lock held for the life of the process, freed by the kernel when it dies). A checkpoint is a folder

    step_00000120/tensors.safetensors   FP32 weights `model.<name>`, AdamW moments `exp_avg.<name>`, ...
    step_00000120/meta.json             step, tokens, run hash, SHA-256 of the tensors and of itself, metrics length

written under a temporary name, fsynced, then renamed, so that a folder with this name is complete. Random numbers
need no state: every stream is a function of (seed, step, layer, tensor). Not here: what is trained.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from repro.data.manifest import sha256_of

log = logging.getLogger("repro.portable")

_PREFIX = "step_"


class CheckpointError(ValueError):
    """A checkpoint is missing or damaged; the message names the folder and what is wrong."""


class StateLock:
    """Holds `folder/lock` until released, or for the life of the process; a second holder is refused.

    Also after `kill -9` of Snakemake, whose jobs go on without it.
    """

    def __init__(self, folder: Path, *, being: str = "trained") -> None:
        """being: what is done to the segment meanwhile; raises ValueError when another process does it."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / "lock", "a+", encoding="utf-8")  # noqa: SIM115 - held until exit
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise ValueError(
                f"{folder}: already being {being} by {holder}; wait for it or stop it"
            ) from error
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def set_aside_other_data(folder: Path, data_hash: str) -> None:
    """Notes which data the folder's checkpoints were trained on; those of other data move out of the way.

    The run's hash covers the frozen run, not the texts: prepared again from other sources, they give other numbers.
    What was trained stays readable under `other-data-<hash>/`.
    """
    note = folder / "data_hash"
    before = note.read_text(encoding="utf-8") if note.exists() else data_hash
    if before != data_hash:
        aside = folder / f"other-data-{before}"
        aside.mkdir(exist_ok=True)
        log.warning(
            "%s: the data changed; what was trained on the old is set aside in %s", folder, aside.name
        )
        for path in folder.iterdir():
            if path.name != "lock" and not path.name.startswith("other-data-"):
                os.rename(path, aside / path.name)
    note.write_text(data_hash, encoding="utf-8")


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(meta: dict[str, Any]) -> str:
    """SHA-256 of meta.json's content without its own digest."""
    content = {key: value for key, value in meta.items() if key != "meta_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def save(state_dir: Path, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> Path:
    """Writes one checkpoint of step `meta["step"]`; an older one of the same step is replaced.

    Raises OSError (disk full, no permission) after removing what was half written: earlier checkpoints stay.
    """
    final = state_dir / f"{_PREFIX}{meta['step']:08d}"
    temporary = state_dir / f".writing-{final.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        path = temporary / "tensors.safetensors"
        try:
            save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
        except SafetensorError as error:  # safetensors wraps the operating system's error
            raise OSError(f"{path}: cannot be written ({error})") from error
        _fsync(path)
        content = {**meta, "sha256": sha256_of(path)}
        content["meta_sha256"] = _digest(content)
        (temporary / "meta.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        _fsync(temporary / "meta.json")
        _fsync(temporary)
        if final.exists():
            shutil.rmtree(final)
        os.rename(temporary, final)
        _fsync(state_dir)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def steps(state_dir: Path) -> list[int]:
    """Steps that have a complete checkpoint folder, ascending; names that are no step's are someone else's."""
    names = (path.name.removeprefix(_PREFIX) for path in state_dir.glob(f"{_PREFIX}*"))
    return sorted(int(name) for name in names if name.isdecimal())


def load(folder: Path, *, run_hash: str | None = None) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Reads one checkpoint folder. Raises CheckpointError when it is missing, truncated, altered or non-finite."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if _digest(meta) != meta["meta_sha256"]:
            raise CheckpointError(f"{folder / 'meta.json'}: altered (its digest differs)")
        path = folder / "tensors.safetensors"
        if sha256_of(path) != meta["sha256"]:
            raise CheckpointError(
                f"{path}: checksum differs from meta.json; the file is truncated or altered"
            )
        tensors = load_file(path)
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename}: missing") from error
    except (OSError, AttributeError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: not readable ({error})") from error
    if run_hash is not None and meta.get("run_hash") != run_hash:
        raise CheckpointError(f"{folder}: belongs to run {meta.get('run_hash')}, not {run_hash}")
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{folder}: {name} holds a non-finite value; a run cannot go on from it")
    return tensors, meta


def load_newest(
    state_dir: Path, *, run_hash: str
) -> tuple[tuple[dict[str, torch.Tensor], dict[str, Any]] | None, list[str]]:
    """The newest readable checkpoint (None when there is none) and one message for each damaged one skipped."""
    problems = []
    for step in reversed(steps(state_dir)):
        try:
            return load(state_dir / f"{_PREFIX}{step:08d}", run_hash=run_hash), problems
        except CheckpointError as error:
            problems.append(str(error))
    return None, problems


def load_at(state_dir: Path, tokens: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The checkpoint at exactly `tokens`. Raises CheckpointError naming the folder and what is there."""
    found = []
    for step in steps(state_dir):
        folder = state_dir / f"{_PREFIX}{step:08d}"
        try:
            position = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["tokens"]
        except (OSError, KeyError, TypeError, ValueError):
            continue  # damaged: load() below or the list in the message tells
        if position == tokens:
            return load(folder)
        found.append(position)
    raise CheckpointError(f"{state_dir}: no checkpoint at {tokens} tokens (there are: {found or 'none'})")


def model_weights(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those of a checkpoint's tensors that are the model's, by their names in it."""
    return {n.removeprefix("model."): tensor for n, tensor in tensors.items() if n.startswith("model.")}


def prune(state_dir: Path, *, keep_last: int, keep_steps: Iterable[int]) -> None:
    """Removes all but the newest `keep_last` checkpoints and those of `keep_steps` (forks, evaluations)."""
    present = steps(state_dir)
    kept = set(keep_steps) | set(present[len(present) - keep_last :] if keep_last else ())
    for step in present:
        if step not in kept:
            shutil.rmtree(state_dir / f"{_PREFIX}{step:08d}", ignore_errors=True)
