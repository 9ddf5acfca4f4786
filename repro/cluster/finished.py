"""The model of a kept checkpoint, whichever backend wrote it: what evaluation and measurements look at.

Not here: which checkpoints there are (repro.portable.finished), names in megatron-core's (repro.cluster.convert).
"""

from __future__ import annotations

from pathlib import Path

from repro.cluster import state
from repro.cluster.convert import read_weights, to_hugging_face
from repro.models import LanguageModel, build_model
from repro.models.export import save_pretrained
from repro.portable import finished
from repro.portable.finished import CheckpointPoint


def load_model(point: CheckpointPoint) -> LanguageModel:
    """The run's model in FP32 on the CPU with the checkpoint's weights, in evaluation mode.

    Raises ValueError naming the file when the checkpoint is missing, damaged or of another model.
    """
    if not _is_clusters(point):
        return finished.load_model(point)
    folder = state.checkpoint_folder(point.state_dir, _step(point))
    model = build_model(point.model_spec)
    try:
        model.load_state_dict(read_weights(folder, point.model_spec))
    except RuntimeError as error:
        raise ValueError(f"{folder}: does not fit: {error}") from error
    return model.eval()


def save_for_transformers(point: CheckpointPoint, folder: Path, *, tokenizer_dir: Path) -> Path:
    """Writes the checkpoint as a Hugging Face model: BF16 from a cluster, FP32 from the portable trainer.

    Raises ValueError as `load_model` does, or when the tokenizer does not fit.
    """
    if _is_clusters(point):
        step, spec = _step(point), point.model_spec
        return to_hugging_face(point.state_dir, step, spec, folder, tokenizer_dir=tokenizer_dir)
    model = finished.load_model(point)
    return save_pretrained(model, point.model_spec, folder, tokenizer_dir=tokenizer_dir)


def _is_clusters(point: CheckpointPoint) -> bool:
    return point.frozen.get("backend") == "cluster"


def _step(point: CheckpointPoint) -> int:
    schedule = point.frozen["schedule"]
    return point.tokens // (schedule["batch_sequences"] * schedule["sequence_length_tokens"])
