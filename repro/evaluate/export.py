"""Turns a kept checkpoint into a Hugging Face folder, which is what gets evaluated.

Not here: the format of that folder (repro.models.export), finding checkpoints (repro.portable.finished).
"""

from __future__ import annotations

from pathlib import Path

from repro.models.export import save_pretrained
from repro.portable.finished import CheckpointPoint, load_model


def export(point: CheckpointPoint, folder: Path, *, tokenizer_dir: Path) -> Path:
    """Writes config, weights and tokenizer of a checkpoint into ``folder`` and returns it.

    Raises ``ValueError`` naming the file when the checkpoint or the tokenizer is missing or damaged.
    """
    if not (tokenizer_dir / "tokenizer.json").is_file():
        raise ValueError(f"{tokenizer_dir / 'tokenizer.json'}: missing; prepare the data again")
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained(load_model(point), point.model_spec, folder, tokenizer_dir=tokenizer_dir)
    return folder
