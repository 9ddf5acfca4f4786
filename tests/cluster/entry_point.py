"""Small hybrids through the cluster backend as a launcher starts it (launched.py), and notes of what was measured.

Without a GPU the model is smaller.

What `note` is given goes, one JSON line each, into the file that $REPRO_HARDWARE_NOTES names: the record of a check
on hardware (docs/records).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from launched import ON_GPU, Launched, finish, finish_all, launch, start
from safetensors.torch import load_file
from small import freeze, portable

from repro.cluster.convert import to_hugging_face
from repro.models import build_model

DEVICE = "cuda" if ON_GPU else "cpu"
_ON_CPU_MODEL = {
    **portable.MODEL,
    "pattern": "M-M*-M-",
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_num_heads": 16,
    "mamba_head_dim": 8,
}
_ON_GPU_MODEL = {
    **_ON_CPU_MODEL,
    "hidden_size": 256,
    "ffn_hidden_size": 512,
    "head_dim": 64,
    "mamba_num_heads": 32,  # in_proj has 1184 = 37 x 32 outputs: as in the 12B model no multiple of 128
    "mamba_head_dim": 16,
    "mamba_state_size": 64,
    "mamba_chunk_size": 128,
}
MODEL = _ON_GPU_MODEL if ON_GPU else _ON_CPU_MODEL
PROCESS = Path(__file__).parent / "megatron_process.py"


def fp8_recipe():
    activation, weight = (
        {"format": "fp8_block", "blocks": blocks, "rounding": "rne"} for blocks in ("1d", "2d")
    )
    return {
        "name": "fp8_block",
        "fprop": {"x": activation, "w": weight},
        "dgrad": {"g": activation, "w": weight},
        "wgrad": {"x": activation, "g": activation},
        "bf16_blocks": {"first": 1, "last": 1},
    }


def mxfp4_recipe():
    operand = {"format": "mxfp4", "blocks": "1d", "rounding": "rne"}
    gradient = {**operand, "rounding": "sr", "hadamard": 16, "signs": "fixed"}
    return {
        "name": "mxfp4",
        "fprop": {"x": operand, "w": operand},
        "dgrad": {"g": {**operand, "rounding": "sr"}, "w": operand},
        "wgrad": {"x": {**operand, "hadamard": 16, "signs": "fixed"}, "g": gradient},
        "bf16_blocks": {"first": 0, "last": 1},
    }


def plain_nvfp4_recipe():
    """All three switches of the native recipe off: 1x16 scales, rounding to nearest, no transform."""
    operand = {"format": "nvfp4", "blocks": "1d", "rounding": "rne"}
    gemms = {"fprop": "xw", "dgrad": "gw", "wgrad": "xg"}
    return {
        "name": "nvfp4_plain",
        **{gemm: dict.fromkeys(names, operand) for gemm, names in gemms.items()},
        "bf16_blocks": {"first": 0, "last": 1},
    }


def forward_nvfp4_recipe():
    """BF16 in the backward pass, as 12b_switch_backward_82 has it."""
    backward = {gemm: portable.bf16_recipe()[gemm] for gemm in ("dgrad", "wgrad")}
    return {**plain_nvfp4_recipe(), "name": "nvfp4_forward", **backward}


portable.RECIPES.update(
    {
        "fp8_block": fp8_recipe,
        "mxfp4": mxfp4_recipe,
        "nvfp4_plain": plain_nvfp4_recipe,
        "nvfp4_forward": forward_nvfp4_recipe,
    }
)


def layout() -> str:
    return "b200x8" if ON_GPU and torch.cuda.get_device_capability()[0] == 10 else "h200x8"


#: Of the same sizes; a block is attention and feed-forward, as in the 1.2B model.
TRANSFORMER = {
    **{key: value for key, value in MODEL.items() if not key.startswith("mamba_")},
    "name": "test-transformer",
    "kind": "transformer",
    "pattern": "*-*-*-",
    "symbols_per_block": 2,
    "rope_base": 10_000.0,
}


def segment_of(folder, *, recipe="nvfp4", pattern=None, model=MODEL, family="8b", **changes):
    """A frozen segment of 20 steps, saved at step 10 and at its end."""
    checkpoints = {"every_tokens": 10 * portable.STEP_TOKENS, "keep_last": 2, "keep_tokens": []}
    model = {**model, "pattern": pattern or model["pattern"]}
    return freeze(folder, recipe=recipe, family=family, model=model, checkpoints=checkpoints, **changes)


def start_segment(segment, data_dir, *, emulate=True) -> Launched:
    return start(*segment_words(segment, data_dir, emulate))


def train_on(size, segment, data_dir, *, emulate=True) -> None:
    """Trains in `size` processes; fails with what the first one to fail said."""
    for code, said in finish_all(launch(*segment_words(segment, data_dir, emulate), size=size)):
        assert code == 0, said[-6000:]


def segment_words(segment, data_dir, emulate=True) -> list:
    state = segment.path.parent.parent / "state"
    words = ["-m", "repro.cluster", segment.path, "--data", data_dir, "--state", state, "--layout", layout()]
    return [*words, *(["--emulate"] if emulate else [])]


def train(segment, data_dir, *, emulate=True) -> tuple[int, str]:
    return finish(start_segment(segment, data_dir, emulate=emulate))


def records(segment, kind="train") -> list[dict]:
    lines = (segment.path.parent / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def done(segment) -> dict:
    return json.loads((segment.path.parent / "done.json").read_text())


def logit_difference(segment, folder) -> tuple[float, float]:
    """Trains nothing: the checkpoint of step 20 converted into `folder`/hf, against megatron-core's own model of it.

    (largest difference of logits, standard deviation of the logits), both models in FP32.
    """
    state = segment.path.parent.parent / "state"
    code, said = finish(start(PROCESS, "logits", segment.path, state, folder / "logits", layout()))
    assert code == 0, said[-6000:]
    converted = to_hugging_face(state / segment.run_hash, 20, segment.model, folder / "hf")
    recorded = load_file(folder / "logits")
    with torch.no_grad():
        found = _converted_model(segment, converted)(recorded["tokens"].to(DEVICE))
    found = getattr(found, "logits", found).cpu()
    return float((found - recorded["logits"]).abs().max()), float(recorded["logits"].std())


def _converted_model(segment, folder):
    """transformers' model; on a CPU this project's own, since transformers calls mamba_ssm's kernels there too."""
    if ON_GPU:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(DEVICE)
    model = build_model(segment.model)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


def note(check: str, **values) -> None:
    if path := os.environ.get("REPRO_HARDWARE_NOTES"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"check": check, **values}) + "\n")
