"""The machine at hand: how a call is timed on it, and the ceilings that other numbers are measured against.

On a GPU a call is captured in a CUDA graph, several times over different tensors, and the graph is replayed: neither
launches nor the cache count. On a CPU calls are timed one by one. Times are medians, but for the copy rate of a CPU.

Two calls are compared in one of two ways: in blocks, each being alone on the machine for a while before it is timed,
as in training; or in turn, call by call. On an H200 the ways differ, because its power limit sets the clock: the
products of the largest layer of layers.py run at 1440 MHz on normal numbers and at 1590 MHz on NVFP4 operands, which
cost less energy; layer and products in turn at 1500 (benchmarks/results/layer_clocks_h200_2026-11-30.json). The layer
takes 1.04 times as long as its BF16 products when each runs alone, 1.12 times in turn (bench_h200_2026-11-30.json).

Ceilings, both measured here and now, on normal values (zeros run faster):
    copy rate      bytes read plus written per second by PyTorch's copy
    BF16 product   seconds of the library's product of a given shape

Does not: set clocks, threads or anything else of the machine.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Effort:
    """How long one row may take, after its first call."""

    seconds: float
    min_repeats: int
    max_repeats: int


SHORT = Effort(seconds=0.1, min_repeats=3, max_repeats=15)
FULL = Effort(seconds=1.0, min_repeats=7, max_repeats=101)
#: For ceilings, on which many rows hang.
_CEILING = Effort(seconds=0.3, min_repeats=7, max_repeats=101)
#: Calls that one CUDA graph holds at most, and the time beyond which more are of no use.
_CALLS_PER_GRAPH, _GRAPH_SECONDS = 8, 0.01
#: Blocks of each of several calls: what drifts over seconds is then the same for all.
_BLOCKS = 4


@dataclass(frozen=True)
class Prepared:
    """Something to be timed: `run(i)` makes `calls` calls."""

    run: Callable[[int], object]
    calls: int


class Machine:
    """A device with its ceilings, each measured once, when first asked for."""

    def __init__(
        self, device: torch.device, *, effort: Effort = SHORT, configs: Path = Path("configs")
    ) -> None:
        """Raises ValueError when the device is not there."""
        if device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"device {str(device)!r}: the benchmark knows cpu and cuda (cuda:1 for another GPU)"
            )
        if device.type == "cuda":
            present = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if (device.index or 0) >= present:
                raise ValueError(
                    f"device {str(device)!r}: {present or 'no'} CUDA GPU{'s' * (present != 1)} here; "
                    "--device cpu measures the processor"
                )
            device = torch.device("cuda", device.index or 0)
            torch.cuda.set_device(device)
        self.device = device
        self.effort = effort
        self.configs = configs
        self._products: dict[tuple[int, int, int], float] = {}

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def has_fp4(self) -> bool:
        """Whether the tensor cores multiply FP4 (Blackwell and later)."""
        return self.is_gpu and torch.cuda.get_device_capability(self.device) >= (10, 0)

    @property
    def emulation(self) -> str:
        """What stands in for FP4 products here, in one sentence."""
        if not self.is_gpu:
            return "no FP4 here: NVFP4 and MXFP4 products are FP32 products of the quantised operands"
        kind = "sm_{}{}".format(*torch.cuda.get_device_capability(self.device))
        how = "products of training are BF16 products of operands that are exact in BF16"
        if self.has_fp4:
            return f"FP4 tensor cores ({kind}) are timed under product/*/native; NVFP4 and MXFP4 {how}"
        return f"no FP4 tensor cores ({kind}): NVFP4 and MXFP4 {how}"

    @property
    def busy(self) -> str:
        """What other programs did on the processor in the minute before, where it leaves too little; else empty."""
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        needed = 1 if self.is_gpu else torch.get_num_threads()
        if load < 0.5 or load + needed < cores + 0.5:
            return ""
        return f"load {load:.1f} on {cores} cores in the minute before the first row; times may be longer than alone"

    def randn(self, *shape: int, seed: int = 0) -> Tensor:
        """BF16 normal values; the same for a seed on one kind of device."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(shape, generator=generator, device=self.device, dtype=torch.bfloat16)

    def seconds(self, call: Callable[[int], object], *, effort: Effort | None = None) -> float:
        """Median seconds of `call(i)`, i = 0, 1 ... choosing among tensors, after a first call."""
        return self.seconds_of(self.prepare(call), effort=effort)

    def seconds_of(self, prepared: Prepared, *, effort: Effort | None = None) -> float:
        """Median seconds of one call."""
        return self._medians([prepared], effort)[0]

    def seconds_in_turn(self, *prepared: Prepared) -> list[float]:
        """Median seconds of one call of each, call by call in turn: at the same clocks, whatever drifts."""
        return self._medians(prepared)

    def seconds_in_blocks(self, *prepared: Prepared) -> list[float]:
        """Median seconds of one call of each, in blocks in turn: the machine is the call's own when it is timed."""
        effort = Effort(self.effort.seconds / _BLOCKS, 1, self.effort.max_repeats)
        times: list[list[float]] = [[] for _ in prepared]
        for _ in range(_BLOCKS):
            for one, own in zip(prepared, times, strict=True):
                self._times([one.run], effort)  # until clocks and temperature are this call's
                own += self._times([one.run], effort)[0]
        return [statistics.median(own) / one.calls for own, one in zip(times, prepared, strict=True)]

    def prepare(self, call: Callable[[int], object]) -> Prepared:
        """`call` after a first call; on a GPU a graph of some calls, which keeps the memory that they use."""
        call(0)
        if not self.is_gpu:
            return Prepared(call, 1)
        once = self._clocked(lambda: call(0))
        calls = max(1, min(_CALLS_PER_GRAPH, int(_GRAPH_SECONDS / once)))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(calls):
                call(i)
        graph.replay()
        # A graph knows addresses alone: what the call reads has to live as long.
        return Prepared(lambda _, kept=call: graph.replay(), calls)

    def eager_seconds(self, call: Callable[[int], object]) -> float:
        """Median seconds of one of four calls in a row, without a graph: Python's launches count."""
        call(0)
        return self.seconds_of(Prepared(lambda _: [call(i) for i in range(4)], 4))

    def _medians(self, prepared: Sequence[Prepared], effort: Effort | None = None) -> list[float]:
        """Of one call of each; they take turns."""
        times = self._times([one.run for one in prepared], effort or self.effort)
        return [statistics.median(own) / one.calls for own, one in zip(times, prepared, strict=True)]

    def _times(self, runs: Sequence[Callable[[int], object]], effort: Effort) -> list[list[float]]:
        """Seconds of `runs`, which take turns; the effort is for each of them."""
        times: list[list[float]] = [[] for _ in runs]
        while (count := len(times[0])) < effort.min_repeats or (
            sum(map(sum, times)) < effort.seconds * len(runs) and count < effort.max_repeats
        ):
            for run, own in zip(runs, times, strict=True):
                own.append(self._clocked(lambda run=run: run(count)))
        return times

    def _clocked(self, call: Callable[[], object]) -> float:
        if not self.is_gpu:
            started = time.perf_counter()
            call()
            return time.perf_counter() - started
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000

    @functools.cached_property
    def matrix_size(self) -> int:
        """Rows and columns of the tensors that passes are timed on: several times the caches."""
        return 8192 if self.is_gpu else 4096

    @functools.cached_property
    def copy_rate(self) -> float:
        """Bytes read plus written per second.

        A GPU: the better median of a large tensor and of tensors of `matrix_size`. A CPU: the best single copy within
        a second, since others on the machine can only slow a copy down, and often slow most of them.
        """
        tensors = [self.randn(self.matrix_size, self.matrix_size, seed=i) for i in range(2)]
        num_bytes = tensors[0].nbytes
        if not self.is_gpu:
            return 2 * num_bytes / min(self._times([lambda i: tensors[i % 2].clone()], FULL)[0])
        others = [torch.empty_like(x) for x in tensors]
        rate = 2 * num_bytes / self.seconds(lambda i: others[i % 2].copy_(tensors[i % 2]), effort=_CEILING)
        memory = torch.cuda.get_device_properties(self.device).total_memory
        large = self.randn(min(2**30, memory // 32))
        other = torch.empty_like(large)
        return max(rate, 2 * large.nbytes / self.seconds(lambda _: other.copy_(large), effort=_CEILING))

    def ceilings(self) -> dict[str, Any]:
        """Those measured so far: {copy_bytes_per_second, bf16_product_tflops: {"MxNxK": rate}}."""
        rates = {
            f"{m}x{n}x{k}": 2 * m * n * k / seconds / 1e12 for (m, n, k), seconds in self._products.items()
        }
        copy = {"copy_bytes_per_second": self.copy_rate} if "copy_rate" in vars(self) else {}
        return {**copy, "bf16_product_tflops": rates}

    def bf16_product_seconds(self, m: int, n: int, k: int) -> float:
        """Seconds of x [m, k] w [n, k]^T in BF16."""
        if (m, n, k) not in self._products:
            x, w = self.randn(m, k), self.randn(n, k, seed=1)
            self._products[m, n, k] = self.seconds(lambda _: x @ w.t(), effort=_CEILING)
        return self._products[m, n, k]
