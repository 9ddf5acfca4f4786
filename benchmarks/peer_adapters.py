"""Other packages' ways to do one job: quantise a BF16 matrix to a 4-bit block format and back.

Each adapter imports its package inside, so that a missing or broken one is reported and the others still run. The
amax of the whole tensor is part of the job wherever the format has a tensor scale. Adapters call public entry
points with the options nearest to NVFP4 as Transformer Engine does it (plain scaling to 6, no adaptive blocks).

Codes are E2M1 codes, one a byte, [M, N]; scales are the bytes that the package stores, [M, blocks].

Does not: judge their arithmetic (`peer_agreement.py`), or time (`quantize_peers.py`).
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from repro.numerics.packing import unpack_codes


@dataclass(frozen=True)
class Prepared:
    """A package's functions, imported and configured."""

    #: x -> whatever the package calls a quantised tensor.
    quantise: Callable[[Tensor], Any]
    #: That -> BF16 values.
    dequantise: Callable[[Any], Tensor]
    #: That -> (codes, scale bytes); None where the package gives values only.
    parts: Callable[[Any], tuple[Tensor, Tensor]] | None = None

    def round_trip(self, x: Tensor) -> Tensor:
        return self.dequantise(self.quantise(x))


@dataclass(frozen=True)
class Peer:
    """One package doing one job."""

    #: Distribution name, as pip knows it.
    package: str
    #: Format, tile and rounding in this project's names, e.g. "nvfp4/1x16/rne".
    job: str
    #: Imports the package and returns its functions. May raise anything.
    prepare: Callable[[], Prepared]
    variant: str = ""
    needs_gpu: bool = False
    #: What is known of its arithmetic from its source.
    known: str = ""

    @property
    def name(self) -> str:
        return f"{self.package}{f'-{self.variant}' if self.variant else ''}"


def torchao_nvfp4(*, compiled: bool) -> Prepared:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    def quantise(x: Tensor) -> NVFP4Tensor:
        return NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor_amax_to_scale(x.abs().amax()))

    def dequantise(packed: NVFP4Tensor) -> Tensor:
        return packed.dequantize(torch.bfloat16)

    def parts(packed: NVFP4Tensor) -> tuple[Tensor, Tensor]:
        codes = unpack_codes(packed.qdata.view(torch.uint8))
        return codes, packed.scale.view(torch.uint8).reshape(codes.shape[0], -1)

    if not compiled:
        return Prepared(quantise, dequantise, parts)
    return _Compiled(quantise, dequantise, parts)


class _Compiled(Prepared):
    """The round trip as one compiled function, the way torchao means its quantisers to be run."""

    def __init__(
        self, quantise: Callable[[Tensor], Any], dequantise: Callable[[Any], Tensor], parts: Any
    ) -> None:
        super().__init__(torch.compile(quantise, dynamic=False), dequantise, parts)
        whole = torch.compile(lambda x: dequantise(quantise(x)), dynamic=False)
        object.__setattr__(self, "round_trip", whole)


def torchao_mxfp4() -> Prepared:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    def quantise(x: Tensor) -> MXTensor:
        return MXTensor.to_mx(x, torch.float4_e2m1fn_x2, 32, scaling_mode=ScaleCalculationMode.RCEIL)

    return Prepared(quantise, lambda packed: packed.dequantize(torch.bfloat16))


