"""Passes over one matrix: quantise and dequantise (QDQ), both operands of a tensor at once, the amax pass.

    qdq/FORMAT/TILE/ROUNDING    x -> code value x block scale; "/amax-given" without the pass that finds the amax
    pair/FORMAT/ROUNDING        x -> its row copy and its transformed column copy, as the layer asks for them;
                                "/squared_relu" of relu(x)^2, "/squared_relu_gradient" of its gradient, which reads a
                                second tensor (on a GPU, whose passes work them out)
    amax/nvfp4/...              the amax pass alone
    small/nvfp4/...             one call on the FP32 [256, 64] operands of the smallest models: mostly overhead

Floor: the bytes that must move, each tensor read once by each pass and each output written once, over the copy rate
of this machine. `ratio` is the share of that rate. x is [size, size] in BF16 (a weight: FP32); what is timed is the
public call of repro.numerics, fused kernels on a CPU and a GPU alike.

Does not: say what a kind asks for (repro.bench.pass_kinds), or check results (tests/numerics does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from repro.bench.machine import Machine
from repro.bench.pass_kinds import Kind, kinds, request, source_kinds
from repro.bench.rows import Case, Measurement, MissingError, Target
from repro.numerics.cpu import fake_quantize_cpu
from repro.numerics.formats import NVFP4
from repro.numerics.operand import CopyRequest, make_operand, make_operand_pair
from repro.numerics.source import Source, SquaredRelu, SquaredReluGradient

if TYPE_CHECKING:
    from repro.numerics.gpu.passes import Pass  # needs triton

#: Shares of the copy rate that the fused GPU kernels are to reach (set for an H200), and the CPU kernel.
GPU_TARGETS = {
    "qdq/nvfp4/1x16/rne": 0.90,
    "qdq/nvfp4/16x16/rne": 0.90,
    "pair/nvfp4/rne": 0.85,
    "pair/nvfp4/sr": 0.80,
    "amax/nvfp4/both": 0.85,
}
#: On a CPU at most 4 copies' time, amax included: 6 bytes a value against 4 x 4.
CPU_TARGETS = {"qdq/nvfp4/1x16/rne": 6 / 16}


def pass_cases(machine: Machine, *, size: int | None = None) -> list[Case]:
    """One case a kind, on a GPU with its parts where there is an amax pass; `size` defaults to the machine's."""
    bench = Passes(machine, size or machine.matrix_size)
    cases = [Case("qdq/bf16/cast", "FP32 tensor rounded to BF16", bench.cast)]
    sources = source_kinds() if machine.is_gpu else []
    for kind in [*kinds(), *sources]:
        has_amax = kind.requests[0].spec.format.tensor_scale
        target = _target(machine, kind.name)
        words = f"{kind.what}, with its amax pass" if has_amax else kind.what
        cases.append(Case(kind.name, words, lambda kind=kind: bench.whole(kind), target))
        if has_amax and machine.is_gpu:
            name = f"{kind.name}/amax-given"
            cases.append(Case(name, kind.what, lambda kind=kind: bench.quantising(kind), target))
    pair = next(kind for kind in kinds() if kind.name == "pair/nvfp4/rne")
    single = next(kind for kind in kinds() if kind.name == "qdq/nvfp4/1x16/rne")
    for name, kind in (("amax/nvfp4/one", single), ("amax/nvfp4/both", pair)):
        what = "amax of x and of x transformed" if kind is pair else "amax of x"
        cases.append(Case(name, what, lambda kind=kind: bench.amax(kind), _target(machine, name)))
    for kind in sources:
        name = f"amax/nvfp4/{kind.name.rsplit('/', 1)[1]}"
        cases.append(Case(name, f"amax pass of {kind.what}", lambda kind=kind: bench.amax(kind)))
    return cases + [
        Case(f"small/nvfp4/{name}", f"one call, FP32 256x64, {name}", lambda asked=asked: bench.small(asked))
        for name, asked in (
            ("rows", request(NVFP4, (1, 16), 1, sr=False, hadamard=0)),
            ("square", request(NVFP4, (16, 16), 1, sr=False, hadamard=0)),
            ("columns_hadamard", request(NVFP4, (1, 16), 0, sr=False, hadamard=16)),
            ("columns_sr", request(NVFP4, (1, 16), 0, sr=True, hadamard=0)),
        )
    ]


def _target(machine: Machine, name: str) -> Target | None:
    value = (GPU_TARGETS if machine.is_gpu else CPU_TARGETS).get(name)
    return None if value is None else Target(">=", value)


