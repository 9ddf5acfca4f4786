"""The quantised layer as one operator of a compiled graph, which runs as it stands.

Were it traced, torch.compile would make its own kernels of the quantisation, which may contract a multiplication and
an addition, or round elsewhere: losses and gradients would differ. So a graph calls the layer by two operators that
it cannot look into, with T tokens, K input and N output features:

    linear_forward    x [..., K], w [N, K]          -> y [..., N], and what is kept
    linear_backward   g [..., N], what is kept, w   -> those of dx [..., K], dw [N, K], db [N] that are needed

Kept are, in this order: the moment of the forward pass (its step and micro batch, int64 [2] on the CPU); w's operand
and its tensor scale, where Dgrad takes those of Fprop; x's operand of Wgrad and its tensor scale, or x in BF16. The
graph knows dtypes and shapes of all that by `layout`, the layer's formats; the layer itself it finds at run time
(handles.py), so that equal blocks share one graph. Nothing that goes in or comes out is kept elsewhere: its memory
is the graph's. The compiler may leave out a call whose result nobody reads, and make one of two that are alike: bits
stay, such a call's operands are then not counted in `nonfinite`.

A module of its own because it imports the compiler, which takes two seconds: only those who compile pay for it.
Does not: run inside of a CUDA graph, which would round with the bits of its capture in every step, or share operands
of one input between layers (last_input.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from repro.numerics.formats import block_format
from repro.numerics.operand import Operand
from repro.recipes.handles import layer_of
from repro.recipes.linear import Joined, add_bias, as_matrix, gradients, output
from repro.recipes.product import as_written

if TYPE_CHECKING:
    from repro.recipes.linear import QuantizedLinear

# PyTorch before 2.9 has no such tag, and captures no graph that takes a tensor of the CPU, as the handle is.
_TAGS = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()


def product(layer: QuantizedLinear, x: Tensor, joined: Joined | None) -> Tensor:
    """What `layer.forward` gives outside of torch.compile; this function is traced."""
    if not layer.fits_operator(x, joined) or _is_exporting():
        return _product_outside(layer, x, joined)
    x = layer.autocast(x)
    trains = torch.is_grad_enabled()
    needs_dx, needs_dw = trains and x.requires_grad, trains and layer.weight.requires_grad
    is_pair = needs_dw and layer.pairs_x(x)
    return _forward(x, layer.weight, layer.bias, layer.handle, layer.layout, needs_dx, needs_dw, is_pair)[0]


@torch.compiler.assume_constant_result
def _is_exporting() -> bool:
    """Asked while the graph is made: PyTorch 2.11 answers True in every graph, compiled or exported."""
    return torch.compiler.is_exporting()


@torch.compiler.disable(reason="4-bit arithmetic is exact only as it stands")
def _product_outside(layer: QuantizedLinear, x: Tensor, joined: Joined | None) -> Tensor:
    return layer.product(x, joined)


@torch.compiler.disable(
    reason="what the quantised layers read changes here; give follow_training what torch.compile returned"
)
def interrupt() -> None:
    """Ends the graph that is being compiled, so that what is done next is done before the next graph."""


@torch.library.custom_op(
    "nvfp4_repro::linear_forward",
    mutates_args=(),
    tags=_TAGS,
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor handle, str layout, bool needs_dx, "
    "bool needs_dw, bool is_pair) -> Tensor[]",
)
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    handle: Tensor,
    layout: str,
    needs_dx: bool,
    needs_dw: bool,
    is_pair: bool,
) -> list[Tensor]:
    """y and what is kept, see above; nothing is kept where neither gradient is needed. Raises as the layer does."""
    layer = layer_of(handle)
    _refuse_capture(layer, x.device)
    layer.check_input(x, needs_dw)
    if x.numel() == 0:  # there is nothing to quantise, and what is kept will not be read
        empty = _empty_forward(x, weight, bias, handle, layout, needs_dx, needs_dw, is_pair)
        return [tensor.zero_() for tensor in empty]
    with as_written(x.device):
        y, x_kept, operand_w = output(layer, x, weight, Joined(), is_pair)
        y = y.to(x.dtype).view(*x.shape[:-1], weight.shape[0])
        y = y if bias is None else add_bias(y, bias)
    out = [y]
    if needs_dx or needs_dw:
        out.append(torch.tensor(layer.context.moment, device="cpu"))
    if needs_dx and layer.reuses_weight:
        out += _tensors(operand_w, weight)
    if is_pair or (needs_dw and x.dtype != torch.bfloat16):
        out += _tensors(x_kept, x)
    return out


def _tensors(operand: Operand, original: Tensor) -> list[Tensor]:
    """The operand's values and scale, if it has one, each alone in its memory and apart from `original`."""
    values, scale = operand.values, operand.scale
    is_apart = values.untyped_storage().data_ptr() != original.untyped_storage().data_ptr()
    values = values.contiguous() if is_apart else values.clone(memory_format=torch.contiguous_format)
    # Cloned, as a kernel writes scale and amax side by side.
    return [values] if scale is None else [values, scale.clone()]


