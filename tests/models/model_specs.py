"""Small specs for the tests of repro.models: every kind of block, several heads a group."""

from __future__ import annotations

from pathlib import Path

from repro.experiments.model import ModelSpec, load_model_spec

ROOT = Path(__file__).resolve().parents[2]
TIERS = ("tiny", "proxy", "paper")
FAMILIES = ("12b", "8b", "1p2b")


def from_config(tier: str, family: str) -> ModelSpec:
    return load_model_spec(ROOT / "configs" / "models" / tier / f"{family}.yaml")


def small(kind: str, **changes: object) -> ModelSpec:
    """A spec of two or three blocks of each kind, validated again after `changes`."""
    content = {
        "name": f"small_{kind}",
        "kind": kind,
        "pattern": "M-M*-M*-" if kind == "hybrid" else "*-" * 3,
        "symbols_per_block": 1 if kind == "hybrid" else 2,
        "vocab_size": 96,
        "hidden_size": 32,
        "ffn_hidden_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "norm_eps": 1e-5,
        "init_std": 0.2,
        "rope_base": None if kind == "hybrid" else 10000.0,
        "max_sequence_tokens": 64,
        "bf16_blocks": {"none": {"first": 0, "last": 0}, "last1": {"first": 0, "last": 1}},
        "keeps": "-",
        "cannot_show": "-",
    }
    if kind == "hybrid":
        content |= {
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "mamba_state_size": 4,
            "mamba_num_groups": 2,
            "mamba_conv_kernel": 4,
            "mamba_chunk_size": 8,
        }
    return ModelSpec.model_validate(content | changes)
