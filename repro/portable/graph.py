"""CUDA graphs of what a training step repeats: the launches of a micro batch recorded once, then replayed.

A small model's micro batch is some thousand launches, and Python takes longer to make them than the GPU to run them.
A graph makes them all in one call, with the same kernels on the same shapes: the bits are those of the eager path.
Three things change from replay to replay and lie in fixed tensors that are written before each: tokens, the seeds of
stochastic rounding, and signs that a recipe draws anew (repro.recipes.recording). Weights, moments and gradient sums
keep their addresses anyway.

The first call of a shape runs eagerly (kernels are compiled and libraries set up then, which a capture cannot hold),
the second one is recorded. Not recorded: clipping and AdamW, the exchange of gradients between processes, copies of
batches; Python queues these while the GPU replays, so a graph would save nothing. Not for a CPU.

Set REPRO_CUDA_GRAPHS=0 to run without.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from repro.recipes.context import RunContext, count_nonfinite
from repro.recipes.recording import Recording

log = logging.getLogger("repro.portable")

SWITCH = "REPRO_CUDA_GRAPHS"


class Graphs:
    """What the graphs of one model share: stream, memory pool, random streams; and whether there are any.

    Graphs of one pool overwrite each other's memory, results apart: they are replayed one after the other, on the
    one stream on which also everything around them runs.
    """

    def __init__(self, context: RunContext, *, num_layers: int, device: torch.device) -> None:
        """num_layers: quantised layers of the model."""
        self.context, self.device, self.num_layers = context, device, num_layers
        self.is_on = device.type == "cuda" and context.observer is None
        if self.is_on and os.environ.get(SWITCH) == "0":
            log.info("no CUDA graphs (%s=0)", SWITCH)
            self.is_on = False
        if self.is_on:
            self.stream = torch.cuda.Stream(device)
            self.pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def run(self) -> Iterator[None]:
        """Work inside goes to the stream of the graphs, after what came before and before what comes after."""
        if not self.is_on:
            yield
            return
        outer = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(outer)
        with torch.cuda.stream(self.stream):
            yield
        outer.wait_stream(self.stream)

    def give_up(self, reason: BaseException) -> None:
        """No graphs from here on; says why."""
        log.warning(
            "no CUDA graphs, same numbers but slower: a capture failed (%s)", str(reason).splitlines()[0]
        )
        self.is_on = False


class Replayed:
    """A function of a batch of tokens that is captured for every shape it meets a second time."""

    def __init__(self, function: Callable[[Tensor], list[Tensor]], graphs: Graphs) -> None:
        """function: [B, S + 1] int64 on the device -> tensors; no side effects but `RunContext.note_amax`."""
        self._function, self._graphs = function, graphs
        self._calls: dict[torch.Size, _Call] = {}

    def __call__(self, tokens: Tensor) -> list[Tensor]:
        """The function's tensors. Those of a replay lie where the next replay puts its own: use them before."""
        if not self._graphs.is_on:
            return self._function(tokens)
        call = self._calls.get(tokens.shape)
        if call is None:
            call = self._calls[tokens.shape] = _Call(self._function, self._graphs)
            return call.run(tokens)
        if not call.is_captured:
            try:
                call.capture(tokens)
            except RuntimeError as reason:
                self._graphs.give_up(reason)
                return self._function(tokens)
        return call.replay(tokens)


class _Call:
    """The function for one shape of tokens: random streams, and its graph after `capture`."""

    def __init__(self, function: Callable[[Tensor], list[Tensor]], graphs: Graphs) -> None:
        self._function, self._graphs, self._context = function, graphs, graphs.context
        self._recording = Recording(graphs.num_layers, graphs.device)
        self.is_captured = False

    def run(self, tokens: Tensor) -> list[Tensor]:
        """Eagerly, with the random streams in memory, so that all is compiled that a capture will launch."""
        results, count = self._record(tokens)
        self._note(count)
        return results

    def capture(self, tokens: Tensor) -> None:
        """Records the launches and runs none."""
        self._tokens = tokens.clone()
        self._graph = torch.cuda.CUDAGraph()
        # Only this thread must not wait for the device: the reader of batches and NCCL's watchdog call CUDA too.
        with torch.cuda.graph(
            self._graph,
            pool=self._graphs.pool,
            stream=self._graphs.stream,
            capture_error_mode="thread_local",
        ):
            self._results, self._count = self._record(self._tokens)
        self.is_captured = True

    def replay(self, tokens: Tensor) -> list[Tensor]:
        """The recorded launches on these tokens, with the streams of the context's step and micro batch."""
        self._tokens.copy_(tokens)
        self._recording.fill(self._context)
        self._graph.replay()
        self._note(self._count)
        return self._results

    def _record(self, tokens: Tensor) -> tuple[list[Tensor], Tensor | None]:
        with self._context.recorded_by(self._recording) as amaxes:
            results = self._function(tokens)
            return results, count_nonfinite(amaxes) if amaxes else None

    def _note(self, count: Tensor | None) -> None:
        if count is not None:
            self._context.note_nonfinite(count)
