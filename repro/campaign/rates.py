"""How long a task takes: assumed from the campaign's file at first, measured as soon as one of its class has ended.

Seconds of training = start + tokens / rate. A rate belongs to a cost class (family and format): tokens a second of
one run. An assumed one is divided among the runs that share a GPU; a measured one is taken as it was, because a
campaign shares its GPUs in one way from its start to its end. `start` covers imports, compilation and the first step;
a class that ran before on the machine finds its compiled parts cached.

Does not: decide (repro.campaign.driver).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from repro.campaign.tasks import Task


@dataclass
class Rates:
    """Assumptions (`rates` of a campaign file; `tokens_per_second` of a GPU by class) and what was measured since.

    `sharing` is how much more a GPU does when several runs share it: a GPU's total over that of one run alone.
    """

    tokens_per_second: Mapping[str, float]
    start_seconds: float
    evaluate_seconds: float
    measure_seconds: float
    sharing: Mapping[int, float] = field(default_factory=dict)
    safety: float = 1.1
    measured: dict[str, float] = field(default_factory=dict)
    _tokens: dict[str, int] = field(default_factory=dict)  # of the segment that each was measured on

    def rate(self, cost_class: str, per_gpu: int) -> float:
        """Tokens a second of one run of the class while `per_gpu` runs share its GPU.

        Raises ValueError naming a class for which nothing is assumed.
        """
        if cost_class in self.measured:
            return self.measured[cost_class]
        if cost_class not in self.tokens_per_second:
            known = ", ".join(sorted(self.tokens_per_second))
            raise ValueError(f"rates.tokens_per_second: nothing for {cost_class!r}; known: {known}")
        total = self.tokens_per_second[cost_class] * self.sharing.get(per_gpu, 1.0)
        return total / per_gpu

    def seconds(self, task: Task, per_gpu: int, *, tokens_done: int = 0) -> float:
        """Expected seconds of what is left of a task, with the margin of safety."""
        if task.kind == "evaluate":
            return self.safety * self.evaluate_seconds
        if task.kind == "measure":
            return self.safety * self.measure_seconds
        seconds = (task.tokens - tokens_done) / self.rate(task.cost_class, per_gpu)
        return self.safety * (self.start_seconds + seconds)

    def learn(self, task: Task, tokens_per_second: float) -> None:
        """Take in the rate of a segment that ended.

        Its first step, which compiles, counts in it: one of seconds is left out, and a short fork does not replace
        what a longer segment told.
        """
        if task.tokens > 5 * tokens_per_second and task.tokens >= self._tokens.get(task.cost_class, 0):
            self.measured[task.cost_class] = tokens_per_second
            self._tokens[task.cost_class] = task.tokens
