"""Fused quantisation of GEMM operands on a GPU, in Triton.

Same bits as `repro.numerics.operand.make_operand_reference`, at memory speed; values in BF16 where that is exact.
`arithmetic`, `rotation` and `noise` hold the rules, `native` some of `arithmetic` in inline PTX, `loads` what is
worked out while loading, `kernels` the amax pass and the general quantising pass; `words` has what is done with two
BF16 numbers in one word, `pairs` the rules for quantising them, `pairs_kernel` the quantising pass that makes NVFP4
of BF16. `tiles` says how they cut a tensor up, `passes` plans and launches, `binding` is the way in; `product` scales
products. `packing` stores codes and scales instead of values, with a kernel of its own; `fp8_operand` so stores the
operands of FP8 products, `fp8_product` (the card's) and `fp8_emulation` multiply them.

Nothing is compiled at import, and Triton is not imported before a CUDA tensor comes (`repro.numerics.operand`).

Does not: define arithmetic (the PyTorch reference does), or run on a CPU, except in Triton's interpreter
(TRITON_INTERPRET=1 before the first import), where the same tests hold.
"""

from __future__ import annotations

from typing import Any

__all__ = ["make_operand_gpu", "make_operand_pair_gpu"]


def __getattr__(name: str) -> Any:
    """Triton is imported with the first of the two functions, so that `product` needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repro.numerics.gpu import binding

    return getattr(binding, name)
