"""Transformer Engine's CustomRecipe over repro's quantisers: what no native recipe expresses.

`factory` is what `--fp4-quantizer-factory repro.cluster.quantizers.factory` names. TE calls it once for each tensor
slot of each linear layer with a QuantizerRole(module_type, tensor_type, name); megatron-core fills `name`. The recipe
and the run's clock are handed over by `use` before the model is built: TE gives a factory no other way in.

    TE                                             here
    Quantizer.quantize -> QuantizedTensorStorage   EmulatedQuantizer.quantize -> EmulatedTensor (both operands)
    custom_gemm -> quantizer.qgemm(qresult_x, qresult_w, gemm_type)   emulation.multiply

`custom_gemm` drops its `out` and `accumulate`, so fused gradient accumulation would lose every weight gradient: the
arguments turn it off (repro.cluster.arguments), and a module that has it on is an error (repro.cluster.precision).

Written against TE 2.20.2; interfaces are experimental there. The classes derive from TE's and are made on first use,
so that this module imports without TE.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from repro.cluster.emulation import USAGES, Clock, OperandMaker, Pair, multiply
from repro.experiments.recipe import Recipe
from repro.numerics.operand import Operand

_in_use: tuple[Recipe, Clock] | None = None


def use(recipe: Recipe, clock: Clock) -> None:
    """Sets what `factory` makes quantisers for; called once, before the first step."""
    global _in_use
    _in_use = (recipe, clock)


def factory(role: Any) -> Any:
    """The quantiser of one slot; a pass-through for slots that enter no GEMM (outputs, gradients of inputs), and for
    those of attention, which TE asks for whether or not it computes attention in FP8 (the recipe's fp8_dpa).

    Raises ValueError for a slot of anything else: a recipe says nothing about it.
    """
    from transformer_engine.pytorch.tensor.identity_tensor import IdentityQuantizer

    if role is None or not role.tensor_type or role.module_type == "dpa":
        return IdentityQuantizer()
    if role.module_type != "linear" or role.tensor_type not in USAGES:
        raise ValueError(f"no recipe for {role}: only linear layers are quantised (Section 4.1)")
    assert _in_use is not None, "repro.cluster.quantizers.use was not called"
    recipe, clock = _in_use
    quantizer_class, _ = te_classes()
    return quantizer_class(OperandMaker(recipe, role.tensor_type, layer=role.name, clock=clock))


@functools.cache
def te_classes() -> tuple[type, type]:
    """(EmulatedQuantizer, EmulatedTensor), derived from TE's base classes."""
    from transformer_engine.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer

    return make_classes(Quantizer, QuantizedTensorStorage)


def make_classes(quantizer_base: type, storage_base: type) -> tuple[type, type]:
    """(EmulatedQuantizer, EmulatedTensor) over given bases: TE's, or stand-ins in tests."""

    class EmulatedTensor(_Operands, storage_base):  # type: ignore[misc, valid-type]
        pass

    class EmulatedQuantizer(_Quantizer, quantizer_base):  # type: ignore[misc, valid-type]
        tensor_class = EmulatedTensor

    return EmulatedQuantizer, EmulatedTensor


class _Operands:
    """EmulatedTensor but for TE's base: both operands of one tensor.

    `data`, `scale`, `data_t`, `scale_t` are the names that custom_gemm reads.
    """

    custom = True

    def __init__(self, pair: Pair, quantizer: Any, original: Tensor) -> None:
        self._quantizer = quantizer
        # A weight is quantised once a step and serves every micro batch, in a pipeline also before the first
        # backward pass: TE says so by a quantiser that is not internal.
        self._is_cached = not quantizer.internal
        self.dtype, self.device, self.original_shape = original.dtype, original.device, original.shape
        self._dtype = original.dtype
        self.set_pair(pair)

    def set_pair(self, pair: Pair) -> None:
        self.data, self.scale, self._has_scale = _parts(pair.rowwise)
        self.data_t, self.scale_t, self._has_scale_t = _parts(pair.columnwise)

    def operand(self, usage: str) -> Operand:
        """What enters the product; raises when TE asks for a usage that was not made."""
        values, scale, has_scale = {
            "rowwise": (self.data, self.scale, self._has_scale),
            "columnwise": (self.data_t, self.scale_t, self._has_scale_t),
        }[usage]
        if values is None:
            raise RuntimeError(f"{self._quantizer.maker.layer}: {usage} operand was not made or was dropped")
        return Operand(values, scale if has_scale else None, None)

    def prepare_for_saving(self) -> tuple[list[Tensor | None], Any]:
        tensors = [self.data, self.scale, self.data_t, self.scale_t]
        if not self._is_cached:
            self.data = self.scale = self.data_t = self.scale_t = None
        return tensors, self

    def restore_from_saved(self, tensors: list[Tensor | None]) -> list[Tensor | None]:
        self.data, self.scale, self.data_t, self.scale_t = tensors[:4]
        return tensors[4:]

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Drops an operand, or checks that it is there: none can be made from another (each is from BF16)."""
        if rowwise_usage:
            self.operand("rowwise")
        elif rowwise_usage is False:
            self.data = self.scale = None
        if columnwise_usage:
            self.operand("columnwise")
        elif columnwise_usage is False:
            self.data_t = self.scale_t = None

    def get_usages(self) -> dict[str, bool]:
        return {"rowwise": self.data is not None, "columnwise": self.data_t is not None}

    def size(self, *args: int) -> Any:
        shape = torch.Size(self.original_shape)
        return shape[args[0]] if args else shape

    # Names that TE's debug and offload code looks at.
    @property
    def _data(self) -> Tensor | None:
        return self.data

    @property
    def _scale_inv(self) -> Tensor | None:
        return self.scale


class _Quantizer:
    """EmulatedQuantizer but for TE's base: quantises one tensor of one layer by the rules of a recipe."""

    custom = True
    tensor_class: type  # EmulatedTensor

    def __init__(self, maker: OperandMaker) -> None:
        super().__init__(rowwise=True, columnwise=True)
        self.internal = True
        self.maker = maker

    def quantize(self, tensor: Tensor, *, out: Any = None, dtype: Any = None) -> Any:
        """`tensor` [..., features]; `dtype` is TE's wish for debug tensors and has no meaning here."""
        if out is not None:
            return self.update_quantized(tensor, out)
        return self.tensor_class(self._make(tensor), self, tensor)

    def update_quantized(self, src: Tensor, dst: Any, *, noop_flag: Tensor | None = None) -> Any:
        """Quantises a weight again into its cached storage; a set `noop_flag` leaves it as it is."""
        if noop_flag is None or not noop_flag.item():
            dst.set_pair(self._make(src))
        return dst

    def qgemm(
        self,
        qx: Tensor,
        qw: Tensor,
        m_params: Any,
        out_dtype: torch.dtype,
        sx: Tensor,
        sw: Tensor,
        bias: Tensor | None = None,
        gemm_type: Any = None,
        qresult_x: Any = None,
        qresult_w: Any = None,
    ) -> Tensor:
        """One product; the operands come from the two storages, see emulation.multiply."""
        if bias is not None:
            raise ValueError(f"{self.maker.layer}: a bias is not supported; pass --disable-bias-linear")
        first, second = {
            "fprop": ("rowwise", "rowwise"),
            "dgrad": ("rowwise", "columnwise"),
            "wgrad": ("columnwise", "columnwise"),
        }[gemm_type.value]
        return multiply(
            gemm_type.value, qresult_x.operand(first), qresult_w.operand(second), out_dtype=out_dtype
        )

    def _make(self, tensor: Tensor) -> Pair:
        matrix = tensor.detach().reshape(-1, tensor.shape[-1]).contiguous()
        return self.maker.make(matrix, rowwise=self.rowwise_usage, columnwise=self.columnwise_usage)

    @property
    def supports_allgather_fp8(self) -> bool:
        return False

    @property
    def supports_dequantize(self) -> bool:
        return False

    def is_requantization_safe(self) -> bool:
        """Random bits differ at every call, so TE must keep an operand and not make it again."""
        return False

    def _get_compatible_recipe(self) -> None:
        return None


def _parts(operand: Operand | None) -> tuple[Tensor | None, Tensor | None, bool]:
    """(values, scale, whether the scale counts); custom_gemm wants a scale tensor beside any values."""
    if operand is None:
        return None, None, False
    if operand.scale is None:
        return operand.values, operand.values.new_empty(0), False
    return operand.values, operand.scale, True
