"""What a pass of the kernels is for one kind of call: constants, kernel, and a launch that costs little Python.

A training step launches hundreds of these passes, and on small layers Python is slower than the GPU. So everything
that follows from shapes and specifications is worked out once (`Pass`, kept by `plan_pass`), and a kernel that
Triton has compiled for such a call is launched again directly, without Triton's own search for it.

Does not: choose tiles (`tiles.py`), know the reference, or check arguments (`binding.py`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from repro.numerics.formats import E4M3, UE8M0, BlockFormat, QuantSpec
from repro.numerics.gpu import arithmetic, kernels, loads, pairs_kernel, tiles
from repro.numerics.gpu.arithmetic import Copy
from repro.numerics.hadamard import scale_factors
from repro.numerics.operand import CopyRequest, Operand
from repro.numerics.source import Source, SquaredRelu, SquaredReluGradient


def carrier_dtype(form: BlockFormat) -> torch.dtype:
    """What an operand's values are kept in: BF16 if that is exact, else FP32."""
    return torch.bfloat16 if form.is_exact_in_bf16 else torch.float32


def tensors_of(source: Source) -> tuple[Tensor, Tensor]:
    """x and y of `loads.py`; where there is no y, x again: it is not read."""
    if isinstance(source, SquaredReluGradient):
        return source.grad, source.value
    x = source.value if isinstance(source, SquaredRelu) else source
    return x, x


def _kind(source: Source) -> int:
    """SOURCE of `loads.py`."""
    if isinstance(source, SquaredRelu):
        return loads.SQUARED_RELU.value
    return (loads.SQUARED_RELU_GRADIENT if isinstance(source, SquaredReluGradient) else loads.PLAIN).value


@functools.cache
def copy_constants(spec: QuantSpec, along: int, hadamard: int, has_signs: bool) -> Copy | None:
    """The compile-time constants of a copy; None for a format whose scales or tiles the kernels do not know."""
    form = spec.format
    rule = {
        ("two_level", E4M3): getattr(arithmetic, f"TWO_LEVEL_{spec.scale_order.upper()}"),
        ("power_of_two_up", UE8M0): arithmetic.POWER_OF_TWO_UP,
        ("amax_over_max", form.scale): arithmetic.AMAX_OVER_MAX,
    }.get((form.scale_rule, form.scale))
    if rule is None or form.element.mantissa_bits > 3 or any(size & (size - 1) for size in spec.tile):
        return None
    tile_rows, tile_columns = spec.tile if along == 1 else spec.tile[::-1]
    is_two_level = form.scale_rule == "two_level"
    before, after = scale_factors(hadamard) if hadamard else (1.0, 1.0)
    return Copy(
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        along=along,
        hadamard=hadamard,
        has_signs=hadamard > 0 and has_signs,
        stochastic=spec.rounding == "sr",
        rule=rule,
        element_bits=form.element.bits,
        element_max=form.element.max,
        element_min_normal=form.element.min_normal,
        element_mantissa_bits=form.element.mantissa_bits,
        keeps_negative_zero=form.element.keeps_negative_zero,
        element_reciprocal=float(1.0 / torch.tensor(form.element.max, dtype=torch.float32, device="cpu")),
        scale_max=form.scale.max if is_two_level else 0.0,
        scale_min_normal=form.scale.min_normal if is_two_level else 0.0,
        scale_mantissa_bits=form.scale.mantissa_bits if is_two_level else 0,
        tensor_max=form.tensor_max if form.tensor_scale else 0.0,
        scale_code_max=form.scale.code_of_max if form.scale == UE8M0 else 0,
        factor_before=before,
        factor_after=after,
    )


