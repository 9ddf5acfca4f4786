"""What all quantised layers of one training run share: where the run is, its random streams, its counters.

Sections 4.2 and 4.4 of arXiv 2509.25149. Stochastic rounding draws its bits, and the Hadamard transform its signs, as
a pure function of (run seed, step, microbatch, layer, GEMM, operand): a step can be replayed alone, a resumed run is
bit-identical, two equal tensors get different noise, and no random generator has a state that a checkpoint would
have to carry. The trainer owns the one `RunContext` of a run and sets `step` and `microbatch`; the backward pass of a
microbatch must end before they move on. Evaluation between steps that uses a recipe with stochastic rounding in the
forward pass should set a microbatch of its own (e.g. a negative one).

Does not: draw from or seed torch's generators, know a recipe, or count anything about BF16 operands (they have no
amax; the loss shows what overflows there).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from repro.numerics.hadamard import sign_vector
from repro.numerics.random_bits import derive_seed

if TYPE_CHECKING:
    from repro.numerics.operand import Operand
    from repro.recipes.operands import OperandPlan

Signs = Literal["none", "fixed", "per_transform"]

#: observer(layer name, "fprop" | "dgrad" | "wgrad", "x" | "w" | "g", original, operand, plan): sees each operand that
#: enters a GEMM. `original` is the tensor it was made from: x [T, K] and g [T, N] in BF16, w [N, K] in FP32.
Observer = Callable[[str, str, str, Tensor, "Operand", "OperandPlan"], None]

#: Amaxes are kept as they come and looked at once a step; beyond this many they are folded into a count.
_MAX_PENDING = 4096


class RunContext:
    """The state that the quantised layers of one run read.

    Attributes:
        run_seed: fixes every random bit and sign of the run.
        microbatch: index within the step, set by the trainer before each forward pass.
        observer: called with every operand that enters a GEMM; None in training. See `Observer`.
    """

    def __init__(self, run_seed: int, *, observer: Observer | None = None) -> None:
        self.run_seed = run_seed
        self.microbatch = 0
        self.observer = observer
        self._step = 0
        self._amaxes: list[Tensor] = []
        self._counted: Tensor | None = None
        self._shared_signs: dict[tuple[int, str, torch.device], Tensor | None] = {}

    @property
    def step(self) -> int:
        """Index of the optimizer step in the run lineage. Setting it starts the step's count of `nonfinite`."""
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        self._step = value
        self._amaxes.clear()
        self._counted = None

    def seed(self, layer: str, gemm: str, operand: str) -> int:
        """64-bit seed of the stochastic-rounding bits of one operand at the current step and microbatch."""
        return derive_seed(self.run_seed, "sr", self._step, self.microbatch, layer, gemm, operand)

    def signs(self, size: int, kind: Signs, layer: str, gemm: str, device: torch.device) -> Tensor | None:
        """Signs of one GEMM's transform (both operands take the same), [size]; None for a transform without signs.

        "fixed" is one vector for all layers and the whole run (Section 4.2); "per_transform" is fresh for each layer,
        GEMM, step and microbatch (E.4.3).
        """
        if kind == "per_transform":
            return self._fresh_signs(size, layer, gemm).to(device)
        key = (size, kind, device)
        if key not in self._shared_signs:
            self._shared_signs[key] = None if kind == "none" else sign_vector(size, kind="fixed").to(device)
        return self._shared_signs[key]

    def _fresh_signs(self, size: int, layer: str, gemm: str) -> Tensor:
        """Sign i is bit i of 64-bit seeds: a few microseconds, where a Philox stream takes hundreds in PyTorch."""
        bits = 0
        for word in range(-(-size // 64)):
            seed = derive_seed(self.run_seed, "signs", self._step, self.microbatch, layer, gemm, word)
            bits |= seed << (64 * word)
        return torch.tensor([-1.0 if bits >> i & 1 else 1.0 for i in range(size)])

    def note_amax(self, amax: Tensor) -> None:
        """Remembers one FP32 scalar; no arithmetic and no device synchronisation here."""
        self._amaxes.append(amax)
        if len(self._amaxes) >= _MAX_PENDING:
            self._fold()

    @property
    def nonfinite(self) -> int:
        """How many quantised operands of this step had an amax of Inf or NaN. Reads back from the device once."""
        self._fold()
        return 0 if self._counted is None else int(self._counted)

    def _fold(self) -> None:
        if self._amaxes:
            count = (~torch.isfinite(torch.stack(self._amaxes))).sum()
            self._counted = count if self._counted is None else self._counted + count
            self._amaxes.clear()
