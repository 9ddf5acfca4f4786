"""Turns a kept checkpoint into a Hugging Face folder, which is what gets evaluated.

Checkpoints of the cluster backend come out in BF16, as they were trained; those of the portable one in FP32.
Not here: the format of that folder (repro.models.export), finding checkpoints (repro.portable.finished), names in
megatron-core's checkpoints (repro.cluster.convert).
"""

from __future__ import annotations

from pathlib import Path

from repro.cluster.finished import save_for_transformers
from repro.portable.checkpoint import CheckpointError
from repro.portable.finished import CheckpointPoint


def export(point: CheckpointPoint, folder: Path, *, tokenizer_dir: Path) -> Path:
    """Writes config, weights and tokenizer of a checkpoint into ``folder`` and returns it.

    Raises ``ValueError`` naming the file when the checkpoint or the tokenizer is missing or damaged.
    """
    if not (tokenizer_dir / "tokenizer.json").is_file():
        raise ValueError(f"{tokenizer_dir / 'tokenizer.json'}: missing; prepare the data again")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return save_for_transformers(point, folder, tokenizer_dir=tokenizer_dir)
    except CheckpointError as error:
        raise ValueError(
            f"{error}; bring it back from a copy, or remove {point.state_dir} and the segment's done.json and train "
            "it again"
        ) from error