@functools.cache
def _has_native_e2m1(device: torch.device) -> bool:
    """Whether the device has BF16 products and minima by magnitude in pairs (Hopper and later)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def takes_pairs(source: Source, copies: tuple[Copy, ...]) -> bool:
    """Whether `quantise_pairs_kernel` can make these copies."""
    x, y = tensors_of(source)
    return (
        (_has_native_e2m1(x.device) or bool(arithmetic.INTERPRETED))
        and x.dtype == torch.bfloat16
        and x.stride(1) == 1
        and x.shape[1] % 16 == x.stride(0) % 8 == x.data_ptr() % 16 == y.data_ptr() % 16 == 0
        and max(x.shape[1], x.stride(0)) * tiles.MAX_PAIRS_ROWS < 2**31
        and all(tiles.fits_pairs(copy) for copy in copies)
    )


@dataclass
class Launch:
    """One kernel with its compile-time constants, in the order of its parameters, and its grid."""

    kernel: Any
    num_programs: int
    num_warps: int
    constants: dict[str, Any]
    compiled: Any = field(default=None)
    #: Registers a thread; fewer let more programs share a multiprocessor.
    max_registers: int | None = None

    def __call__(self, device: torch.device, arguments: tuple) -> None:
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                self._launch(arguments)
        else:
            self._launch(arguments)

    def _launch(self, arguments: tuple) -> None:
        if self.compiled is None:
            self.compiled = self.kernel[(self.num_programs,)](
                *arguments, **self.constants, num_warps=self.num_warps, enable_fp_fusion=False,
                maxnreg=self.max_registers,
            )  # fmt: skip
        else:
            self.compiled[(self.num_programs, 1, 1)](*arguments, *self.constants.values())


class Pass:
    """The kernels of one call, for one shape, layout and kind of tensor and one or two kinds of copies."""

    def __init__(self, source: Source, copies: tuple[Copy, ...], carriers: tuple[torch.dtype, ...]) -> None:
        x, _ = tensors_of(source)
        self.copies = copies
        self.carriers = carriers
        self.has_tensor_scale = copies[0].tensor_max > 0.0
        self.num_partials, self._pitch = 0, 1
        self._layout = (*x.shape, *x.stride())
        if self.has_tensor_scale:
            self._plan_amax(source)
        self.in_pairs = takes_pairs(source, copies)
        tile = tiles.choose_pairs_tile(copies) if self.in_pairs else tiles.choose_tile(copies, x.dtype)
        num_columns = x.shape[1]
        constants = {
            "COPY_0": copies[0],
            "COPY_1": copies[-1],
            "PAIR": len(copies) == 2,
            "SOURCE": _kind(source),
            "NATIVE": _has_native_e2m1(x.device) and all(copy.is_e2m1 for copy in copies),
            "PARTIALS": self._pitch,
            "EVEN": tile.divides(*x.shape),
            "ALIGNED": num_columns % 16 == 0 and tile.columns % 16 == 0,
            **tile.constants,
        }
        kernel = kernels.quantise_kernel
        if self.in_pairs:
            kernel, self._layout = pairs_kernel.quantise_pairs_kernel, x.shape[:1]
            del constants["ALIGNED"]
            constants |= {"NUM_COLUMNS": num_columns, "STRIDE": x.stride(0)}
        self._quantise = Launch(
            kernel, tile.count(*x.shape), tile.num_warps, constants, max_registers=tile.max_registers
        )

    def _plan_amax(self, source: Source) -> None:
        x, _ = tensors_of(source)
        self._rotated = next((i for i, copy in enumerate(self.copies) if copy.hadamard), None)
        copy = self.copies[self._rotated or 0]
        tile = tiles.choose_amax_tile(copy, x.dtype)
        self.num_partials = tiles.num_amax_programs(tile, x)
        self._pitch = 1 << (self.num_partials - 1).bit_length()
        constants = {
            "COPY": copy,
            "PLAIN": self._rotated is None or len(self.copies) > 1,
            "SOURCE": _kind(source),
            "NATIVE": _has_native_e2m1(x.device),
            "PARTIALS": self._pitch,
            "EVEN": tile.divides(*x.shape),
            **tile.constants,
        }
        self._amax = Launch(
            kernels.amax_kernel,
            self.num_partials,
            tile.num_warps,
            constants,
            max_registers=tile.max_registers,
        )

    def partial_amaxes(self, source: Source, signs: tuple[Tensor, ...]) -> list[Tensor]:
        """The amax pass: for each copy the partial amaxes of the source, or of it transformed, all from one read."""
        x, y = tensors_of(source)
        partials = _empty(x, 2, self._pitch)
        arguments = (x, y, signs[self._rotated or 0], partials, *x.shape, *x.stride(), self.num_partials)
        self._amax(x.device, arguments)
        return [partials[1] if copy.hadamard else partials[0] for copy in self.copies]

    def quantise(
        self,
        source: Source,
        signs: tuple[Tensor, ...],
        seeds: tuple[tuple[int | Tensor, int], ...],
        amaxes: list[Tensor] | None,
    ) -> tuple[Operand, ...]:
        """The quantising pass. `amaxes`: of `partial_amaxes`, None for formats without a tensor scale."""
        x, y = tensors_of(source)
        partials = amaxes or [_empty(x, self._quantise.num_programs) for _ in self.copies]
        outs = [torch.empty(x.shape, dtype=dtype, device=x.device) for dtype in self.carriers]
        results = [_empty(x, 2) for _ in self.copies] if amaxes else partials
        arguments = (
            x, y, *self._layout,
            outs[0], signs[0], partials[0], results[0], *seeds[0],
            outs[-1], signs[-1], partials[-1], results[-1], *seeds[-1],
        )  # fmt: skip
        self._quantise(x.device, arguments)
        if amaxes:
            return tuple(Operand(o, r[1], r[0]) for o, r in zip(outs, results, strict=True))
        return tuple(Operand(o, None, p.amax()) for o, p in zip(outs, partials, strict=True))

    def run(self, source: Source, requests: tuple[CopyRequest, ...]) -> tuple[Operand, ...]:
        """Both passes."""
        x, _ = tensors_of(source)
        signs = tuple(signs_of(request, x) for request in requests)
        amaxes = self.partial_amaxes(source, signs) if self.has_tensor_scale else None
        return self.quantise(source, signs, tuple(seed_words(request.seed) for request in requests), amaxes)


def _empty(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def signs_of(request: CopyRequest, x: Tensor) -> Tensor:
    """Contiguous FP32 signs on x's device; where there are none, any tensor: it is not read."""
    if request.signs is None or not request.hadamard:
        return x
    signs = request.signs.to(device=x.device, dtype=torch.float32).contiguous()
    return signs if signs.data_ptr() % 16 == 0 else signs.clone()  # compiled kernels count on it


def seed_words(seed: int | Tensor | None) -> tuple[int | Tensor, int]:
    """Low and high 32 bits as signed integers, so that the kernel's argument has one type for all seeds; or the
    tensor that holds the seed."""
    if isinstance(seed, Tensor):
        return seed, 0
    words = ((seed or 0) & 0xFFFFFFFF, (seed or 0) >> 32 & 0xFFFFFFFF)
    low, high = (word - (1 << 32) if word >> 31 else word for word in words)
    return low, high