@_forward.register_fake
def _empty_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    handle: Tensor,
    layout: str,
    needs_dx: bool,
    needs_dw: bool,
    is_pair: bool,
) -> list[Tensor]:
    """What `_forward` gives, by shape and dtype; no values."""
    format_x, format_w = layout.split()
    num_tokens = 1
    for size in x.shape[:-1]:
        num_tokens = num_tokens * size
    out = [x.new_empty((*x.shape[:-1], weight.shape[0]))]
    if needs_dx or needs_dw:
        out.append(torch.empty(2, dtype=torch.int64, device="cpu"))
    if needs_dx and format_w != "-":
        out += _fakes(format_w, x.new_empty(weight.shape, dtype=torch.float32))
    if is_pair:
        out += _fakes(format_x, x.new_empty((num_tokens, x.shape[-1]), dtype=torch.float32))
    elif needs_dw and x.dtype != torch.bfloat16:
        out.append(x.new_empty((num_tokens, x.shape[-1]), dtype=torch.bfloat16))
    return out


def _fakes(format_name: str, values: Tensor) -> list[Tensor]:
    """As `_tensors` gives them; `values` has the operand's shape and device."""
    form = None if format_name == "bf16" else block_format(format_name)
    if values.is_cuda and (form is None or form.is_exact_in_bf16):
        values = values.to(torch.bfloat16)
    has_scale = form is not None and form.tensor_scale
    return [values, values.new_empty((), dtype=torch.float32)] if has_scale else [values]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, weight, _, handle, layout, needs_dx, needs_dw, is_pair = inputs
    kept = output[1:]
    if needs_dw and not is_pair and x.dtype == torch.bfloat16:
        kept = [*kept, x]  # no operator may give what it was given
    ctx.save_for_backward(weight, handle, *kept)
    ctx.options = layout, needs_dx, needs_dw, is_pair


def _differentiate(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    weight, handle, *kept = ctx.saved_tensors
    layout, needs_dx, needs_dw, is_pair = ctx.options
    needs = needs_dx, needs_dw, ctx.needs_input_grad[2]
    found = iter(_backward(grads[0], kept, weight, handle, layout, *needs, is_pair))
    return *(next(found) if needed else None for needed in needs), *(None,) * 5


_forward.register_autograd(_differentiate, setup_context=_keep)


@torch.library.custom_op(
    "nvfp4_repro::linear_backward",
    mutates_args=(),
    tags=_TAGS,
    schema="(Tensor grad, Tensor[] kept, Tensor weight, Tensor handle, str layout, bool needs_dx, bool needs_dw, "
    "bool needs_db, bool is_pair) -> Tensor[]",
)
def _backward(
    grad: Tensor,
    kept: list[Tensor],
    weight: Tensor,
    handle: Tensor,
    layout: str,
    needs_dx: bool,
    needs_dw: bool,
    needs_db: bool,
    is_pair: bool,
) -> list[Tensor]:
    """Those of dx (in grad's dtype), dw (FP32) and db (FP32) that are needed."""
    layer = layer_of(handle)
    _refuse_capture(layer, grad.device)
    if grad.numel() == 0:
        empty = _empty_backward(grad, kept, weight, handle, layout, needs_dx, needs_dw, needs_db, is_pair)
        return [tensor.zero_() for tensor in empty]
    out: list[Tensor | None] = []
    if needs_dx or needs_dw:
        moment, *rest = kept
        format_x, format_w = layout.split()
        w_kept, rest = _operand(rest, format_w) if needs_dx and format_w != "-" else (None, rest)
        x_kept, _ = _operand(rest, format_x if is_pair else "bf16") if needs_dw else (None, rest)
        if needs_dw and not is_pair:
            x_kept = Operand(as_matrix(x_kept.values), None, None)
        needs = needs_dx, needs_dw
        with as_written(grad.device), layer.context.at(tuple(moment.tolist())):
            out += gradients(layer, grad, weight, None, x_kept, w_kept, needs, is_pair)
    if needs_db:  # as PyTorch differentiates add_bias
        out.append(grad.to(torch.bfloat16).float().sum_to_size(grad.shape[-1:]))
    return [tensor for tensor in out if tensor is not None]


def _operand(kept: list[Tensor], format_name: str) -> tuple[Operand, list[Tensor]]:
    """The operand that the first of `kept` are, without its amax; and the rest of them."""
    if format_name == "bf16" or not block_format(format_name).tensor_scale:
        return Operand(kept[0], None, None), kept[1:]
    return Operand(kept[0], kept[1], None), kept[2:]


@_backward.register_fake
def _empty_backward(
    grad: Tensor,
    kept: list[Tensor],
    weight: Tensor,
    handle: Tensor,
    layout: str,
    needs_dx: bool,
    needs_dw: bool,
    needs_db: bool,
    is_pair: bool,
) -> list[Tensor]:
    """What `_backward` gives, by shape and dtype; no values."""
    dx = grad.new_empty((*grad.shape[:-1], weight.shape[1]))
    dw = weight.new_empty(weight.shape, dtype=torch.float32)
    db = weight.new_empty(weight.shape[:1], dtype=torch.float32)
    return [t for t, needed in ((dx, needs_dx), (dw, needs_dw), (db, needs_db)) if needed]


def _refuse_capture(layer: QuantizedLinear, device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{layer.name}: a CUDA graph would round with the same bits at each replay; compile without CUDA graphs "
            '(no mode="reduce-overhead")'
        )
