"""Compiles the GPU's kernels for one compute capability, without a GPU: python compile_cases.py 90

Triton's interpreter runs kernels as Python; what only the compiler refuses (a type, a shape, an operation that a card
lacks) it lets pass. Here every kind of launch goes through Triton and ptxas, up to the machine code, for one kind of
GPU; none is run. Prints the number of kernels compiled and a digest of their PTX, comments and lines left out: where
two commits print the same, their kernels do the same on that GPU, and what was measured of one holds for the other
(for an older commit: PYTHONPATH=ITS_TREE, with this file).
"""

from __future__ import annotations

import hashlib
import re
import sys
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from repro.models import conv_kernel, head_kernel
from repro.numerics import CopyRequest, QuantSpec, SquaredRelu, SquaredReluGradient, sign_vector
from repro.numerics.formats import BLOCK_FORMATS
from repro.numerics.gpu import binding, fp8_emulation, fp8_operand, packing, passes

#: Of PTX: comments, and where a line comes from; sections at the end hold names of files.
_COMMENTS = re.compile(r"//.*|\.loc.*|\.file.*|\.section[\s\S]*")


class Driver:
    """As much of Triton's driver as compiling asks for."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


def compile_all(capability: int) -> tuple[int, str]:
    """How many kernels were compiled, and the digest."""
    compiled = []
    run = JITFunction.run

    def compile_only(self: JITFunction, *arguments: object, warmup: bool, **options: object) -> object:
        compiled.append(run(self, *arguments, warmup=True, **options))
        return compiled[-1]

    triton.runtime.driver.set_active(Driver(capability))
    with (
        mock.patch.object(JITFunction, "run", compile_only),
        mock.patch.object(passes, "_has_native_e2m1", return_value=capability >= 90),
        mock.patch.object(packing, "_casts_to_e4m3", return_value=capability >= 89),
    ):
        for form in BLOCK_FORMATS.values():
            operands(QuantSpec(form, form.tiles_1d), QuantSpec(form, form.tiles_2d))
        neighbours()
    assert all(kernel.asm["cubin"] for kernel in compiled)
    code = "".join(_COMMENTS.sub("", kernel.asm["ptx"]) for kernel in compiled)
    return len(compiled), hashlib.sha256(code.encode()).hexdigest()[:16]


def operands(rows: QuantSpec, square: QuantSpec) -> None:
    """Rows, rows and transformed columns in both roundings, squares; of BF16 and FP32; as numbers and packed."""
    signs = sign_vector(16, kind="fixed")
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.zeros(512, 1024, dtype=dtype)
        for rounding, seed in (("rne", None), ("sr", 1)):
            spec = QuantSpec(rows.format, rows.tile, rounding=rounding)
            first = CopyRequest(spec, along=1, seed=seed)
            second = CopyRequest(spec, along=0, hadamard=16, signs=signs, seed=seed)
            binding._make(x, (first, second))
            packing.pack_gpu(x, (first, second))
        binding._make(torch.zeros(45, 67, dtype=dtype), (first,))
        binding._make(x, (CopyRequest(square, along=1),))


def neighbours() -> None:
    """Squared ReLU while loading, FP8 operands and their emulated product, convolution and loss of the models."""
    spec = QuantSpec(BLOCK_FORMATS["nvfp4"], (1, 16))
    x, y = (torch.zeros(512, 1024, dtype=torch.bfloat16) for _ in range(2))
    for source in (SquaredRelu(x), SquaredReluGradient(x, y)):
        binding._make(source, (CopyRequest(spec, along=1), CopyRequest(spec, along=0)))
    copies, weight = fp8_operand.fp8_copies(x, columns=True), fp8_operand.fp8_copies(x, square=True)
    for right in (copies.rows, weight.rows):
        fp8_emulation.emulated_product(copies.rows, right, dtype=torch.bfloat16)
    sequence = torch.zeros(2, 256, 128, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.zeros(128, 1, 4, requires_grad=True), torch.zeros(128, requires_grad=True)
    conv_kernel.silu_of_conv(sequence, *weights).sum().backward()
    head_kernel.losses_and_gradients(
        torch.zeros(16, 512, dtype=torch.bfloat16), torch.zeros(16, dtype=torch.int64)
    )


if __name__ == "__main__":
    print(*compile_all(int(sys.argv[1])))
