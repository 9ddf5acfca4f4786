"""The precision that really runs, read from the built model and compared with the frozen run, layer by layer.

Section 4.1 of arXiv 2509.25149. Several versions of the stack train silently in BF16 when 4 bits were asked for, so
nothing is believed: before step 1 every linear layer is asked for its quantisers inside the context in which
megatron-core will call it, and after step 1 for the quantisers that ran. Any difference to the frozen run is an error
that names layer, GEMM and operand. The record goes into done.json, in the format of the portable trainer's.

A layer's six operands from Transformer Engine's three quantisers: see repro.cluster.emulation. What is read:

    not under autocast                     BF16
    NVFP4Quantizer                         with_2d_quantization, stochastic_rounding, with_rht, its sign mask
    Float8BlockQuantizer                   dtype, block_scaling_dim, force_pow_2_scales
    EmulatedQuantizer (repro's)            its operand plans
    IdentityQuantizer                      BF16
    recipe.backward_override               BF16 in Dgrad and Wgrad

Anything else is an error: a quantiser that this table does not know may not run. So is a layer outside this list that
Transformer Engine could quantise, e.g. the output head; and a parameter (embedding, output head and norms included)
that is not BF16, or whose gradient is not summed in FP32. Needs torch through repro.recipes
only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from repro.cluster.emulation import USAGES
from repro.cluster.paths import FP8_SCALES_VARIABLE
from repro.experiments.model import ModelSpec
from repro.experiments.recipe import Recipe
from repro.recipes.apply import verify_record

Line = dict[str, str | int]
#: global layer index -> the context that megatron-core enters around that layer's forward pass
Context = Callable[[int], AbstractContextManager[Any]]

#: Pattern symbol -> (path in megatron-core's layer, name in the record) of its two linear layers.
LINEARS: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "M": (("mixer.in_proj", "in_proj"), ("mixer.out_proj", "out_proj")),
    "-": (("mlp.linear_fc1", "up_proj"), ("mlp.linear_fc2", "down_proj")),
    "*": (("self_attention.linear_qkv", "qkv_proj"), ("self_attention.linear_proj", "o_proj")),
}
_BF16: Line = {"format": "bf16", "blocks": "none", "rounding": "rne", "hadamard": 0, "signs": "none"}


def named_linears(spec: ModelSpec, layers: Iterable[Any]) -> Iterator[tuple[str, int, int, Any]]:
    """(name, block, layer, module) of every linear layer; `layers` are those of one pipeline stage.

    Raises ValueError when a layer lacks a linear layer that its symbol must have.
    """
    for layer in layers:
        index = layer.layer_number - 1
        symbol, block = spec.pattern[index], index // spec.symbols_per_block
        for path, short in LINEARS[symbol]:
            try:
                module = layer.get_submodule(path)
            except AttributeError:
                raise ValueError(f"layer {index} ({symbol!r}) of the built model has no {path}") from None
            yield _name(spec, symbol, block, short), block, index, module


def read_before(spec: ModelSpec, layers: Iterable[Any], context: Context) -> list[Line]:
    """The record of the quantisers that each layer will run, made inside the layer's own context.

    Sets each module's name to that of the record: the random streams of emulated operands derive from it.
    """
    record: list[Line] = []
    for name, block, index, module in named_linears(spec, layers):
        if _is_te(module):
            module.name = name
            with context(index):
                module.init_fp8_metadata(num_gemms=1)
        record += _read(name, block, module)
    return record


def read_after(spec: ModelSpec, layers: Iterable[Any]) -> list[Line]:
    """The record of the quantisers that were in force in the last forward and backward pass."""
    return [
        line for name, block, _, module in named_linears(spec, layers) for line in _read(name, block, module)
    ]


def check_others(spec: ModelSpec, layers: Iterable[Any], modules: Iterable[tuple[str, Any]]) -> None:
    """What the record would not show: of all (name, module) of a stage, those outside its linear layers.

    Raises ValueError for the first with a matrix of weights that Transformer Engine could quantise.
    """
    known = {id(module) for _, _, _, module in named_linears(spec, layers)}
    for name, module in modules:
        if _is_te(module) and id(module) not in known and any(p.dim() > 1 for p in module.parameters(False)):
            raise ValueError(
                f"{name} is a layer of Transformer Engine, which would quantise it unseen: only the linear layers of "
                "the blocks are quantised (Section 4.1)"
            )


def check_storage(parameters: Iterable[tuple[str, Any]]) -> None:
    """What no quantiser shows, of each (name, parameter) as megatron-core's data parallelism holds it (Section 4.1).

    Raises ValueError for the first whose values are not BF16 or whose gradient is not accumulated in FP32.
    """
    for name, parameter in parameters:
        if (found := _short(parameter.dtype)) != "bfloat16":
            raise ValueError(f"{name} is kept in {found}; what is not quantised is BF16: pass --bf16")
        if (found := _short(parameter.main_grad.dtype)) != "float32":
            raise ValueError(
                f"the gradient of {name} is summed in {found}, not in FP32: pass --accumulate-allreduce-grads-in-fp32"
            )


def compare(record: list[Line], recipe: Recipe, spec: ModelSpec) -> None:
    """Raises ValueError for the first difference between a whole model's record and its frozen run."""
    layers = {line["layer"] for line in record}
    expected = 2 * len(spec.pattern)
    if len(layers) != expected:
        raise ValueError(f"the record has {len(layers)} linear layers, {spec.name} has {expected}")
    verify_record(record, recipe, num_blocks=spec.num_blocks)


