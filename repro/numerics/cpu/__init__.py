"""Fused quantisation of GEMM operands on the CPU: one C++ source, compiled once for this machine.

Same bits as `repro.numerics.operand.make_operand_reference`, at memory speed. `build` compiles and keeps the
library, `binding` calls it. Nothing is compiled at import: the first operand does that.

Does not: define arithmetic (the PyTorch reference does), need a compiler (without one the reference runs and
one log line says so), or touch other devices.
"""

from __future__ import annotations

from repro.numerics.cpu.binding import fake_quantize_cpu, make_operand_cpu

__all__ = ["fake_quantize_cpu", "make_operand_cpu"]
