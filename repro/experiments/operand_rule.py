"""The rule of one operand of one GEMM: format, blocks, rounding, Hadamard transform, order of the scale's operations.

Sections 4.2 to 4.4 of arXiv 2509.25149. Not here: which operands and GEMMs there are (repro.experiments.recipe), or
what a rule does to a tensor (repro.recipes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from repro.experiments.record import Record
from repro.numerics.formats import block_format

#: Sizes of the tiled Hadamard transform (Appendix C and E.4.2); 0 is no transform.
HADAMARD_SIZES = (0, 2, 4, 8, 16, 32, 64, 128)


class OperandRule(Record):
    """What one operand of one GEMM goes through on its way into the product.

    A rule written as the bare word "bf16" means an operand rounded to BF16 and nothing else.

    Raises (as `pydantic.ValidationError`, a ValueError): an unknown key, format or value, a Hadamard size that is no
    power of two up to 128, options that have no effect on a BF16 operand, a transform whose signs are not said, or
    one with blocks of "1d_shared" (it runs along the contraction dimension, those blocks along another one).
    """

    format: str = Field(description='"bf16", or a block format: nvfp4, mxfp4, fp8_block, mxfp8')
    blocks: Literal["1d", "1d_shared", "2d"] = Field(
        default="1d",
        description="which elements share a scale. 1d: along the dimension that this GEMM contracts, so that the "
        "forward and the backward pass see different representations of one tensor. 1d_shared: along the tensor's "
        "last (feature) dimension in every GEMM. 2d: a square tile (Section 4.3); cut after the transform if any",
    )
    rounding: Literal["rne", "sr"] = Field(
        default="rne", description="to nearest, ties to even; or stochastic with 8 random bits (Section 4.4)"
    )
    hadamard: int = Field(
        default=0, description="size of the transform along the contraction dimension; 0 = none (Section 4.2)"
    )
    signs: Literal["none", "fixed", "per_transform"] = Field(
        default="none",
        description="signs of the transform. fixed: one vector for all layers and the whole run. per_transform: "
        "fresh in each layer, GEMM and step, the same for both operands. To be said where hadamard is not 0; "
        "reads none where it is",
    )
    scale_order: Literal["te", "paper"] = Field(
        default="te",
        description="order of operations in the block scale: Transformer Engine's, or Appendix B's to the letter",
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_and_normalise(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"format": data}
        if isinstance(data, Mapping) and data.get("signs", "none") is None:
            data = {key: value for key, value in data.items() if key != "signs"}
        if isinstance(data, Mapping) and data.get("hadamard", 0) == 0:
            # "without RHT" is hadamard: 0; that there are no signs without a transform needs no second change.
            return (
                {**data, "signs": "none"} if data.get("signs") in ("none", "fixed", "per_transform") else data
            )
        return data

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        if value != "bf16":
            block_format(value)
        return value

    @field_validator("hadamard")
    @classmethod
    def _known_size(cls, value: int) -> int:
        if value not in HADAMARD_SIZES:
            nearest = min(HADAMARD_SIZES, key=lambda size: abs(size - value))
            raise ValueError(
                f"a Hadamard transform of size {value} does not exist here: sizes are powers of two up to 128, "
                f"or 0 for none; the nearest is {nearest}"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.format == "bf16":
            for key, default in (("blocks", "1d"), ("rounding", "rne"), ("scale_order", "te")):
                if getattr(self, key) != default:
                    raise ValueError(
                        f"{key}: {getattr(self, key)} has no effect on a BF16 operand; remove it "
                        '(the bare word "bf16" replaces the whole rule)'
                    )
        if self.hadamard and "signs" not in self.model_fields_set:
            raise ValueError(
                f"hadamard: {self.hadamard} needs signs: fixed, per_transform, or none for a transform that is not "
                "random"
            )
        if self.hadamard and self.blocks == "1d_shared":
            raise ValueError(
                f"hadamard: {self.hadamard} acts along the contraction dimension and cannot be combined with "
                "blocks: 1d_shared; say blocks: 1d or 2d"
            )
        return self
