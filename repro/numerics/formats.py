"""Number formats as data: elements, block formats, and what `quantize` is asked to do.

Paper (arXiv 2509.25149) section 2 and Appendix B; OCP Microscaling Formats 1.0 for MX.

An element format is five numbers; maximum, smallest subnormal and the value of each code follow from them.
A block format says which element carries the values, which element carries the scale of a block, how large
a block is, and whether one FP32 scale of the whole tensor sits on top. Nothing elsewhere asks for a
format's name: adding a format is adding a record here.

Does not: touch a tensor (no torch here, so that figures and configs may read it), round, or scale.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

#: Largest finite FP32 number, (2 - 2^-23) * 2^127.
FP32_MAX = (2.0 - 2.0**-23) * 2.0**127

#: Smallest positive FP32 number (subnormal).
FP32_MIN_SUBNORMAL = 2.0**-149

Rounding = Literal["rne", "sr"]
ScaleOrder = Literal["te", "paper"]
#: How a block's decode scale follows from its amax b (exact order: `scaling.py`):
#: "two_level"       b relative to the tensor's amax, rounded to nearest in the scale's own format (NVFP4)
#: "power_of_two_up" 2^ceil(log2(b / element max)), so that nothing saturates (MX with NVIDIA's rounding up)
#: "amax_over_max"   b / element max in FP32 (the paper's FP8 baseline, section A.1)
ScaleRule = Literal["two_level", "power_of_two_up", "amax_over_max"]


@dataclass(frozen=True)
class ElementFormat:
    """A floating-point format of at most 32 bits: (sign) | exponent | mantissa, most significant bit first."""

    #: Name as in the literature, e.g. "E2M1".
    name: str
    exponent_bits: int
    mantissa_bits: int
    #: Value of a normal code is 2^(exponent field - bias) * (1 + mantissa / 2^mantissa_bits).
    bias: int
    signed: bool = True
    #: "none": every code is a number (E2M1); "nan": only the all-ones code is special, a NaN (E4M3FN, UE8M0);
    #: "ieee": the top exponent holds Inf and NaN (E5M2, BF16, FP32).
    specials: Literal["none", "nan", "ieee"] = "ieee"
    #: False: there is no zero and no subnormal, code 0 is 2^-bias (UE8M0).
    has_zero: bool = True
    #: Whether an input of exactly -0.0 keeps its sign. FP8 casts do; Transformer Engine's E2M1 reference
    #: gives code 0 for -0.0 (but code 8 for a negative number that rounds to zero).
    keeps_negative_zero: bool = True

    @property
    def bits(self) -> int:
        """Storage of one number in bits."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number (of the smallest number where there is no zero)."""
        return 1 - self.bias if self.has_zero else -self.bias

    @property
    def code_of_max(self) -> int:
        """Code of the largest finite number, sign bit clear."""
        num_codes = 1 << (self.exponent_bits + self.mantissa_bits)
        if self.specials == "ieee":
            return num_codes - (1 << self.mantissa_bits) - 1
        return num_codes - 1 - int(self.specials == "nan")

    @property
    def sign_bit(self) -> int:
        """Mask of the sign bit within a code; 0 for an unsigned format."""
        return 1 << (self.bits - 1) if self.signed else 0

    @property
    def max(self) -> float:
        """Largest finite number."""
        return self.decode(self.code_of_max)

    @property
    def min_normal(self) -> float:
        """Smallest positive number with a full mantissa."""
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float:
        """Smallest positive number; equals `min_normal` where there are no subnormals."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits) if self.has_zero else self.min_normal

    def decode(self, code: int) -> float:
        """The number a code stands for, exact in a Python float.

        Raises ValueError for a code outside 0 .. 2^bits - 1. Specials decode to inf and nan.
        """
        if not 0 <= code < 1 << self.bits:
            raise ValueError(f"{self.name} has codes 0..{(1 << self.bits) - 1}, got {code}")
        magnitude = code & ~self.sign_bit
        sign = -1.0 if code & self.sign_bit else 1.0
        field, mantissa = divmod(magnitude, 1 << self.mantissa_bits)
        if magnitude > self.code_of_max:
            return sign * float("inf") if self.specials == "ieee" and mantissa == 0 else float("nan")
        if field == 0 and self.has_zero:
            return sign * mantissa * self.min_subnormal
        return sign * (1.0 + mantissa * 2.0**-self.mantissa_bits) * 2.0 ** (field - self.bias)

    @property
    def magnitudes(self) -> tuple[float, ...]:
        """All finite non-negative numbers by code, hence ascending. Meant for formats of at most 16 bits."""
        return tuple(self.decode(code) for code in range(self.code_of_max + 1))


E2M1 = ElementFormat("E2M1", 2, 1, bias=1, specials="none", keeps_negative_zero=False)
E4M3 = ElementFormat("E4M3", 4, 3, bias=7, specials="nan")
E5M2 = ElementFormat("E5M2", 5, 2, bias=15)
UE8M0 = ElementFormat("UE8M0", 8, 0, bias=127, signed=False, specials="nan", has_zero=False)
BF16 = ElementFormat("BF16", 8, 7, bias=127)
FP32 = ElementFormat("FP32", 8, 23, bias=127)


@dataclass(frozen=True)
class BlockFormat:
    """A tensor format in which a tile of elements shares one scale.

    Tiles are (rows, columns). A value is element x block scale (x tensor scale, if there is one).
    Raises ValueError for elements that do not fit a byte or have no zero, and for a scale or tensor scale that the
    rule does not make.
    """

    name: str
    #: What each value is stored in.
    element: ElementFormat
    #: What the scale of a block is stored in.
    scale: ElementFormat
    #: Tile of activations and gradients, along the last dimension.
    tiles_1d: tuple[int, int]
    #: Square tile, so that a weight and its transpose quantise to the same numbers (section 4.3).
    tiles_2d: tuple[int, int]
    scale_rule: ScaleRule
    #: Whether one FP32 scale, from the amax of the whole tensor, brings the block scales into range.
    tensor_scale: bool = False

    def __post_init__(self) -> None:
        if self.element.bits > 8 or not self.element.has_zero:
            raise ValueError(
                f"{self.name}: elements have at most 8 bits and a zero; {self.element.name} has not"
            )
        kinds = {
            "two_level": (
                self.scale.bits <= 8 and self.scale.has_zero,
                "an 8-bit one with a zero (E4M3)",
                True,
            ),
            "power_of_two_up": (self.scale == UE8M0, "UE8M0", False),
            "amax_over_max": (self.scale == FP32, "FP32", False),
        }
        if self.scale_rule not in kinds:
            raise ValueError(f"{self.name}: scale_rule is one of {', '.join(kinds)}, not {self.scale_rule!r}")
        fits, wanted, has_tensor_scale = kinds[self.scale_rule]
        if not fits:
            raise ValueError(
                f"{self.name}: the scale of {self.scale_rule} is {wanted}, not {self.scale.name}"
            )
        if self.tensor_scale != has_tensor_scale:
            needs = "needs" if has_tensor_scale else "takes no"
            raise ValueError(f"{self.name}: {self.scale_rule} {needs} tensor_scale")

    @property
    def tiles(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The tiles this format is defined for."""
        return (self.tiles_1d, self.tiles_2d)

    @property
    def tensor_max(self) -> float:
        """Largest magnitude before the tensor scale: NVFP4's 6 * 448 = 2688."""
        return self.element.max * self.scale.max

    @property
    def is_exact_in_bf16(self) -> bool:
        """Whether every element value times every block scale is a BF16 number: NVFP4 and MXFP4 are.

        Significands multiply to the sum of their bits (E2M1 x E4M3: 2 + 4, BF16 holds 8), and the smallest product
        must not underflow. FP32 block scales do not fit, nor do MXFP8's smallest values.
        """
        significant_bits = self.element.mantissa_bits + 1 + self.scale.mantissa_bits + 1
        smallest = self.element.min_subnormal * self.scale.min_subnormal
        return significant_bits <= BF16.mantissa_bits + 1 and smallest >= BF16.min_subnormal

    def bits_per_value(self, tile: tuple[int, int] | None = None) -> float:
        """Storage per value in bits with the block's scale shared out, the tensor scale not counted.

        NVFP4 1x16: 4.5, MXFP4 1x32: 4.25, MXFP8 1x32: 8.25, FP8 1x128: 8.25. `tile` defaults to `tiles_1d`.
        """
        rows, columns = tile or self.tiles_1d
        return self.element.bits + self.scale.bits / (rows * columns)