def fouroversix(backend: str, **options: object) -> Prepared:
    from fouroversix import QuantizationConfig, dequantize, quantize_to_fp4
    from fouroversix.quantize.dequantize_utils import from_blocked

    config = QuantizationConfig(backend=backend, scale_rule="static_6", **options)

    def parts(packed: Any) -> tuple[Tensor, Tensor]:
        codes = unpack_codes(packed.values.view(torch.uint8))
        rows, columns = codes.shape
        scales = packed.scale_factors.view(torch.uint8)
        return codes, from_blocked(scales, (rows, columns // config.dtype.block_size))

    # The PyTorch backend dequantises: the other ones' own way needs a Blackwell GPU.
    return Prepared(
        lambda x: quantize_to_fp4(x, config),
        lambda packed: dequantize(packed, torch.bfloat16, backend="pytorch"),
        parts,
    )


def modelopt_qtensor() -> Prepared:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    def dequantise(made: tuple[Any, Tensor, Tensor]) -> Tensor:
        packed, scale, tensor_scale = made
        return packed.dequantize(torch.bfloat16, scale=scale, double_scale=tensor_scale, block_sizes={-1: 16})

    def parts(made: tuple[Any, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        packed, scale, _ = made
        codes = unpack_codes(packed._quantized_data)
        return codes, scale.view(torch.uint8).reshape(codes.shape[0], -1)

    return Prepared(lambda x: NVFP4QTensor.quantize(x, 16), dequantise, parts)


def modelopt_fake_quant() -> Prepared:
    from modelopt.torch.kernels.quantization.gemm import fp4_fake_quant_block

    return Prepared(lambda x: fp4_fake_quant_block(x, x.abs().amax()), lambda y: y)


def compressed_tensors(scheme: str) -> Prepared:
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = preset_name_to_scheme(scheme, ["Linear"]).weights

    def quantise(x: Tensor) -> Tensor:
        blocks = x.unflatten(-1, (-1, args.group_size))
        low, high = blocks.amin(-1), blocks.amax(-1)
        tensor_scale = generate_gparam(low.min(), high.max()) if scheme.startswith("NVFP4") else None
        scale, zero_point = calculate_qparams(low, high, args, global_scale=tensor_scale)
        return fake_quantize(x, scale, zero_point, args, global_scale=tensor_scale)

    return Prepared(quantise, lambda y: y)


def transformer_engine_reference(tile: tuple[int, int]) -> Prepared:
    reference = _transformer_engine_reference()
    quantizer = reference.NVFP4QuantizerRef(
        dtype=reference.reference_utils.Fp4Formats.E2M1, columnwise=False, quant_tile_shape=tile
    )

    def dequantise(made: Any) -> Tensor:
        values = reference.cast_from_fp4x2(made.data, torch.float32)
        scaled = values * made.scale.float().repeat_interleave(16, dim=1)
        return (scaled * (made.global_amax_row / 2688)).to(torch.bfloat16)

    def parts(made: Any) -> tuple[Tensor, Tensor]:
        return unpack_codes(made.data), made.scale.view(torch.uint8)

    return Prepared(quantizer.quantize, dequantise, parts)


@functools.cache
def _transformer_engine_reference() -> ModuleType:
    """One file of the wheel `transformer_engine` and what it imports, without the compiled library that the package
    itself loads: its packages are empty stand-ins, its base classes only hold attributes."""
    root = "transformer_engine.pytorch"
    folder = importlib.metadata.distribution("transformer_engine").locate_file("")

    class Quantizer:
        def __init__(self, *, rowwise: bool, columnwise: bool) -> None:
            self.rowwise_usage, self.columnwise_usage = rowwise, columnwise

    for package in ("transformer_engine", root, f"{root}.custom_recipes", f"{root}.tensor"):
        _stand_in(package)
    _stand_in(
        f"{root}.quantized_tensor",
        Quantizer=Quantizer,
        QuantizedTensorStorage=type("QuantizedTensorStorage", (), {}),
    )
    _stand_in(f"{root}.tensor.utils", is_custom=lambda *_: True)
    for file in ("reference_utils", "gemm", "reference_nvfp4"):
        name = f"{root}.custom_recipes.{file}"
        path = Path(str(folder)) / f"{name.replace('.', '/')}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        module = _register(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(module)
    return module


def _stand_in(name: str, **content: object) -> None:
    module = _register(ModuleType(name))
    vars(module).update(content)


def _register(module: ModuleType) -> ModuleType:
    """Makes a module importable, also as an attribute of its parent."""
    sys.modules[module.__name__] = module
    parent, _, child = module.__name__.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


_TORCHAO = (
    "divides by the tensor scale, where TE multiplies by its reciprocal folded with 1/6; least scale 2^-6"
)
_MODELOPT = (
    "divides by scales, where TE multiplies by reciprocals; zero blocks get scale 448, least scale 2^-9"
)
_ZERO_BLOCK = "a block of zeros may hold the code of 0/0, times a scale of zero"
_IN_BF16 = "computes in the input's dtype: quotients are rounded to BF16 before the code is chosen"
PEERS = (
    Peer("transformer_engine", "nvfp4/1x16/rne", lambda: transformer_engine_reference((1, 16)), "reference"),
    Peer("torchao", "nvfp4/1x16/rne", lambda: torchao_nvfp4(compiled=False), known=_TORCHAO),
    Peer("torchao", "nvfp4/1x16/rne", lambda: torchao_nvfp4(compiled=True), "compiled", known=_TORCHAO),
    Peer(
        "fouroversix",
        "nvfp4/1x16/rne",
        lambda: fouroversix("pytorch", dtype="nvfp4"),
        "pytorch",
        known=_ZERO_BLOCK,
    ),
    Peer("fouroversix", "nvfp4/1x16/rne", lambda: fouroversix("triton", dtype="nvfp4"), "triton", True),
    Peer("nvidia-modelopt", "nvfp4/1x16/rne", modelopt_qtensor, "qtensor", known=_MODELOPT),
    Peer("nvidia-modelopt", "nvfp4/1x16/rne", modelopt_fake_quant, "fake_quant_block", True, _MODELOPT),
    Peer("compressed-tensors", "nvfp4/1x16/rne", lambda: compressed_tensors("NVFP4A16"), known=_IN_BF16),
    Peer(
        "transformer_engine", "nvfp4/16x16/rne", lambda: transformer_engine_reference((16, 16)), "reference"
    ),
    Peer(
        "fouroversix",
        "nvfp4/16x16/rne",
        lambda: fouroversix("pytorch", dtype="nvfp4", block_scale_2d=True),
        "pytorch",
        known=_ZERO_BLOCK,
    ),
    Peer(
        "fouroversix",
        "nvfp4/16x16/rne",
        lambda: fouroversix("triton", dtype="nvfp4", block_scale_2d=True),
        "triton",
        True,
    ),
    Peer(
        "fouroversix",
        "nvfp4/1x16/sr",
        lambda: fouroversix("pytorch", dtype="nvfp4", round_style="stochastic"),
        "pytorch",
    ),
    Peer(
        "fouroversix",
        "nvfp4/1x16/sr",
        lambda: fouroversix("triton", dtype="nvfp4", round_style="stochastic"),
        "triton",
        True,
    ),
    Peer("torchao", "mxfp4/1x32/rne", torchao_mxfp4),
    Peer(
        "fouroversix",
        "mxfp4/1x32/rne",
        lambda: fouroversix("pytorch", dtype="mxfp4"),
        "pytorch",
        known=_ZERO_BLOCK,
    ),
    Peer("compressed-tensors", "mxfp4/1x32/rne", lambda: compressed_tensors("MXFP4A16"), known=_IN_BF16),
)
