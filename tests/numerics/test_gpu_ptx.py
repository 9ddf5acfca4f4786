"""What the compiler makes of the quantising kernels, for a Hopper GPU, run on a CPU instruction by instruction: the
inline PTX, which Triton's interpreter does not run, gives the reference's bits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ptx_machine import Block

from repro.numerics import (
    CopyRequest,
    QuantSpec,
    SquaredRelu,
    SquaredReluGradient,
    make_operand_reference,
    materialise,
    seed_tensor,
    sign_vector,
)
from repro.numerics.formats import NVFP4

triton = pytest.importorskip("triton")

import pairs_cases  # noqa: E402
import source_cases  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from repro.numerics.gpu import binding, loads, passes  # noqa: E402

SHAPE = (32, 512)
_TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}


def compiled_for_hopper(launch, arguments):
    """The PTX of a planned launch. arguments: tensors (contents unused) and numbers."""
    constants = {(launch.kernel.arg_names.index(name),): value for name, value in launch.constants.items()}
    signature = dict.fromkeys(launch.kernel.arg_names, "constexpr")
    aligned = {}
    for i, (name, value) in enumerate(zip(launch.kernel.arg_names, arguments, strict=False)):
        if isinstance(value, int) and value == 1:  # Triton compiles it in
            constants[(i,)] = 1
            continue
        signature[name] = _TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"
        if not name.startswith(("low", "high")):
            aligned[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, aligned)
    options = {"num_warps": launch.num_warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


class Memory:
    """Bytes with addresses."""

    def __init__(self):
        self.bytes, self.end = np.zeros(1 << 21, np.uint8), 4096

    def put(self, tensor):
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        self.bytes[self.end : self.end + len(raw)] = raw
        self.end += -(-len(raw) // 512) * 512
        return self.end - -(-len(raw) // 512) * 512


def plain():
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)).bfloat16()
    x[:, 100:120] *= 2.0**-9
    x[3, :16], x[16:, 7] = -0.0, 0.0
    x[5, 40:56] *= 1e-6
    return x


def squared_relu():
    return SquaredRelu(source_cases.tensors(SHAPE)[0])


def squared_relu_gradient():
    return SquaredReluGradient(*reversed(source_cases.tensors(SHAPE)))


def weights():
    """FP32, which the kernel of single numbers takes."""
    x = plain().float()
    return x + x * torch.randn(SHAPE, generator=torch.Generator().manual_seed(2)) * 2.0**-10


def rows_and_columns(rounding):
    return [
        (QuantSpec(NVFP4, (1, 16), rounding=rounding), 1, 0),
        (QuantSpec(NVFP4, (1, 16), rounding=rounding), 0, 16),
    ]


def square(rounding):
    return [(QuantSpec(NVFP4, (16, 16), rounding=rounding), 1, 0)]


def rows(rounding):
    return rows_and_columns(rounding)[:1]


def columns(rounding):
    return rows_and_columns(rounding)[1:]


@pytest.mark.parametrize(
    ("make", "copies", "rounding", "in_pairs"),
    [
        (plain, rows_and_columns, "rne", True),
        (plain, rows_and_columns, "sr", True),
        (squared_relu, rows_and_columns, "rne", True),
        (squared_relu_gradient, rows_and_columns, "rne", True),
        (squared_relu_gradient, rows_and_columns, "sr", True),
        (weights, square, "rne", False),
        (weights, rows, "sr", False),
        (weights, columns, "sr", False),
    ],
)
def test_compiled_kernel_gives_the_reference_bits(make, copies, rounding, in_pairs, monkeypatch):
    monkeypatch.setattr(passes, "_has_native_e2m1", lambda device: True)
    source = make()
    x = materialise(source)
    seeds = (2**63 + 12345, seed_tensor([2**31 + 5])[0]) if rounding == "sr" else (None, None)
    asked = tuple(
        CopyRequest(spec, along, hadamard, sign_vector(16, kind="fixed") if hadamard else None, seed)
        for (spec, along, hadamard), seed in zip(copies(rounding), seeds, strict=False)
    )
    expected = [
        make_operand_reference(x, r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=r.seed)
        for r in asked
    ]
    plan = binding.plan_pass(source, asked)
    assert plan.in_pairs == in_pairs
    assert in_pairs or plan._quantise.constants["NATIVE"]
    memory = Memory()
    loaded = passes.tensors_of(source)
    arguments, parameters, places = [*loaded, *plan._layout], [*map(memory.put, loaded), *plan._layout], []
    for r, operand in zip(asked, expected, strict=True):
        partials = torch.zeros(plan._quantise.constants["PARTIALS"])
        partials[-1] = operand.amax
        signs = torch.ones(1) if r.signs is None else r.signs
        tensors = [torch.full(SHAPE, -1.0).bfloat16(), signs, partials, torch.zeros(2)]
        seed = passes.seed_words(r.seed)
        arguments += [*tensors, *seed]
        places.append([memory.put(tensor) for tensor in tensors])
        parameters += [*places[-1], *(memory.put(s) if isinstance(s, torch.Tensor) else s for s in seed)]
    if len(asked) == 1:  # the second copy's arguments are there, and not read
        arguments, parameters = arguments + arguments[-6:], parameters + parameters[-6:]
    ptx = compiled_for_hopper(plan._quantise, arguments)
    passed = [
        value
        for value, given in zip(parameters, arguments, strict=True)
        if not (isinstance(given, int) and given == 1)
    ]
    for block in range(plan._quantise.num_programs):
        threads = 32 * plan._quantise.num_warps
        Block(ptx, threads, memory.bytes, [*passed, 0, 0], block, plan._quantise.num_programs).run()
    for operand, (out, _, _, results) in zip(expected, places, strict=True):
        ours = (
            torch.from_numpy(memory.bytes[out : out + 2 * x.numel()].copy())
            .view(torch.bfloat16)
            .reshape(SHAPE)
        )
        assert torch.equal(ours.float().view(torch.int32), operand.values.view(torch.int32))
        amax, scale = torch.from_numpy(memory.bytes[results : results + 8].copy()).view(torch.float32)
        assert (amax, scale) == (operand.amax, operand.scale)


def run_compiled(kernel, num_programs, tensors, constants):
    """A kernel's launch as `pairs_cases` asks for it; the last tensor is the output."""
    launch = SimpleNamespace(kernel=kernel, constants=constants, num_warps=4)
    ptx = compiled_for_hopper(launch, tensors)
    memory = Memory()
    places = [memory.put(tensor) for tensor in tensors]
    for block in range(num_programs):
        Block(ptx, 128, memory.bytes, [*places, 0, 0], block, num_programs).run()
    raw = memory.bytes[places[-1] : places[-1] + 4 * tensors[-1].numel()].copy()
    tensors[-1].copy_(torch.from_numpy(raw).view(torch.int32))


@pytest.mark.parametrize("stochastic", [False, True])
def test_compiled_rounding_at_every_edge(stochastic):
    pairs_cases.check_rounding("cpu", stochastic=stochastic, launch=run_compiled)


@pytest.mark.parametrize("kind", [loads.SQUARED_RELU, loads.SQUARED_RELU_GRADIENT])
def test_compiled_squared_relu_of_every_number(kind):
    source_cases.check_every_number("cpu", kind, launch=run_compiled, num_others=2)