NVFP4 = BlockFormat("nvfp4", E2M1, E4M3, (1, 16), (16, 16), scale_rule="two_level", tensor_scale=True)
MXFP4 = BlockFormat("mxfp4", E2M1, UE8M0, (1, 32), (32, 32), scale_rule="power_of_two_up")
MXFP8 = BlockFormat("mxfp8", E4M3, UE8M0, (1, 32), (32, 32), scale_rule="power_of_two_up")
FP8_BLOCK = BlockFormat("fp8_block", E4M3, FP32, (1, 128), (128, 128), scale_rule="amax_over_max")

BLOCK_FORMATS: dict[str, BlockFormat] = {f.name: f for f in (NVFP4, MXFP4, FP8_BLOCK, MXFP8)}


def block_format(name: str) -> BlockFormat:
    """The block format of this name. Raises ValueError that names the nearest known one."""
    if isinstance(name, str) and name in BLOCK_FORMATS:
        return BLOCK_FORMATS[name]
    nearest = difflib.get_close_matches(str(name).lower(), BLOCK_FORMATS, n=1, cutoff=0.0)[0]
    raise ValueError(f"unknown format {name!r}; did you mean {nearest!r}? Known: {', '.join(BLOCK_FORMATS)}")


@dataclass(frozen=True)
class QuantSpec:
    """What `quantize` does to one tensor. Raises ValueError when the parts do not fit together."""

    format: BlockFormat
    #: One of `format.tiles`.
    tile: tuple[int, int]
    #: Round to nearest, ties to even, or stochastically with 8 random bits per value.
    rounding: Rounding = "rne"
    #: Order in which the FP32 operations of a two-level block scale are done: Transformer Engine's
    #: (>= 2.14), or the paper's Appendix B as it is printed. Without effect on the other scale rules.
    scale_order: ScaleOrder = "te"

    def __post_init__(self) -> None:
        if not isinstance(self.format, BlockFormat):
            raise ValueError(
                f"format is a record such as NVFP4, not {self.format!r}; `block_format(name)` gives that of "
                f"{', '.join(BLOCK_FORMATS)}"
            )
        object.__setattr__(self, "tile", self._known_tile())
        if self.rounding not in ("rne", "sr"):
            raise ValueError(f"rounding is 'rne' (to nearest) or 'sr' (stochastic), not {self.rounding!r}")
        if self.scale_order not in ("te", "paper"):
            raise ValueError(f"scale_order is 'te' or 'paper', not {self.scale_order!r}")

    def _known_tile(self) -> tuple[int, int]:
        """The format's own tuple that equals `tile`."""
        is_pair = isinstance(self.tile, tuple | list) and len(self.tile) == 2
        for known in self.format.tiles:
            if is_pair and tuple(self.tile) == known:
                return known
        names = " or ".join(f"{rows}x{columns}" for rows, columns in self.format.tiles)
        tuples = " or ".join(map(str, self.format.tiles))
        asked = "x".join(map(str, self.tile)) if is_pair else f"{self.tile!r}: a tile is {tuples}"
        raise ValueError(f"{self.format.name} is defined for tiles {names}, not {asked}")
