"""Other packages' eager CPU paths for the same job: quantise a BF16 matrix to a 4-bit block format and back.

Each adapter imports its package inside, so that a missing or broken one is reported and the others still run. The
amax of the whole tensor is part of the job wherever the format has a tensor scale. Adapters call public entry
points with the options nearest to NVFP4 as Transformer Engine does it (plain scaling to 6, no adaptive blocks).

Does not: judge their arithmetic beyond a comparison with Transformer Engine's, which they need not follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

QuantiseDequantise = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """One package doing one job."""

    #: Distribution name, as pip knows it.
    package: str
    #: Format and tile in this project's names, e.g. "nvfp4 1x16".
    job: str
    #: Imports the package and returns the function to time. May raise anything.
    prepare: Callable[[], QuantiseDequantise]


def torchao_nvfp4() -> QuantiseDequantise:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    def run(x: Tensor) -> Tensor:
        scale = per_tensor_amax_to_scale(x.abs().amax())
        return NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize(torch.bfloat16)

    return run


def torchao_mxfp4() -> QuantiseDequantise:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    def run(x: Tensor) -> Tensor:
        packed = MXTensor.to_mx(x, torch.float4_e2m1fn_x2, 32, scaling_mode=ScaleCalculationMode.RCEIL)
        return packed.dequantize(torch.bfloat16)

    return run


def _fouroversix(**options: object) -> QuantiseDequantise:
    from fouroversix import QuantizationConfig, dequantize, quantize_to_fp4

    config = QuantizationConfig(backend="pytorch", scale_rule="static_6", **options)

    def run(x: Tensor) -> Tensor:
        return dequantize(quantize_to_fp4(x, config), torch.bfloat16)

    return run


def fouroversix_nvfp4() -> QuantiseDequantise:
    return _fouroversix(dtype="nvfp4")


def fouroversix_nvfp4_2d() -> QuantiseDequantise:
    return _fouroversix(dtype="nvfp4", block_scale_2d=True)


def fouroversix_mxfp4() -> QuantiseDequantise:
    return _fouroversix(dtype="mxfp4")


def modelopt_nvfp4() -> QuantiseDequantise:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    def run(x: Tensor) -> Tensor:
        packed, scale, tensor_scale = NVFP4QTensor.quantize(x, 16)
        return packed.dequantize(torch.bfloat16, scale=scale, double_scale=tensor_scale, block_sizes={-1: 16})

    return run


def _compressed_tensors(scheme: str) -> QuantiseDequantise:
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = preset_name_to_scheme(scheme, ["Linear"]).weights

    def run(x: Tensor) -> Tensor:
        blocks = x.unflatten(-1, (-1, args.group_size))
        low, high = blocks.amin(-1), blocks.amax(-1)
        tensor_scale = generate_gparam(low.min(), high.max()) if scheme.startswith("NVFP4") else None
        scale, zero_point = calculate_qparams(low, high, args, global_scale=tensor_scale)
        return fake_quantize(x, scale, zero_point, args, global_scale=tensor_scale)

    return run


def compressed_tensors_nvfp4() -> QuantiseDequantise:
    return _compressed_tensors("NVFP4A16")


def compressed_tensors_mxfp4() -> QuantiseDequantise:
    return _compressed_tensors("MXFP4A16")


PEERS = (
    Peer("torchao", "nvfp4 1x16", torchao_nvfp4),
    Peer("fouroversix", "nvfp4 1x16", fouroversix_nvfp4),
    Peer("nvidia-modelopt", "nvfp4 1x16", modelopt_nvfp4),
    Peer("compressed-tensors", "nvfp4 1x16", compressed_tensors_nvfp4),
    Peer("fouroversix", "nvfp4 16x16", fouroversix_nvfp4_2d),
    Peer("torchao", "mxfp4 1x32", torchao_mxfp4),
    Peer("fouroversix", "mxfp4 1x32", fouroversix_mxfp4),
    Peer("compressed-tensors", "mxfp4 1x32", compressed_tensors_mxfp4),
)
