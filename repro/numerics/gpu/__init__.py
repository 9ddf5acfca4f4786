"""Fused quantisation of GEMM operands on a GPU, in Triton.

Same bits as `repro.numerics.operand.make_operand_reference`, at memory speed; values in BF16 where that is exact.
`arithmetic` holds the rules, `kernels` the two kernels, `binding` calls them. Nothing is compiled at import, and
nothing here is imported before a CUDA tensor comes (`repro.numerics.operand`).

Does not: define arithmetic (the PyTorch reference does), or run on a CPU, except in Triton's interpreter
(TRITON_INTERPRET=1 before the first import), where the same tests hold.
"""

from __future__ import annotations

from repro.numerics.gpu.binding import make_operand_gpu, make_operand_pair_gpu

__all__ = ["make_operand_gpu", "make_operand_pair_gpu"]
