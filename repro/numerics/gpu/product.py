"""BF16 matrix products whose FP32 sums are scaled on the device before they are rounded once.

    D [m, n] = round(fl32(alpha * sum_k A[m, k] B[k, n])),   alpha: FP32 scalar in device memory

PyTorch's products take a scale from the host only, which would mean to wait for the device, or to write FP32 sums
and read them again: 8 bytes an output more. cuBLASLt, which PyTorch loads anyway, reads alpha from device memory.
alpha is the product of an NVFP4 GEMM's two tensor scales, fl32(s_a s_b).

`scaled_product` returns None where cuBLASLt cannot be used, with one log line; the caller then has another way.

Does not: choose among cuBLASLt's algorithms by timing (it takes the first it proposes, as PyTorch does).
"""

from __future__ import annotations

import ctypes
import functools
import logging
from dataclasses import dataclass

import torch
from torch import Tensor

_LOG = logging.getLogger(__name__)

_COMPUTE_32F = 68
_TYPE = {torch.float32: 0, torch.bfloat16: 14}
_POINTER_MODE, _TRANSA, _TRANSB = 2, 3, 4
_DEVICE_POINTERS = 1
_TRANSPOSED = 1
_MAX_WORKSPACE_BYTES, _REDUCTION_SCHEMES, _ALIGNMENTS = 1, 3, (5, 6)
_REDUCE_IN_FP32 = 2
_WORKSPACE_BYTES = 32 << 20
#: Bytes that cuBLASLt takes addresses to be multiples of, unless told otherwise; and what is asked of operands here.
_USUAL_ALIGNMENT, _LEAST_ALIGNMENT = 256, 16


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class _CublasLtError(RuntimeError):
    pass


def _checked(status: int, call: str) -> None:
    if status:
        raise _CublasLtError(f"{call} returned status {status}")


@functools.cache
def _library() -> ctypes.CDLL:
    cuda = (torch.version.cuda or "").split(".")[0]
    library = ctypes.CDLL(f"libcublasLt.so.{cuda}")
    pointer = ctypes.c_void_p
    library.cublasLtMatmul.argtypes = (
        *(pointer,) * 14,
        ctypes.c_size_t,
        pointer,
    )  # plain integers are quicker
    return library


@functools.cache
def _handle(device: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        _checked(_library().cublasLtCreate(ctypes.byref(handle)), "cublasLtCreate")
    return handle


@functools.cache
def _workspace(device: int, stream: int) -> Tensor:
    """One per stream: products of one stream run one after the other."""
    return torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=f"cuda:{device}")


@functools.cache
def _zero(device: int) -> Tensor:
    return torch.zeros((), dtype=torch.float32, device=f"cuda:{device}")


@dataclass(frozen=True)
class _Plan:
    operation: ctypes.c_void_p
    first: ctypes.c_void_p
    second: ctypes.c_void_p
    out: ctypes.c_void_p
    heuristic: _Heuristic


def _layout(dtype: torch.dtype, rows: int, columns: int, leading: int) -> ctypes.c_void_p:
    layout = ctypes.c_void_p()
    status = _library().cublasLtMatrixLayoutCreate(
        ctypes.byref(layout), _TYPE[dtype], ctypes.c_uint64(rows), ctypes.c_uint64(columns),
        ctypes.c_int64(leading),
    )  # fmt: skip
    _checked(status, "cublasLtMatrixLayoutCreate")
    return layout


def _set(setter: str, descriptor: ctypes.c_void_p, attribute: int, value: ctypes._SimpleCData) -> None:
    status = getattr(_library(), setter)(
        descriptor, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
    )
    _checked(status, setter)


