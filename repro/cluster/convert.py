"""From a torch_dist checkpoint of megatron-core to a folder that transformers' `from_pretrained` loads as it is.

Every parameter of the Hugging Face model (NemotronH, or Arcee for the 1.2B transformer) is made of named tensors of
the checkpoint, listed by `name_map`. H query heads, J key/value heads, P features a head, K hidden features:

    in_proj [z; x; B; C; dt]     saved in these five pieces, joined along the rows; so are conv1d's [x; B; C]
    linear_qkv [J (H/J + 2) P, K]     for each key/value head: its H/J query heads, its key, its value
    norm before a linear layer   a parameter of that layer where Transformer Engine fuses the two, else of its own

Values are copied, never changed: they stay the BF16 weights that the model ran with (the FP32 main weights and the
moments are the optimizer's and stay behind), the A_log, D and dt_bias that megatron-core keeps in BF16 included.
Reads the files through torch.distributed.checkpoint, so megatron-core need not be installed and any number of GPUs
may have written them. Memory: one copy of the weights. Not here: config.json and the file format
(repro.models.export).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from repro.cluster import state
from repro.experiments.errors import nearest
from repro.experiments.model import ModelSpec
from repro.models.export import write_pretrained

_IN_PROJ, _CONV = ("z", "x", "B", "C", "dt"), ("x", "B", "C")


@dataclass(frozen=True)
class Source:
    """What one parameter is made of: `keys` joined along the rows, or `part` "q", "k" or "v" of one fused key.

    `instead`: the key that stands for keys[0] where the model was built without Transformer Engine.
    """

    name: str
    keys: tuple[str, ...]
    part: str | None = None
    instead: str | None = None


def name_map(spec: ModelSpec) -> list[Source]:
    """Every parameter of the Hugging Face model once, in the order in which they are used."""
    hybrid = spec.kind == "hybrid"
    embedding, final = ("embeddings", "norm_f") if hybrid else ("embed_tokens", "norm")
    sources = [Source(f"model.{embedding}.weight", ("embedding.word_embeddings.weight",))]
    for index, symbol in enumerate(spec.pattern):
        block = f"model.layers.{index // spec.symbols_per_block}"
        sources += _LAYERS[symbol](f"decoder.layers.{index}", block, hybrid)
    sources.append(Source(f"model.{final}.weight", ("decoder.final_norm.weight",)))
    return [*sources, Source("lm_head.weight", ("output_layer.weight",))]


def _mamba(layer: str, block: str, hybrid: bool) -> Iterator[Source]:
    mixer, name = f"{layer}.mixer", f"{block}.mixer"
    yield Source(
        f"{block}.norm.weight", (f"{mixer}.in_proj.layer_norm_weight",), instead=f"{layer}.norm.weight"
    )
    yield Source(f"{name}.in_proj.weight", tuple(f"{mixer}.in_proj.weight.{piece}" for piece in _IN_PROJ))
    for leaf in ("weight", "bias"):
        yield Source(f"{name}.conv1d.{leaf}", tuple(f"{mixer}.conv1d.{leaf}.{piece}" for piece in _CONV))
    for leaf in ("dt_bias", "A_log", "D", "norm.weight", "out_proj.weight"):
        yield Source(f"{name}.{leaf}", (f"{mixer}.{leaf}",))


def _feed_forward(layer: str, block: str, hybrid: bool) -> Iterator[Source]:
    norm, name = ("norm", "mixer") if hybrid else ("post_attention_layernorm", "mlp")
    yield Source(
        f"{block}.{norm}.weight",
        (f"{layer}.mlp.linear_fc1.layer_norm_weight",),
        instead=f"{layer}.pre_mlp_layernorm.weight",
    )
    yield Source(f"{block}.{name}.up_proj.weight", (f"{layer}.mlp.linear_fc1.weight",))
    yield Source(f"{block}.{name}.down_proj.weight", (f"{layer}.mlp.linear_fc2.weight",))


def _attention(layer: str, block: str, hybrid: bool) -> Iterator[Source]:
    norm, name = ("norm", "mixer") if hybrid else ("input_layernorm", "self_attn")
    attention = f"{layer}.self_attention"
    yield Source(
        f"{block}.{norm}.weight",
        (f"{attention}.linear_qkv.layer_norm_weight",),
        instead=f"{layer}.input_layernorm.weight",
    )
    for part in ("q", "k", "v"):
        yield Source(f"{block}.{name}.{part}_proj.weight", (f"{attention}.linear_qkv.weight",), part)
    yield Source(f"{block}.{name}.o_proj.weight", (f"{attention}.linear_proj.weight",))


_LAYERS = {"M": _mamba, "-": _feed_forward, "*": _attention}


def read_weights(folder: Path, spec: ModelSpec) -> dict[str, Tensor]:
    """Hugging Face name -> weights on the CPU, in the dtype of the checkpoint `folder` (iter_0000120).

    Raises ValueError naming the folder when it is missing or damaged, naming the tensor when one is missing, or holds
    Inf or NaN. Shapes are checked where the folder is written.
    """
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint import load as load_tensors
    from torch.distributed.checkpoint.api import CheckpointException

    if not folder.is_dir():
        raise ValueError(f"{folder}: no such checkpoint")
    try:
        reader = FileSystemReader(folder)
        there = reader.read_metadata().state_dict_metadata
        sources = [_resolved(source, there, folder) for source in name_map(spec)]
        keys = dict.fromkeys(key for source in sources for key in source.keys)
        raw = {key: torch.empty(there[key].size, dtype=there[key].properties.dtype) for key in keys}
        load_tensors(raw, storage_reader=reader, no_dist=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, CheckpointException) as error:
        # torch's own message of a CheckpointException is a traceback; its last line says what happened.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise ValueError(f"{folder}: not readable as a torch_dist checkpoint ({reason})") from error
    weights = {}
    for source in sources:
        tensors = [raw[key] for key in source.keys]
        tensor = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        weights[source.name] = part_of_qkv(tensor, source.part, spec) if source.part else tensor
        if not torch.isfinite(weights[source.name]).all():
            raise ValueError(f"{folder}: {source.keys[0]} holds a non-finite value")
    return weights


def _resolved(source: Source, there: dict[str, object], folder: Path) -> Source:
    """The source with the keys that this checkpoint has."""
    if source.instead in there and source.keys[0] not in there:
        source = Source(source.name, (source.instead,))
    for key in source.keys:
        if key not in there:
            raise ValueError(f"{folder}: no tensor {key} for {source.name}{nearest(key, there)}")
    return source


def part_of_qkv(qkv: Tensor, part: str, spec: ModelSpec) -> Tensor:
    """[J (H/J + 2) P, K] -> the queries [H P, K], keys [J P, K] or values [J P, K].

    Raises ValueError when the rows are not those of the model's heads.
    """
    queries = spec.num_attention_heads // spec.num_key_value_heads
    expected = spec.num_key_value_heads * (queries + 2) * spec.head_dim
    if len(qkv) != expected:
        raise ValueError(f"linear_qkv of the checkpoint has {len(qkv)} rows, {spec.name} needs {expected}")
    by_group = qkv.view(spec.num_key_value_heads, queries + 2, spec.head_dim, -1)
    rows = {"q": slice(0, queries), "k": slice(queries, queries + 1), "v": slice(queries + 1, queries + 2)}
    return by_group[:, rows[part]].flatten(0, 2)


def to_hugging_face(
    state_dir: Path, step: int, spec: ModelSpec, folder: Path, *, tokenizer_dir: Path | None = None
) -> Path:
    """Writes the checkpoint of `step` of a segment's state folder as a Hugging Face model; returns `folder`.

    Raises ValueError in the user's words when the checkpoint is not there or not this model's.
    """
    weights = read_weights(state.checkpoint_folder(state_dir, step), spec)
    return write_pretrained(weights, spec, folder, tokenizer_dir=tokenizer_dir)
