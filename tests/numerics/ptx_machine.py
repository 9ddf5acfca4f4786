"""Runs a kernel's PTX on a CPU, one thread block after the other; a register is a NumPy array with a number a thread.

It knows the instructions that the quantising kernels need, rounding modes included, and raises NotImplementedError
for others. Threads of a block must take the same branches. Shared memory needs no barriers: all threads finish an
instruction before the next one starts. A sum that FP64 cannot hold is rounded twice; fused products here are exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from ptx_numbers import (
    F32,
    HALF,
    SHIFT,
    U32,
    U64,
    bits_of,
    extreme,
    f16_toward_zero,
    halves,
    to_bf16,
    toward_zero,
    word,
)

_DIRECTIVES = re.compile(r"^\.(loc|pragma|section|file|b8|b32|b64)\b")
_COMPARE: dict[str, Callable] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip
_BITWISE: dict[str, Callable] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_PARTS = {"b16": np.uint16, "b32": U32, "b64": U64}


class Block:
    """One thread block. `memory`: bytes that addresses count in; `parameters`: integers, in order."""

    def __init__(
        self,
        ptx: str,
        num_threads: int,
        memory: np.ndarray,
        parameters: list[int],
        block: int,
        num_blocks: int,
    ) -> None:
        self.num_threads = num_threads
        self.memories = {"global": memory, "shared": np.zeros(1 << 16, np.uint8)}
        self.parameters = parameters
        self.registers = {
            "%tid.x": np.arange(num_threads, dtype=U32), "%ctaid.x": self._all(block, 32),
            "%nctaid.x": self._all(num_blocks, 32), "global_smem": self._all(0, 64),
        }  # fmt: skip
        self.code: list[str] = []
        self.labels: dict[str, int] = {}
        lines = [line.split("//")[0].strip() for line in ptx[ptx.index(".entry") :].splitlines()]
        lines = lines[lines.index("{") :]
        lines = lines[: next(i for i, line in enumerate(lines) if line.startswith("$L__func_end"))]
        lines = [re.sub(r"^(\$\w+):$", r":\1;", line) for line in lines if not _DIRECTIVES.match(line)]
        for statement in " ".join(lines).split(";"):
            statement = statement.strip().lstrip("{} ").replace("\t", " ")
            if statement.startswith(":"):
                self.labels[statement[1:]] = len(self.code)
            elif statement and not statement.startswith("."):
                self.code.append(statement)

    def run(self) -> None:
        at = 0
        while (statement := self.code[at]) != "ret":
            at += 1
            mask = np.ones(self.num_threads, bool)
            if guard := re.match(r"@(!?)(%p\d+) +(.*)", statement):
                mask = self.registers[guard[2]] ^ bool(guard[1])
                statement = guard[3]
            name, _, rest = statement.partition(" ")
            operands = [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", rest)]
            if name.startswith("bra"):
                assert mask.all() or not mask.any(), f"threads part: {statement}"
                at = self.labels[operands[0]] if mask.all() else at
            elif name.startswith(("ld.global", "ld.shared", "st.")):
                self._move(name.split("."), operands, mask)
            elif name.startswith(("ldmatrix", "stmatrix")):
                self._move_matrices(name.split("."), operands)
            elif name != "bar.sync":
                with np.errstate(all="ignore"):
                    self._write(operands[0], self._value(name.split("."), operands), mask)

    def _all(self, value, bits):
        return np.full(self.num_threads, value % (1 << bits), U64 if bits == 64 else U32)

    def _read(self, operand, bits=32):
        if operand in self.registers:
            return self.registers[operand]
        if operand.startswith("{"):
            low, high = (self._read(part.strip()) for part in operand.strip("{} ").split(","))
            return low.astype(U64) | high.astype(U64) << U64(32) if bits == 64 else word(low, high)
        return self._all(int(operand[2:], 16) if operand.startswith("0f") else int(operand, 0), bits)

    def _write(self, register, value, mask):
        if register.startswith("{"):
            half = U64(32) if value.dtype == U64 else SHIFT
            low, high = (part.strip() for part in register.strip("{} ").split(","))
            self._write(low, (value & ((half.dtype.type(1) << half) - half.dtype.type(1))).astype(U32), mask)
            self._write(high, (value >> half).astype(U32), mask)
        elif mask.all() or register not in self.registers:
            self.registers[register] = value
        else:
            self.registers[register] = np.where(mask, value, self.registers[register])

    def _move(self, parts, operands, mask):
        """A load or store, of up to four neighbours a thread."""
        kind, memory = _PARTS[parts[-1]], self.memories[parts[1]]
        size = kind().itemsize
        registers, address = operands if parts[0] == "ld" else operands[::-1]
        base, _, offset = address.strip("[] ").partition("+")
        first = self._read(base.strip(), 64).astype(np.int64) + int(offset or 0)
        for i, register in enumerate(registers.strip("{} ").split(",")):
            where = (first + i * size)[:, None] + np.arange(size)
            if parts[0] == "ld":
                loaded = memory[np.where(mask[:, None], where, 0)].view(kind)[:, 0]
                self._write(register.strip(), loaded.astype(U64 if size == 8 else U32), mask)
            else:
                memory[where[mask]] = (
                    self._read(register.strip()).astype(kind).view(np.uint8).reshape(-1, size)[mask]
                )

    def _move_matrices(self, parts, operands):
        """Matrices of 8x8 numbers of 16 bits, four a warp; eight threads have the addresses of one's rows."""
        registers, address = operands if parts[0] == "ldmatrix" else operands[::-1]
        names = [register.strip() for register in registers.strip("{} ").split(",")]
        base, _, offset = address.strip("[] ").partition("+")
        first = (self._read(base.strip()).astype(np.int64) + int(offset or 0)).reshape(-1, 4, 8, 1)
        where, shared = first + np.arange(16), self.memories["shared"]

        def turned(matrices):
            return np.ascontiguousarray(matrices.swapaxes(2, 3)) if "trans" in parts else matrices

        if parts[0] == "ldmatrix":
            words = turned(shared[where].view(np.uint16)).view(U32).reshape(-1, 4, 32)
            for i, name in enumerate(names):
                self.registers[name] = words[:, i].reshape(-1).copy()
        else:
            words = np.stack([self.registers[name].reshape(-1, 32) for name in names], axis=1)
            matrices = np.ascontiguousarray(words).view(np.uint16).reshape(-1, 4, 8, 8)
            shared[where] = turned(matrices).view(np.uint8)

    def _value(self, parts, operands):
        """The result of an instruction without effects on memory."""
        name, kind = parts[0], parts[-1]
        if name == "ld":
            number = int(re.search(r"param_(\d+)", operands[1])[1])
            return self._all(self.parameters[number], int(kind[1:]))
        bits = 64 if kind.endswith("64") else 32
        values = [self._read(operand, bits) for operand in operands[1:]]
        if name == "setp":
            as_kind = {"s": np.int32 if bits == 32 else np.int64, "f": F32}.get(kind[0], values[0].dtype)
            return _COMPARE[parts[1].rstrip("u")](values[0].view(as_kind), values[1].view(as_kind))
        if parts == ["set", "gtu", "u32", "bf16x2"]:
            return word(*(np.where(a <= b, U32(0), HALF) for a, b in zip(*map(halves, values), strict=True)))
        if name == "selp":
            return np.where(self.registers[operands[3]], values[0], values[1])
        if name in _BITWISE:
            return _BITWISE[name](values[0], values[1])
        if name in ("not", "mov"):
            return ~values[0] if name == "not" else values[0]
        if name == "cvt":
            return self._converted(".".join(parts[1:]), values)
        if kind == "f32":
            return bits_of(self._float(name, parts, [value.view(F32) for value in values]))
        if kind == "bf16x2":
            pairs = zip(*(halves(value) for value in values), strict=True)
            return word(*(to_bf16(self._float(name, parts, list(pair))) for pair in pairs))
        return self._integer(name, parts, operands, values)

    def _converted(self, what, values):
        if what == "rn.bf16x2.f32":
            return word(to_bf16(values[1].view(F32)), to_bf16(values[0].view(F32)))
        if what == "rz.f16x2.f32":
            return word(f16_toward_zero(values[1].view(F32)), f16_toward_zero(values[0].view(F32)))
        if what == "rn.bf16.f32":
            return to_bf16(values[0].view(F32))
        if what == "s64.s32":
            return values[0].view(np.int32).astype(np.int64).view(U64)
        if what in ("u64.u32", "u32.u64"):
            return values[0].astype(U64 if what == "u64.u32" else U32)
        raise NotImplementedError(f"cvt.{what}")

    def _float(self, name, parts, values):
        if name in ("max", "min"):
            return extreme(name, *values, parts)
        if name in ("abs", "neg"):
            return np.abs(values[0]) if name == "abs" else -values[0]
        wide = [value.astype(np.float64) for value in values]
        if name == "fma":  # a sum of two zeros has the sign that FP32 gives
            exact = wide[0] * wide[1] + wide[2]
        elif name in ("add", "sub", "mul", "div", "rcp"):
            first, second = (wide[0], wide[1]) if len(wide) == 2 else (1.0, wide[0])
            operation = {"add": np.add, "sub": np.subtract, "mul": np.multiply}.get(name, np.divide)
            exact = operation(first, second)
        else:
            raise NotImplementedError(f"{name} of FP32")
        return toward_zero(exact) if "rz" in parts else exact.astype(F32)

    def _integer(self, name, parts, operands, values):
        kind = parts[-1]
        first, second = values[0], values[1]
        is_signed = kind[0] == "s"
        if name == "shfl" and parts[2] in ("bfly", "idx"):
            thread, other = np.arange(self.num_threads), second.astype(int)
            return first[thread ^ other if parts[2] == "bfly" else thread // 32 * 32 + other % 32]
        if name in ("mul", "mad") and parts[1] == "wide":
            wide = [
                v.view(np.int32).astype(np.int64) if is_signed else v.astype(U64) for v in (first, second)
            ]
            product = (wide[0] * wide[1]).view(U64)
            return product + self._read(operands[3], 64) if name == "mad" else product
        if name == "mul" and parts[1] == "hi" and kind == "u32":
            return (first.astype(U64) * second.astype(U64) >> U64(32)).astype(U32)
        if name in ("mul", "mad") and parts[1] == "lo":
            return first * second + values[2] if name == "mad" else first * second
        if name in ("add", "sub"):
            return first + second if name == "add" else first - second
        if name in ("shl", "shr"):
            count = self._read(operands[2]).astype(first.dtype)
            if name == "shr" and is_signed:
                as_signed = np.int64 if first.dtype == U64 else np.int32
                return (first.view(as_signed) >> count.view(as_signed)).view(first.dtype)
            return first << count if name == "shl" else first >> count
        if name in ("max", "min") and kind == "s32":
            pick = np.maximum if name == "max" else np.minimum
            return pick(first.view(np.int32), second.view(np.int32)).view(U32)
        if name == "min" and kind == "u16x2":
            return word(np.minimum(first & HALF, second & HALF), np.minimum(first >> SHIFT, second >> SHIFT))
        if name in ("div", "rem") and kind == "s32":
            as_signed = first.view(np.int32).astype(np.int64), second.view(np.int32).astype(np.int64)
            quotient = (
                (np.abs(as_signed[0]) // np.abs(as_signed[1])) * np.sign(as_signed[0]) * np.sign(as_signed[1])
            )
            result = quotient if name == "div" else as_signed[0] - quotient * as_signed[1]
            return result.astype(np.int32).view(U32)
        if name == "bfe":
            cut = (values[0] >> values[1]) & ((U32(1) << values[2]) - U32(1))
            top = U32(32) - values[2]
            return ((cut << top).view(np.int32) >> top.view(np.int32)).view(U32) if kind == "s32" else cut
        if name == "prmt":
            both = values[0].astype(U64) | values[1].astype(U64) << U64(32)
            chosen = [(values[2] >> U32(4 * i)) & U32(7) for i in range(4)]
            picked = [(both >> (U64(8) * n)).astype(U32) & U32(0xFF) for n in chosen]
            return picked[0] | picked[1] << U32(8) | picked[2] << U32(16) | picked[3] << U32(24)
        if name == "lop3":
            table, result = int(operands[4], 0), self._all(0, 32)
            for i in (i for i in range(8) if table >> i & 1):
                a, b, c = (v if i & bit else ~v for v, bit in zip(values[:3], (4, 2, 1), strict=True))
                result |= a & b & c
            return result
        raise NotImplementedError(".".join(parts))