@functools.lru_cache(maxsize=4096)
def _plan(
    device: int, m: int, n: int, k: int, a_transposed: bool, b_transposed: bool, lda: int, ldb: int,
    dtype: torch.dtype, is_aligned: bool,
) -> _Plan:  # fmt: skip
    """cuBLASLt counts by columns: row-major D = A B is its D^T = B^T A^T, so B comes first."""
    library = _library()
    operation, preference = ctypes.c_void_p(), ctypes.c_void_p()
    _checked(
        library.cublasLtMatmulDescCreate(ctypes.byref(operation), _COMPUTE_32F, _TYPE[torch.float32]),
        "cublasLtMatmulDescCreate",
    )
    set_operation = functools.partial(_set, "cublasLtMatmulDescSetAttribute", operation)
    set_operation(_POINTER_MODE, ctypes.c_int32(_DEVICE_POINTERS))
    if b_transposed:
        set_operation(_TRANSA, ctypes.c_int32(_TRANSPOSED))
    if a_transposed:
        set_operation(_TRANSB, ctypes.c_int32(_TRANSPOSED))
    first = _layout(torch.bfloat16, *((k, n) if b_transposed else (n, k)), ldb)
    second = _layout(torch.bfloat16, *((m, k) if a_transposed else (k, m)), lda)
    out = _layout(dtype, n, m, n)
    _checked(
        library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "cublasLtMatmulPreferenceCreate"
    )
    set_preference = functools.partial(_set, "cublasLtMatmulPreferenceSetAttribute", preference)
    set_preference(_MAX_WORKSPACE_BYTES, ctypes.c_size_t(_WORKSPACE_BYTES))
    set_preference(_REDUCTION_SCHEMES, ctypes.c_uint32(_REDUCE_IN_FP32))  # parts of a sum never in BF16
    if not is_aligned:
        for operand in _ALIGNMENTS:
            set_preference(operand, ctypes.c_uint32(_LEAST_ALIGNMENT))
    heuristic, found = _Heuristic(), ctypes.c_int()
    status = library.cublasLtMatmulAlgoGetHeuristic(
        _handle(device), operation, first, second, out, out, preference, 1, ctypes.byref(heuristic),
        ctypes.byref(found),
    )  # fmt: skip
    library.cublasLtMatmulPreferenceDestroy(preference)
    _checked(status, "cublasLtMatmulAlgoGetHeuristic")
    if not found.value:
        raise _CublasLtError(f"no algorithm for {m} x {k} x {n}")
    return _Plan(operation, first, second, out, heuristic)


def _row_major(x: Tensor) -> tuple[bool, int] | None:
    """(whether x is the transpose of a row-major matrix, that matrix' row stride); None for other strides."""
    if x.stride(1) == 1 and x.stride(0) >= x.shape[1]:
        return False, x.stride(0)
    if x.stride(0) == 1 and x.stride(1) >= x.shape[0]:
        return True, x.stride(1)
    return None


def scaled_product(a: Tensor, b: Tensor, alpha: Tensor, *, dtype: torch.dtype) -> Tensor | None:
    """round(alpha * (a b)) in `dtype` (float32 or bfloat16): contiguous [m, n].

    a [m, k], b [k, n]: bfloat16 on one GPU, row-major or transposed. alpha: float32 scalar on it. None, with one log
    line for each reason, where cuBLASLt does not take them.
    """
    device = a.device.index
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return scaled_product(a, b, alpha, dtype=dtype)
    (m, k), n = a.shape, b.shape[1]
    orders = _row_major(a), _row_major(b)
    addresses = a.data_ptr() | b.data_ptr()
    if orders[0] is None or orders[1] is None or min(m, n, k) == 0 or addresses % _LEAST_ALIGNMENT:
        _say_unscaled("strides or alignment that it does not take")
        return None
    (a_transposed, lda), (b_transposed, ldb) = orders
    try:
        is_aligned = addresses % _USUAL_ALIGNMENT == 0
        plan = _plan(device, m, n, k, a_transposed, b_transposed, lda, ldb, dtype, is_aligned)
        out = torch.empty((m, n), dtype=dtype, device=a.device)
        stream = torch.cuda.current_stream(device).cuda_stream
        status = _library().cublasLtMatmul(
            _handle(device), plan.operation, alpha.data_ptr(), b.data_ptr(), plan.first, a.data_ptr(), plan.second,
            _zero(device).data_ptr(), out.data_ptr(), plan.out, out.data_ptr(), plan.out,
            ctypes.byref(plan.heuristic), _workspace(device, stream).data_ptr(), _WORKSPACE_BYTES, stream,
        )  # fmt: skip
        _checked(status, "cublasLtMatmul")
    except (OSError, AttributeError, _CublasLtError) as reason:
        _say_unscaled(str(reason))
        return None
    return out


@functools.cache
def _say_unscaled(reason: str) -> None:
    _LOG.warning("products are scaled in a pass of their own (same formula, slower); cuBLASLt: %s", reason)
