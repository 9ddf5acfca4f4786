"""What a pass makes of one matrix x: the kinds that repro.bench.passes times, by the names of their rows.

    qdq/FORMAT/TILE/ROUNDING    one copy of x in blocks along its rows, or in square tiles; "/fp32" of a weight
    pair/FORMAT/ROUNDING        the two copies that the layer asks for: rows as they are, columns transformed
    pair/.../squared_relu       the same of relu(x)^2; "/squared_relu_gradient" of its gradient

A kind is a request as repro.numerics takes it, and what it reads: no tensor is made here.

Does not: know a machine, time or targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from repro.numerics.formats import FP8_BLOCK, MXFP4, NVFP4, BlockFormat, QuantSpec
from repro.numerics.hadamard import sign_vector
from repro.numerics.operand import CopyRequest
from repro.numerics.source import SquaredRelu, SquaredReluGradient

SEED = 0x123456789ABCDEF
#: Size of the Hadamard transform of a column copy: the block's, where a recipe has one.
HADAMARD = {NVFP4.name: 16, MXFP4.name: 32, FP8_BLOCK.name: 0}


@dataclass(frozen=True)
class Kind:
    """What one pass makes of x."""

    name: str
    what: str
    requests: tuple[CopyRequest, ...]
    is_weight: bool = False
    #: Of x, with a second tensor for the gradient; None: x itself.
    source: type[SquaredRelu | SquaredReluGradient] | None = None

    @property
    def bytes_read(self) -> int:
        """By one pass, an element."""
        return 4 if self.is_weight or self.source is SquaredReluGradient else 2


def request(form: BlockFormat, tile: tuple[int, int], along: int, *, sr: bool, hadamard: int) -> CopyRequest:
    signs = sign_vector(hadamard, kind="fixed") if hadamard else None
    spec = QuantSpec(form, tile, rounding="sr" if sr else "rne")
    return CopyRequest(spec, along, hadamard, signs, SEED + along if sr else None)


def kinds() -> list[Kind]:
    """NVFP4 first; what no recipe asks for is left out (stochastic rounding of FP8, of weights)."""
    found = []
    for form in (NVFP4, MXFP4, FP8_BLOCK):
        roundings = (False,) if form is FP8_BLOCK else (False, True)
        (rows, columns), size = form.tiles_1d, HADAMARD[form.name]
        for sr in roundings:
            word = "sr" if sr else "rne"
            copy = request(form, form.tiles_1d, 1, sr=sr, hadamard=0)
            found.append(
                Kind(f"qdq/{form.name}/{rows}x{columns}/{word}", f"QDQ {form.name}, {word}", (copy,))
            )
        square = request(form, form.tiles_2d, 1, sr=False, hadamard=0)
        name = f"qdq/{form.name}/{form.tiles_2d[0]}x{form.tiles_2d[1]}/rne"
        found.append(Kind(name, f"QDQ {form.name} square tile, rne", (square,)))
        found.append(Kind(f"{name}/fp32", f"QDQ {form.name} square tile, FP32 weight", (square,), True))
        for sr in roundings:
            word = "sr" if sr else "rne"
            both = tuple(
                request(form, form.tiles_1d, along, sr=sr, hadamard=0 if along else size) for along in (1, 0)
            )
            transformed = f" transformed by {size}" if size else ""
            what = f"rows + columns{transformed}, {form.name}, {word}"
            found.append(Kind(f"pair/{form.name}/{word}", what, both))
    return found


def source_kinds() -> list[Kind]:
    """The feed-forward layer's squared ReLU, and its gradient, which is rounded stochastically."""
    by_name = {kind.name: kind for kind in kinds()}
    rne, sr = by_name["pair/nvfp4/rne"], by_name["pair/nvfp4/sr"]
    return [
        replace(rne, name=f"{rne.name}/squared_relu", what=f"relu(x)^2: {rne.what}", source=SquaredRelu),
        replace(
            sr,
            name=f"{sr.name}/squared_relu_gradient",
            what=f"gradient of relu(x)^2: {sr.what}",
            source=SquaredReluGradient,
        ),
    ]
