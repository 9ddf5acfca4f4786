"""Turns a kept checkpoint into a Hugging Face folder, which is what gets evaluated.

Checkpoints of the cluster backend come out in BF16, as they were trained; those of the portable one in FP32.
Not here: the format of that folder (repro.models.export), finding checkpoints (repro.portable.finished), names in
megatron-core's checkpoints (repro.cluster.convert).
"""

from __future__ import annotations

from pathlib import Path

from repro.cluster.convert import to_hugging_face
from repro.models.export import save_pretrained
from repro.portable.finished import CheckpointPoint, load_model


def export(point: CheckpointPoint, folder: Path, *, tokenizer_dir: Path) -> Path:
    """Writes config, weights and tokenizer of a checkpoint into ``folder`` and returns it.

    Raises ``ValueError`` naming the file when the checkpoint or the tokenizer is missing or damaged.
    """
    if not (tokenizer_dir / "tokenizer.json").is_file():
        raise ValueError(f"{tokenizer_dir / 'tokenizer.json'}: missing; prepare the data again")
    folder.mkdir(parents=True, exist_ok=True)
    if point.frozen.get("backend") == "cluster":
        schedule = point.frozen["schedule"]
        step = point.tokens // (schedule["batch_sequences"] * schedule["sequence_length_tokens"])
        return to_hugging_face(point.state_dir, step, point.model_spec, folder, tokenizer_dir=tokenizer_dir)
    return save_pretrained(load_model(point), point.model_spec, folder, tokenizer_dir=tokenizer_dir)
