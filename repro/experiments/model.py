"""What a model is made of: Tables 3, 4 and 5 of the paper and their small stand-ins, as validated records.

A `ModelSpec` is read from ``configs/models/<tier>/<family>.yaml`` and holds shapes only: no precision (that
is the recipe's), no schedule (that is the tier's). Appendix A of arXiv 2509.25149 states the shapes.

    pattern symbols: M = Mamba-2, - = feed-forward (squared ReLU), * = attention (GQA)
    a block of the hybrid is one symbol; a block of the transformer is attention + feed-forward, "*-"

"The first/last n blocks in BF16" is a number of blocks, so ``bf16_blocks`` maps the names that the experiments
use (``first2_last8``, ``last4`` ...) to counts for this very model: the paper's models state the paper's
numbers, stand-ins state the numbers that keep the paper's share of blocks.

This module imports no torch: the workflow and the figures read specs too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from repro.experiments.errors import read_mapping, validate
from repro.experiments.record import Record

PATTERN_SYMBOLS = {"M": "Mamba-2", "-": "feed-forward", "*": "attention"}

# "Expansion factor 2" of the Mamba-2 blocks (Appendix A.1): inner width = 2 x hidden width.
MAMBA_EXPANSION = 2

_MAMBA_FIELDS = (
    "mamba_num_heads",
    "mamba_head_dim",
    "mamba_state_size",
    "mamba_num_groups",
    "mamba_conv_kernel",
    "mamba_chunk_size",
)


class Bf16Blocks(Record):
    """How many whole blocks at each end of the model keep BF16 linear layers."""

    first: int = Field(ge=0)
    last: int = Field(ge=0)


class ModelSpec(Record):
    """Shapes of one model. All widths are numbers of features, all counts plain numbers.

    Fields of Mamba-2 blocks are null for a model without them; ``rope_base`` is null for a model without
    position embeddings. Raises ``ValueError`` (pydantic's ``ValidationError``) that says in plain words which
    shapes do not fit together.
    """

    name: str
    kind: Literal["hybrid", "transformer"]
    pattern: str
    symbols_per_block: Literal[1, 2]
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    ffn_hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    mamba_num_heads: PositiveInt | None = None
    mamba_head_dim: PositiveInt | None = None
    mamba_state_size: PositiveInt | None = None
    mamba_num_groups: PositiveInt | None = None
    mamba_conv_kernel: PositiveInt | None = None
    mamba_chunk_size: PositiveInt | None = None
    norm_eps: float = Field(gt=0, le=1)
    init_std: float = Field(gt=0, le=1)
    rope_base: float | None = Field(default=None, gt=1)
    max_sequence_tokens: PositiveInt
    bf16_blocks: dict[str, Bf16Blocks]
    keeps: str
    cannot_show: str

    @model_validator(mode="after")
    def _check(self) -> ModelSpec:
        self._check_pattern()
        self._check_attention()
        self._check_mamba()
        for key, counts in self.bf16_blocks.items():
            if counts.first + counts.last > self.num_blocks:
                raise ValueError(
                    f"bf16_blocks.{key}: first {counts.first} + last {counts.last} blocks in BF16 are more "
                    f"than the {self.num_blocks} blocks of {self.name}"
                )
        return self

    def _check_pattern(self) -> None:
        for position, symbol in enumerate(self.pattern):
            if symbol not in PATTERN_SYMBOLS:
                known = ", ".join(f"{s} ({what})" for s, what in PATTERN_SYMBOLS.items())
                raise ValueError(f"pattern: symbol {symbol!r} at position {position} is none of {known}")
        if not self.pattern:
            raise ValueError("pattern: must name at least one block")
        expected_symbols = 2 if self.kind == "transformer" else 1
        if self.symbols_per_block != expected_symbols:
            raise ValueError(
                f"symbols_per_block: a {self.kind} has {expected_symbols} pattern symbol(s) a block, "
                f"not {self.symbols_per_block}"
            )
        if self.kind == "transformer" and self.pattern != "*-" * (len(self.pattern) // 2):
            raise ValueError(
                "pattern: a transformer repeats attention + feed-forward, '*-*-...'; use kind: hybrid"
            )

    def _check_attention(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads: {self.num_key_value_heads} key/value heads do not divide the "
                f"{self.num_attention_heads} attention heads (num_attention_heads)"
            )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads: {self.num_attention_heads} heads do not divide "
                f"hidden_size {self.hidden_size}"
            )
        if self.kind == "transformer" and self.rope_base is None:
            raise ValueError("rope_base: the transformer needs rotary positions, e.g. 10000")
        if self.kind == "hybrid" and self.rope_base is not None:
            raise ValueError("rope_base: the hybrid has no position embeddings; leave it null")
        if self.rope_base is not None and self.head_dim % 2:
            raise ValueError(f"head_dim: rotary positions need an even head_dim, not {self.head_dim}")

    def _check_mamba(self) -> None:
        has_mamba = "M" in self.pattern
        for field in _MAMBA_FIELDS:
            given = getattr(self, field) is not None
            if has_mamba and not given:
                raise ValueError(f"{field}: missing, but the pattern has Mamba-2 blocks (M)")
            if given and not has_mamba:
                raise ValueError(f"{field}: set, but the pattern has no Mamba-2 block (M)")
        if not has_mamba:
            return
        if self.mamba_inner_size != MAMBA_EXPANSION * self.hidden_size:
            raise ValueError(
                f"mamba_num_heads: {self.mamba_num_heads} heads x mamba_head_dim {self.mamba_head_dim} = "
                f"{self.mamba_inner_size}, but the inner width must be {MAMBA_EXPANSION} x hidden_size "
                f"{self.hidden_size} = {MAMBA_EXPANSION * self.hidden_size}"
            )
        if self.mamba_num_heads % self.mamba_num_groups:
            raise ValueError(
                f"mamba_num_groups: {self.mamba_num_groups} groups do not divide the "
                f"{self.mamba_num_heads} Mamba heads (mamba_num_heads)"
            )

    @property
    def num_blocks(self) -> int:
        """Number of blocks as the paper counts them (Table 3: 62, Table 4: 52, Table 5: 20)."""
        return len(self.pattern) // self.symbols_per_block

    @property
    def mamba_inner_size(self) -> int:
        """Width inside a Mamba-2 block, 0 for a model without them."""
        return (self.mamba_num_heads or 0) * (self.mamba_head_dim or 0)

    @property
    def mamba_conv_size(self) -> int:
        """Channels of the Mamba-2 convolution: x, B and C side by side."""
        return self.mamba_inner_size + 2 * (self.mamba_num_groups or 0) * (self.mamba_state_size or 0)

    def linear_parameters_by_block(self) -> tuple[int, ...]:
        """Weights in the quantisable linear layers of each block; embedding and output head are none."""
        num_heads_qkvo = 2 * (self.num_attention_heads + self.num_key_value_heads)
        by_symbol = {
            "M": self.hidden_size
            * (2 * self.mamba_inner_size + self.mamba_conv_size + (self.mamba_num_heads or 0)),
            "-": 2 * self.hidden_size * self.ffn_hidden_size,
            "*": self.hidden_size * self.head_dim * num_heads_qkvo,
        }
        step = self.symbols_per_block
        starts = range(0, len(self.pattern), step)
        return tuple(sum(by_symbol[symbol] for symbol in self.pattern[i : i + step]) for i in starts)

    def num_parameters(self) -> int:
        """All trainable numbers of the model, embedding and (untied) output head included."""
        # Convolution weight and bias, the gated norm, and A_log, D, dt_bias of each head.
        mamba_rest = (
            self.mamba_conv_size * ((self.mamba_conv_kernel or 0) + 1)
            + self.mamba_inner_size
            + 3 * (self.mamba_num_heads or 0)
        )
        norms = (len(self.pattern) + 1) * self.hidden_size  # one before each symbol, one at the end
        return (
            sum(self.linear_parameters_by_block())
            + self.pattern.count("M") * mamba_rest
            + norms
            + 2 * self.vocab_size * self.hidden_size
        )


def load_model_spec(path: str | Path) -> ModelSpec:
    """Read one file of ``configs/models``. Raises ``ValueError`` naming file, key and the nearest valid key."""
    return validate(ModelSpec, read_mapping(Path(path)), path)
