"""Cases and arms to judge: a claim whose runs are large enough, too small, or stopped too early."""

from __future__ import annotations

from repro.analysis.claims_file import Claim
from repro.analysis.noise import Noise
from repro.analysis.verdicts import Arm, Case, Reach, Scale

QUIET = Noise(sd=0.01, dof=30, num_runs=40)
LOUD = Noise(sd=5.0, dof=30, num_runs=40)
REACH = Reach("the paper shows it there", parameters=1e9, tokens_per_parameter=100)
LARGE = Scale("paper", 2_000_000_000, 10**12)
SMALL = Scale("tiny", 600_000, 80_000)
EARLY = Scale("proxy", 2_000_000_000, 2_000_000_000)  # the model is large enough, its horizon is not


def case(scale: Scale = LARGE, kind: str = "order") -> Case:
    """A statement of that kind, judged on runs of that size."""
    return Case(Claim("C0", "s", "fig0", kind, "a statement"), "fig0", scale, REACH, "the paper's words")


def arms(**values: float | None) -> dict[str, Arm]:
    """Arms by key, each with its end gap in per cent; None for a run without one."""
    return {key: Arm(key, value) for key, value in values.items()}


ORDER = [["a"], ["b"], ["c"]]
IN_ORDER = arms(a=-0.5, b=-1.0, c=-1.5)