class Passes:
    """The tensors, and the calls."""

    def __init__(self, machine: Machine, size: int) -> None:
        self.machine, self.size = machine, size
        self._tensors: dict[torch.dtype, list[Tensor]] = {}

    def tensors(self, dtype: torch.dtype) -> list[Tensor]:
        """Three of them, so that a cache does not hold what the last call left."""
        if dtype not in self._tensors:
            made = [self.machine.randn(self.size, self.size, seed=i) for i in range(3)]
            self._tensors[dtype] = [x.to(dtype) for x in made]
        return self._tensors[dtype]

    def cast(self) -> Measurement:
        x = self.tensors(torch.float32)
        return self.share(lambda i: x[i % 3].to(torch.bfloat16), 4 + 2)

    def whole(self, kind: Kind) -> Measurement:
        """The public call: amax pass, if the format has one, and quantising pass."""
        x, asked = self.inputs(kind)
        call, written = self.call(x, asked)
        passes = 2 if asked[0].spec.format.tensor_scale else 1
        return self.share(call, passes * kind.bytes_read + written)

    def call(self, x: list[Source], asked: tuple[CopyRequest, ...]) -> tuple[Callable[[int], object], int]:
        """The call, and the bytes an element that it writes."""
        first = asked[0]
        if len(asked) == 2:
            made = make_operand_pair(self.tensors(torch.bfloat16)[0][:128, :128].contiguous(), *asked)
            return (
                lambda i: make_operand_pair(x[i % 3], *asked),
                sum(operand.values.element_size() for operand in made),
            )
        if not self.machine.is_gpu:
            return (
                lambda i: fake_quantize_cpu(x[i % 3], first.spec, seed=first.seed),
                x[0].element_size(),
            )
        options = {"along": first.along, "seed": first.seed}
        made = make_operand(x[0][:128, :128].contiguous(), first.spec, **options)
        return lambda i: make_operand(x[i % 3], first.spec, **options), made.values.element_size()

    def quantising(self, kind: Kind) -> Measurement:
        return self.share(*self.quantising_call(kind))

    def quantising_call(self, kind: Kind) -> tuple[Callable[[int], object], int]:
        """The quantising pass of a GPU, the partial amaxes being there, and the bytes a value that it must move."""
        from repro.numerics.gpu.passes import carrier_dtype, seed_words

        x, asked = self.inputs(kind)
        plan, signs = self.plan(x, asked)
        seeds = tuple(seed_words(one.seed) for one in asked)
        amaxes = [plan.partial_amaxes(each, signs) for each in x]
        written = sum(carrier_dtype(one.spec.format).itemsize for one in asked)
        return lambda i: plan.quantise(x[i % 3], signs, seeds, amaxes[i % 3]), kind.bytes_read + written

    def amax(self, kind: Kind) -> Measurement:
        if not self.machine.is_gpu:
            raise MissingError("needs a GPU: the CPU kernel takes the amax while it quantises")
        x, asked = self.inputs(kind)
        plan, signs = self.plan(x, asked)
        return self.share(lambda i: plan.partial_amaxes(x[i % 3], signs), kind.bytes_read)

    def small(self, asked: CopyRequest) -> Measurement:
        """On a GPU without a graph: the launch is what it costs."""
        x = self.machine.randn(256, 64).float()
        (one,) = self.moved((asked,))
        options = {"along": one.along, "hadamard": one.hadamard, "signs": one.signs, "seed": one.seed}
        return Measurement(self.machine.eager_seconds(lambda _: make_operand(x, one.spec, **options)))

    def plan(self, x: list[Source], asked: tuple[CopyRequest, ...]) -> tuple[Pass, tuple[Tensor, ...]]:
        """What the GPU kernels make of such a call, and its signs."""
        from repro.numerics.gpu.binding import plan_pass
        from repro.numerics.gpu.passes import signs_of, tensors_of

        return plan_pass(x[0], asked), tuple(signs_of(one, tensors_of(x[0])[0]) for one in asked)

    def inputs(self, kind: Kind) -> tuple[list[Source], tuple[CopyRequest, ...]]:
        x = self.tensors(torch.float32 if kind.is_weight else torch.bfloat16)
        if kind.source is SquaredRelu:
            x = [SquaredRelu(value) for value in x]
        elif kind.source is SquaredReluGradient:
            x = [SquaredReluGradient(grad, -grad) for grad in x]
        return x, self.moved(kind.requests)

    def moved(self, requests: tuple[CopyRequest, ...]) -> tuple[CopyRequest, ...]:
        """With their signs on the device."""
        return tuple(
            one if one.signs is None else replace(one, signs=one.signs.to(self.machine.device))
            for one in requests
        )

    def share(self, call: Callable[[int], object], bytes_per_value: float) -> Measurement:
        """Time of a call against the bytes that it must move."""
        floor = bytes_per_value * self.size * self.size / self.machine.copy_rate
        seconds = self.machine.seconds(call)
        return Measurement(
            measured=seconds,
            floor=floor,
            floor_from=f"{bytes_per_value:g} bytes a value at the copy rate",
            ratio=floor / seconds,
            details={"bytes_per_value": bytes_per_value, "size": self.size},
        )
