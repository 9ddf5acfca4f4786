"""Weights into a folder that transformers' ``AutoModelForCausalLM.from_pretrained`` loads as it is.

The hybrid becomes a ``nemotron_h``, the transformer an ``arcee`` (RMSNorm, squared ReLU, RoPE, grouped queries).
Parameter names are those libraries' own, so a state dict is written without renaming; config.json is written as
plain JSON, without importing transformers.

One value of config.json is there for the function, not for the record: ``time_step_min``. transformers clamps dt
from below with it in prefill, but not when it decodes token by token, and Megatron-LM does not clamp at all. A
value that no dt in FP32 is smaller than by any consequence makes all three agree.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from repro.experiments.model import ModelSpec
from repro.models.language_model import build_model

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
NO_CLAMP_OF_DT = 1e-30  # not 0: transformers takes its logarithm when it draws fresh weights


def save_pretrained(
    model: nn.Module, spec: ModelSpec, folder: str | Path, *, tokenizer_dir: str | Path | None = None
) -> Path:
    """Write the parameters of `model` as `write_pretrained` does; returns the folder."""
    tensors = {name: p.detach().contiguous() for name, p in model.named_parameters()}
    return write_pretrained(tensors, spec, folder, tokenizer_dir=tokenizer_dir)


def write_pretrained(
    tensors: dict[str, Tensor],
    spec: ModelSpec,
    folder: str | Path,
    *,
    tokenizer_dir: str | Path | None = None,
) -> Path:
    """Write config.json, model.safetensors and, if given, the tokenizer's files; returns the folder.

    Every file is complete or absent: written under another name, then renamed, config.json last. The dtype is the
    tensors' (config.json states the first one's). Raises ValueError when they are not the parameters of `spec` or the
    tokenizer does not fit the vocabulary, OSError naming the file when the disk refuses it.
    """
    folder = Path(folder)
    _check_shapes({name: tuple(t.shape) for name, t in tensors.items()}, spec, where=f"model for {folder}")
    special_ids = _special_token_ids(Path(tokenizer_dir), spec) if tokenizer_dir else {}
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    config = hf_config(spec, dtype=dtype) | special_ids

    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer_dir:
        for source in (Path(tokenizer_dir) / name for name in TOKENIZER_FILES):
            if source.exists():
                _write(folder / source.name, lambda path, source=source: shutil.copyfile(source, path))
    _write(folder / WEIGHTS_FILE, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    _write(
        folder / CONFIG_FILE,
        lambda path: path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8"),
    )
    return folder


def hf_config(spec: ModelSpec, *, dtype: str = "float32") -> dict[str, Any]:
    """The config.json of transformers' model with this spec's function; no special tokens."""
    common = {
        "dtype": dtype,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_hidden_size,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_sequence_tokens,
        "initializer_range": spec.init_std,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if spec.kind == "transformer":
        return common | {
            "architectures": ["ArceeForCausalLM"],
            "model_type": "arcee",
            "num_hidden_layers": spec.num_blocks,
            "hidden_act": "relu2",
            "rms_norm_eps": spec.norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_base},
        }
    return common | {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": spec.pattern,
        "mlp_hidden_act": "relu2",
        "layer_norm_epsilon": spec.norm_eps,
        "mamba_num_heads": spec.mamba_num_heads,
        "mamba_head_dim": spec.mamba_head_dim,
        "ssm_state_size": spec.mamba_state_size,
        "n_groups": spec.mamba_num_groups,
        "conv_kernel": spec.mamba_conv_kernel,
        "chunk_size": spec.mamba_chunk_size,
        "use_conv_bias": True,
        "use_bias": False,
        "time_step_min": NO_CLAMP_OF_DT,
    }


def _check_shapes(found: dict[str, tuple[int, ...]], spec: ModelSpec, *, where: str) -> None:
    expected = {name: tuple(p.shape) for name, p in build_model(spec, device="meta").named_parameters()}
    for name, shape in expected.items():
        if name not in found:
            raise ValueError(f"{where}: parameter {name} of {spec.name} is missing")
        if found[name] != shape:
            raise ValueError(
                f"{where}: {name} has shape {list(found[name])}, {spec.name} needs {list(shape)}"
            )
    unknown = sorted(found.keys() - expected.keys())
    if unknown:
        raise ValueError(f"{where}: {spec.name} has no parameter {unknown[0]} ({len(unknown)} unknown)")


def _special_token_ids(tokenizer_dir: Path, spec: ModelSpec) -> dict[str, int]:
    """bos, eos and pad ids as the tokenizer's own files state them."""
    try:
        tokenizer = json.loads((tokenizer_dir / "tokenizer.json").read_text(encoding="utf-8"))
        settings = json.loads((tokenizer_dir / "tokenizer_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{error.filename}: no such file; the tokenizer is incomplete") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{tokenizer_dir}: a tokenizer file is truncated ({error})") from None
    ids = dict(tokenizer["model"]["vocab"]) | {
        t["content"]: t["id"] for t in tokenizer.get("added_tokens", [])
    }
    if max(ids.values()) >= spec.vocab_size:
        raise ValueError(
            f"{tokenizer_dir}: token id {max(ids.values())} does not fit the {spec.vocab_size} tokens of {spec.name}"
        )
    found = {}
    for kind in ("bos", "eos", "pad"):
        token = settings.get(f"{kind}_token")
        content = token["content"] if isinstance(token, dict) else token
        if content in ids:
            found[f"{kind}_token_id"] = ids[content]
    return found


def _write(path: Path, write: Any) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        write(partial)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise OSError(f"{path}: could not be written ({error})") from error
