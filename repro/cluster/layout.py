"""How a model is spread over GPUs: the records of configs/cluster, and the pieces that each GPU gets.

Spreading changes a run's numbers by the order of sums alone, so none of it is part of a frozen run. But megatron-core
seeds a pipeline stage's first weights by its number: runs to be compared start on equally many stages. A checkpoint
goes on in as many as wrote it. Not here: whether the pieces have sizes that a precision can run (repro.cluster.fit).
Reads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pydantic import PositiveFloat, PositiveInt

from repro.experiments.errors import nearest, read_mapping, validate
from repro.experiments.model import ModelSpec
from repro.experiments.record import Record

LAYOUTS = Path("configs/cluster")
DEFAULT_LAYOUT = "gb200"

_FP4_CAPABILITIES = ((10, 0), (10, 3))


class Spread(Record):
    """One model on a cluster: nodes that it was sized for, and degrees of tensor and pipeline parallelism."""

    nodes: PositiveInt
    tensor: PositiveInt
    pipeline: PositiveInt


class Layout(Record):
    """One file of configs/cluster."""

    name: str
    device: str
    compute_capability: tuple[int, int]
    gpus_per_node: PositiveInt
    memory_gb: PositiveFloat
    families: dict[str, Spread]

    def spread(self, family: str) -> Spread:
        """Raises ValueError with the nearest family."""
        if family not in self.families:
            raise ValueError(f"layout {self.name}: no family {family!r}{nearest(family, self.families)}")
        return self.families[family]

    @property
    def has_fp4(self) -> bool:
        """Whether Transformer Engine trains NVFP4 natively on this card."""
        return self.compute_capability in _FP4_CAPABILITIES


def load_layout(name: str, folder: Path = LAYOUTS) -> Layout:
    """configs/cluster/<name>.yaml. Raises ValueError naming file and key, or the nearest layout."""
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(
            f"no layout {name!r} in {folder}{nearest(name, [p.stem for p in folder.glob('*.yaml')])}"
        )
    return validate(Layout, read_mapping(path), path)


@dataclass(frozen=True)
class LinearShape:
    """One kind of linear layer on one GPU: `inputs` K, `outputs` N features."""

    name: str
    inputs: int
    outputs: int


def linear_shapes(model: ModelSpec, tensor: int) -> list[LinearShape]:
    """Each kind of linear layer once, per GPU; q, k and v are one layer as in Megatron.

    Raises ValueError when a width does not divide by the degree of tensor parallelism.
    """
    hidden, heads = model.hidden_size, model.num_attention_heads * model.head_dim
    kinds = {
        "*": (
            ("linear_qkv", hidden, heads + 2 * model.num_key_value_heads * model.head_dim, "column"),
            ("linear_proj", heads, hidden, "row"),
        ),
        "-": (
            ("linear_fc1", hidden, model.ffn_hidden_size, "column"),
            ("linear_fc2", model.ffn_hidden_size, hidden, "row"),
        ),
        "M": (
            ("in_proj", hidden, _in_proj_outputs(model), "column"),
            ("out_proj", model.mamba_inner_size, hidden, "row"),
        ),
    }
    shapes = []
    for symbol in dict.fromkeys(model.pattern):
        for name, inputs, outputs, parallel in kinds[symbol]:
            split = outputs if parallel == "column" else inputs
            if split % tensor:
                raise ValueError(
                    f"{name} of {model.name}: {split} features do not divide by tensor parallelism {tensor}"
                )
            column = parallel == "column"
            shapes.append(
                LinearShape(
                    name, inputs if column else inputs // tensor, outputs // tensor if column else outputs
                )
            )
    return shapes


def _in_proj_outputs(model: ModelSpec) -> int:
    return model.mamba_inner_size + model.mamba_conv_size + (model.mamba_num_heads or 0)


def state_bytes(model: ModelSpec, spread: Spread, data_parallel: int) -> int:
    """Bytes of weights (BF16), gradients (FP32) and optimizer states (12 a parameter, shared out) on one GPU."""
    share = model.num_parameters() / (spread.tensor * spread.pipeline)
    return round(share * (2 + 4 + 12 / data_parallel))


def stages(pattern: str, num_stages: int) -> str:
    """The pattern cut into pipeline stages with "|", as near to equal numbers of symbols as it goes.

    Raises ValueError for more stages than symbols.
    """
    if num_stages > len(pattern):
        raise ValueError(f"pipeline: {num_stages} stages for {len(pattern)} layers")
    cuts = [round(i * len(pattern) / num_stages) for i in range(num_stages + 1)]
    return "|".join(pattern[a:b] for a, b in pairwise(cuts))
