"""A prepared data folder and frozen segments small enough that a step takes milliseconds."""

import os
import struct
from pathlib import Path

import numpy as np
import yaml

from repro.data.indexed import MAGIC
from repro.data.manifest import write_manifest
from repro.experiments.content import run_hash_of

# As `python -m repro.portable` does before CUDA starts; deterministic products are refused without it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

VOCAB = 64
SEQUENCE = 32
BATCH = 4
STEP_TOKENS = SEQUENCE * BATCH

MODEL = {
    "name": "test-hybrid",
    "kind": "hybrid",
    "pattern": "M-*-",
    "symbols_per_block": 1,
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "ffn_hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "mamba_num_heads": 2,
    "mamba_head_dim": 32,
    "mamba_state_size": 16,
    "mamba_num_groups": 1,
    "mamba_conv_kernel": 4,
    "mamba_chunk_size": 16,
    "norm_eps": 1e-5,
    "init_std": 0.02,
    "rope_base": None,
    "max_sequence_tokens": 128,
    "bf16_blocks": {"none": {"first": 0, "last": 0}},
    "keeps": "-",
    "cannot_show": "-",
}


def _write_token_file(prefix: Path, tokens: np.ndarray) -> None:
    """One document holding all tokens, in Megatron's format."""
    prefix.with_suffix(".bin").write_bytes(tokens.astype("<u2").tobytes())
    header = struct.pack("<9sQBQQ", MAGIC, 1, 8, 1, 2)
    index = struct.pack("<i", len(tokens)) + struct.pack("<q", 0) + struct.pack("<qq", 0, 1)
    prefix.with_suffix(".idx").write_bytes(header + index)


def write_data(folder: Path, *, seed: int = 0) -> Path:
    """Token files of two categories in which the next token mostly follows from the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for number, category in enumerate(("code", "prose")):
        for split, count in (("train", 20_000), ("validation", 2_000)):
            steps = np.where(rng.random(count) < 0.9, 3 + number, rng.integers(0, VOCAB, count))
            _write_token_file(folder / f"{category}_{split}", np.cumsum(steps) % VOCAB)
    categories = {"code": {}, "prose": {}}
    write_manifest(folder, {"name": "test", "categories": categories, "tokenizer": {"vocab_size": VOCAB}})
    return folder


def operand(**fields) -> dict:
    return {"format": "nvfp4", "blocks": "1d", "rounding": "rne", **fields}


def nvfp4_recipe() -> dict:
    """The paper's full method on every block: 2D weights, RHT on Wgrad inputs, SR on gradients."""
    weight, rht = operand(blocks="2d"), {"hadamard": 16, "signs": "fixed"}
    return {
        "name": "nvfp4",
        "fprop": {"x": operand(), "w": weight},
        "dgrad": {"g": operand(rounding="sr"), "w": weight},
        "wgrad": {"x": operand(**rht), "g": operand(rounding="sr", **rht)},
        "bf16_blocks": {"first": 0, "last": 1},
    }


def bf16_recipe() -> dict:
    bf16 = {"format": "bf16"}
    return {
        "name": "bf16",
        "fprop": {"x": bf16, "w": bf16},
        "dgrad": {"g": bf16, "w": bf16},
        "wgrad": {"x": bf16, "g": bf16},
        "bf16_blocks": {"first": 0, "last": 0},
    }


RECIPES = {"bf16": bf16_recipe, "nvfp4": nvfp4_recipe}


def freeze(
    folder: Path, *, recipe: str = "nvfp4", start: int = 0, end: int = 20, parent=None, **changes
) -> Path:
    """Writes a run.yaml of steps `start` to `end` of 20; `changes` replace whole sections."""
    content = {
        "schema": 1,
        "run": folder.name,
        "segment": 0,
        "tier": "tiny",
        "family": "test",
        "backend": "portable",
        "model": MODEL,
        "recipe": RECIPES[recipe](),
        "schedule": {
            "horizon_tokens": 20 * STEP_TOKENS,
            "start_tokens": start * STEP_TOKENS,
            "end_tokens": end * STEP_TOKENS,
            "sequence_length_tokens": SEQUENCE,
            "batch_sequences": BATCH,
            "micro_batch_sequences": 2,
            "warmup_tokens": 2 * STEP_TOKENS,
            "decay_start_tokens": 16 * STEP_TOKENS,
            "learning_rate_max": 3e-3,
            "learning_rate_min": 3e-5,
            "decay_shape": "linear",
        },
        "optimizer": {
            "name": "adamw",
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
            "weight_decay": 0.1,
            "clip_grad_norm": 1.0,
        },
        "data": {
            "name": "test",
            "seed": 7,
            "phases": [
                {"until_tokens": 12 * STEP_TOKENS, "blend": {"code": 0.5, "prose": 0.5}},
                {"until_tokens": 20 * STEP_TOKENS, "blend": {"code": 0.9, "prose": 0.1}},
            ],
        },
        "validation": {"sequences": 8, "every_tokens": 5 * STEP_TOKENS},
        "checkpoints": {"every_tokens": 3 * STEP_TOKENS, "keep_last": 2, "keep_tokens": []},
        "divergence": {"window_steps": 5, "rise_nats": 2.0},
        "seed": 11,
        "init_from": parent,
    }
    content.update(changes)
    content["run_hash"] = run_hash_of(content)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path