def _name(spec: ModelSpec, symbol: str, block: int, short: str) -> str:
    """As the portable models name their layers (q, k and v apart, which are one layer here)."""
    if spec.kind == "hybrid":
        return f"model.layers.{block}.mixer.{short}"
    return f"model.layers.{block}.{'self_attn' if symbol == '*' else 'mlp'}.{short}"


def _is_te(module: Any) -> bool:
    return hasattr(module, "init_fp8_metadata") and hasattr(module, "quantizers")


def _read(name: str, block: int, module: Any) -> list[Line]:
    """Six lines of one linear layer."""
    quantised = _is_te(module) and bool(module.fp8)
    if quantised:
        _check_attention(module, name)
    if quantised and getattr(module, "fuse_wgrad_accumulation", False) and _is_emulated(module):
        raise ValueError(
            f"{name}: gradient accumulation is fused, which would lose the gradients of emulated operands; pass "
            "--no-gradient-accumulation-fusion"
        )
    lines: list[Line] = []
    for tensor_type, (operand, rowwise_gemm, columnwise_gemm) in USAGES.items():
        rules: tuple[Line, Line] = (_BF16, _BF16)
        if quantised:
            rules = _rules(_slot(module, tensor_type), name, tensor_type)
        for gemm, rule in zip((rowwise_gemm, columnwise_gemm), rules, strict=True):
            if gemm != "fprop" and quantised and _backward_override(module, name):
                rule = _BF16
            head: Line = {"layer": name, "block": block, "gemm": gemm, "operand": operand}
            lines.append({**head, **{key: rule[key] for key in _BF16}})
    return lines


def _slot(module: Any, tensor_type: str) -> Any:
    """The quantiser of one tensor; TE keeps [input, weight, output] and [grad_output, grad_input]."""
    if tensor_type == "grad_output":
        return module.quantizers["scaling_bwd"][0]
    return module.quantizers["scaling_fwd"][0 if tensor_type == "input" else 1]


def _is_emulated(module: Any) -> bool:
    return type(_slot(module, "input")).__name__ == "EmulatedQuantizer"


def _backward_override(module: Any, name: str) -> bool:
    override = getattr(module.fp8_meta["recipe"], "backward_override", None)
    if override not in (None, "high_precision"):
        raise ValueError(f"{name}: backward_override is {override!r}, which no recipe asks for")
    return override is not None


def _check_attention(module: Any, name: str) -> None:
    """Section 4.1 keeps attention's own products in BF16; a recipe may take them along."""
    for option in ("fp8_dpa", "fp8_mha"):
        if getattr(module.fp8_meta["recipe"], option, False):
            raise ValueError(
                f"{name}: the recipe has {option}: attention's own products would not run in BF16"
            )


def _rules(quantizer: Any, name: str, tensor_type: str) -> tuple[Line, Line]:
    """(rowwise, columnwise) rules in the words of the record."""
    kind = type(quantizer).__name__
    if kind == "EmulatedQuantizer":
        first, second = quantizer.maker.describe()
        return first, second
    if kind == "IdentityQuantizer":
        return _BF16, _BF16
    if kind == "NVFP4Quantizer":
        return _nvfp4(quantizer)
    if kind == "Float8BlockQuantizer":
        if quantizer.force_pow_2_scales == (os.environ.get(FP8_SCALES_VARIABLE) == "1"):
            scales = "power-of-two" if quantizer.force_pow_2_scales else "FP32"
            raise ValueError(
                f"{name}: {tensor_type} has {scales} scales, which {FP8_SCALES_VARIABLE} does not ask for: it was "
                "set after transformer_engine was imported"
            )
        element = _dtype_name(quantizer)
        form = "fp8_block" if element == "kFloat8E4M3" else f"fp8_block of {element}"
        rule: Line = {**_BF16, "format": form, "blocks": f"{quantizer.block_scaling_dim}d"}
        return rule, rule
    raise ValueError(
        f"{name}: {tensor_type} is quantised by {kind}, which no recipe of this project asks for"
    )


def _nvfp4(quantizer: Any) -> tuple[Line, Line]:
    form = "nvfp4"
    for option in ("row_scaled_nvfp4", "nvfp4_use_4over6"):
        if getattr(quantizer, option, False):
            form += f" with {option}"
    rule: Line = {
        **_BF16,
        "format": form,
        "blocks": "2d" if quantizer.with_2d_quantization else "1d",
        "rounding": "sr" if quantizer.stochastic_rounding else "rne",
    }
    if not quantizer.with_rht:
        return rule, rule
    # Natively the transform acts on the columnwise copy alone.
    signs = "fixed" if quantizer.rht_matrix_random_sign_mask_t else "none"
    return rule, {**rule, "hadamard": 16, "signs": signs}


def _dtype_name(quantizer: Any) -> str:
    return getattr(quantizer.dtype, "name", str(quantizer.dtype))


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
