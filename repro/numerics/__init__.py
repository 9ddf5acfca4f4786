"""Block-scaled number formats, exactly: formats, scaling, rounding, Hadamard transform, quantise.

Names are loaded on first use, so that `repro.numerics.formats` (plain data) can be read without torch.
`repro.numerics.quantize` and `repro.numerics.random_bits` are the functions; the modules of the same name
are reached as `from repro.numerics.quantize import ...`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

#: Public name -> the module that defines it.
_HOME = {
    "BLOCK_FORMATS": "formats",
    "BlockFormat": "formats",
    "ElementFormat": "formats",
    "FP8_BLOCK": "formats",
    "MXFP4": "formats",
    "MXFP8": "formats",
    "NVFP4": "formats",
    "QuantSpec": "formats",
    "block_format": "formats",
    "Quantized": "quantize",
    "count_nonfinite": "quantize",
    "quantize": "quantize",
    "CopyRequest": "operand",
    "Operand": "operand",
    "make_operand": "operand",
    "make_operand_pair": "operand",
    "make_operand_reference": "operand",
    "Source": "source",
    "SquaredRelu": "source",
    "SquaredReluGradient": "source",
    "materialise": "source",
    "derive_seed": "random_bits",
    "random_bits": "random_bits",
    "seed_tensor": "random_bits",
    "hadamard_matrix": "hadamard",
    "sign_vector": "hadamard",
    "transform": "hadamard",
    "Packed": "packing",
    "make_packed": "packing",
    "make_packed_pair": "packing",
    "pack": "packing",
    "pack_codes": "packing",
    "unpack": "packing",
    "unpack_codes": "packing",
}

__all__ = sorted(_HOME)


class _LazyPackage(ModuleType):
    """Keeps a submodule from shadowing the function of the same name.

    After `repro/numerics/quantize.py` is imported, Python binds the *module* as `repro.numerics.quantize`;
    whether users get the function would then depend on who imported what first.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _LazyPackage


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
