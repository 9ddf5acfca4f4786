"""What all quantised layers of one training run share: where the run is, its random streams, its counters.

Sections 4.2 and 4.4 of arXiv 2509.25149. Stochastic rounding draws its bits, and the Hadamard transform its signs, as
a pure function of (run seed, step, microbatch, layer, GEMM, operand): a step can be replayed alone, a resumed run is
bit-identical, two equal tensors get different noise, and no random generator has a state that a checkpoint would
have to carry. The trainer owns the one `RunContext` of a run and sets `step` and `microbatch`, or leaves that to
`follow_training`; a backward pass draws as of its forward pass, wherever they stand by then. Evaluation between steps
that uses a recipe with stochastic rounding in the forward pass should set a microbatch of its own (e.g. a negative
one).

Does not: draw from or seed torch's generators, know a recipe, or count anything about BF16 operands (they have no
amax; the loss shows what overflows there).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from repro.numerics.hadamard import sign_vector
from repro.numerics.random_bits import derive_seed
from repro.recipes.arguments import as_integer, shown
from repro.recipes.last_input import LastInput

if TYPE_CHECKING:
    from repro.numerics.operand import Operand
    from repro.recipes.operands import OperandPlan
    from repro.recipes.recording import Recording

Signs = Literal["none", "fixed", "per_transform"]

#: observer(layer name, "fprop" | "dgrad" | "wgrad", "x" | "w" | "g", original, operand, plan): sees each operand that
#: enters a GEMM. `original` is the tensor it was made from: x [T, K] and g [T, N] in BF16, w [N, K] in FP32.
Observer = Callable[[str, str, str, Tensor, "Operand", "OperandPlan"], None]

#: Amaxes are kept as they come and looked at once a step; beyond this many they are folded into a count.
_MAX_PENDING = 4096


class _Position:
    """`step` or `microbatch` of a context, kept there as `_step` and `_microbatch`.

    No property: PyTorch before 2.13 compiles setting one as if its setter kept the value and did nothing else.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, context: RunContext, owner: type) -> int:
        return getattr(context, f"_{self._name}")

    def __set__(self, context: RunContext, value: int) -> None:
        # A compiled graph would do this after its last layer: the compiler puts what Python keeps at the end.
        if torch.compiler.is_compiling():
            from repro.recipes import compiled

            compiled.interrupt()
        if type(value) is not int:
            value = as_integer(value, f"context.{self._name}")
        setattr(context, f"_{self._name}", value)
        if self._name == "step":
            context._amaxes.clear()
            context._counted = None


class RunContext:
    """The state that the quantised layers of one run read.

    Attributes:
        run_seed: fixes every random bit and sign of the run.
        step: index of the optimizer step in the run lineage. Setting it starts the step's count of `nonfinite`.
        microbatch: index within the step, set by the trainer before each forward pass.
        observer: called with every operand that enters a GEMM; None in training. See `Observer`.
        emulate_fp8: whether FP8 products are emulated also where the card has them; slower by an order of magnitude.
        last_input: what the layers that take the same input share.

    Raises TypeError where run_seed, step or microbatch is given as something else than an integer.
    """

    def __init__(self, run_seed: int, *, observer: Observer | None = None, emulate_fp8: bool = False) -> None:
        self.run_seed = as_integer(run_seed, "run_seed")
        self.observer = observer
        self.emulate_fp8 = emulate_fp8
        self.last_input = LastInput()
        self._step = self._microbatch = 0
        self._amaxes: list[Tensor] = []
        self._counted: Tensor | None = None
        self._shared_signs: dict[tuple[int, str, torch.device], Tensor | None] = {}
        self._recording: Recording | None = None

    step = _Position()
    microbatch = _Position()

    @property
    def moment(self) -> tuple[int, int]:
        """(step, microbatch): where the run is; see `at`."""
        return self._step, self._microbatch

    @contextmanager
    def at(self, moment: tuple[int, int]) -> Iterator[None]:
        """Streams are those of `moment` meanwhile; the step's counts go on."""
        now = self.moment
        self._step, self._microbatch = moment
        try:
            yield
        finally:
            self._step, self._microbatch = now

    @property
    def recording(self) -> Recording | None:
        """What streams come from now; see `recorded_by`."""
        return self._recording

    def seed(self, layer: str, gemm: str, operand: str) -> int | Tensor:
        """64-bit seed of the stochastic-rounding bits of one operand at the current step and microbatch.

        A number; under `recorded_by` one int64 on the device that holds it.
        """
        if self._recording is not None:
            return self._recording.seed(self, layer, gemm, operand)
        return self.derived_seed(layer, gemm, operand)

    def derived_seed(self, layer: str, gemm: str, operand: str) -> int:
        """The seed as a number, always."""
        return derive_seed(self.run_seed, "sr", self._step, self._microbatch, layer, gemm, operand)

    def signs(self, size: int, kind: Signs, layer: str, gemm: str, device: torch.device) -> Tensor | None:
        """Signs of one GEMM's transform (both operands take the same), [size]; None for a transform without signs.

        "fixed" is one vector for all layers and the whole run (Section 4.2); "per_transform" is fresh for each layer,
        GEMM, step and microbatch (E.4.3).
        """
        if kind == "per_transform" and self._recording is not None:
            return self._recording.signs(self, size, layer, gemm)
        if kind == "per_transform":
            return self.fresh_signs(size, layer, gemm).to(device)
        key = (size, kind, device)
        if key not in self._shared_signs:
            self._shared_signs[key] = None if kind == "none" else sign_vector(size, kind="fixed").to(device)
        return self._shared_signs[key]

    def fresh_signs(self, size: int, layer: str, gemm: str) -> Tensor:
        """Signs of kind "per_transform", FP32 [size] on the CPU.

        Sign i is bit i of 64-bit seeds: a few microseconds, where a Philox stream takes hundreds in PyTorch.
        """
        bits = 0
        for word in range(-(-size // 64)):
            seed = derive_seed(self.run_seed, "signs", self._step, self._microbatch, layer, gemm, word)
            bits |= seed << (64 * word)
        return torch.tensor([-1.0 if bits >> i & 1 else 1.0 for i in range(size)])

    def note_amax(self, amax: Tensor) -> None:
        """Remembers one FP32 scalar; no arithmetic and no device synchronisation here."""
        self._amaxes.append(amax)
        if len(self._amaxes) >= _MAX_PENDING and self._recording is None:
            self._fold()

    @contextmanager
    def recorded_by(self, recording: Recording) -> Iterator[list[Tensor]]:
        """Streams come from `recording`; the amaxes noted meanwhile go to the list that this gives, uncounted."""
        earlier, amaxes = self._amaxes, []
        self._recording, self._amaxes = recording, amaxes
        try:
            yield amaxes
        finally:
            self._recording, self._amaxes = None, earlier

    def note_nonfinite(self, count: Tensor) -> None:
        """Adds an int64 scalar to `nonfinite`: operands that were counted elsewhere. No synchronisation."""
        self._counted = count.clone() if self._counted is None else self._counted + count

    @property
    def nonfinite(self) -> int:
        """How many quantised operands of this step had an amax of Inf or NaN. Reads back from the device once."""
        self._fold()
        return 0 if self._counted is None else int(self._counted)

    def _fold(self) -> None:
        if self._amaxes:
            self.note_nonfinite(count_nonfinite(self._amaxes))
            self._amaxes.clear()


def check_context(context: object) -> None:
    """Raises TypeError for anything but a `RunContext`."""
    if not isinstance(context, RunContext):
        raise TypeError(f"context is a RunContext, not {shown(context)}: RunContext(run_seed)")


def count_nonfinite(amaxes: Sequence[Tensor]) -> Tensor:
    """How many of some FP32 scalars are Inf or NaN: int64 scalar on their device."""
    return (~torch.isfinite(torch.stack(tuple(amaxes)))).sum()
