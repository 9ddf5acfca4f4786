"""The rule of orders: which run ends better than which beyond the seed noise, or that something goes one way.

    order     reproduced      every claimed "better" exceeds the noise; every claimed "equal" is closer than its
                              margin by more than the noise
              contradicted    a "better" is reversed, or an "equal" is apart, by more than the noise
              unresolved      neither; nothing was repeated; or out of reach with every difference inside the noise
              not measurable  the model is out of reach although differences exceed the noise; or the horizon is, and
                              a "better" is reversed or only "equal" is claimed: named, and not counted
              not measured    a run is not recorded or has no value

Where a line does not say "out of reach", the runs are within reach (repro.analysis.rules says what reach is). A
horizon shorter than the least leaves an order open to one side only: seen beyond the noise, it is there already;
reversed, it is what the paper's own curves can show as early. (Set before any run of the proxy tier was trained.)

Pairs and their confidence intervals: repro.analysis.comparisons. The first and the last of an order are not judged;
where they share more seeds than the neighbours do, their difference is told too, with a 95 % interval by itself. Does
not: judge a stated number or an event (repro.analysis.rules), read files or choose margins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from repro.analysis.comparisons import Difference, basis, compare, difference, pairs_of
from repro.analysis.noise import Noise
from repro.analysis.rules import EARLY, NO_REPLICAS, OUT_OF_REACH, not_recorded
from repro.analysis.verdicts import (
    CONTRADICTED,
    NOT_MEASURABLE,
    NOT_MEASURED,
    REPRODUCED,
    UNRESOLVED,
    Arm,
    Case,
    Verdict,
    words_of,
)


def order(
    case: Case,
    arms: Mapping[str, Arm],
    groups: Sequence[Sequence[str]],
    *,
    equal_within: float | None,
    noise: Noise | None,
    comparisons: int | None = None,
) -> Verdict:
    """A ranking, best first.

    Args:
        arms: key -> arm.
        groups: keys in claimed order; members of one group are claimed equal when `equal_within` (%-points) is given,
            else nothing is claimed between them.
        comparisons: of the whole claim, where this order is one of several; None: the pairs of this one.
    """
    if unrecorded := not_recorded(case, arms.values()):
        return unrecorded
    keys = [key for group in groups for key in group]
    ours = words_of(sorted((arms[key] for key in keys), key=lambda arm: -(arm.rank_value or 0.0)))
    numbers: dict[str, Any] = {"values": {key: arms[key].value for key in keys}}
    if lost := [arms[key].name for key in keys if arms[key].rank_value is None]:
        return case.verdict(NOT_MEASURED, ours, f"no end value of {', '.join(lost)}", **numbers)
    pairs = pairs_of(groups, equal_within)
    missing = case.reach.missing(case.scale)
    if noise is None:
        if missing:
            return case.verdict(NOT_MEASURABLE, ours, f"{OUT_OF_REACH} ({missing})", **numbers)
        return case.verdict(UNRESOLVED, ours, NO_REPLICAS, **numbers)
    comparisons = comparisons or len(pairs)
    seen: dict[str, list[tuple[str, bool]]] = {"held": [], "failed": [], "inside": []}
    differences = []
    for better, worse, margin in pairs:
        outcome, found, words = compare(arms[better], arms[worse], margin, noise, comparisons=comparisons)
        seen[outcome].append((words, margin is not None))
        differences.append(found)
    rest = f"({basis(differences, noise)})"
    if words := _first_to_last(arms, groups, differences, noise):
        rest += f"; by itself, not judged: {words}"
    numbers |= {"noise_sd": noise.sd if math.isfinite(noise.sd) else None}
    numbers |= {outcome: [words for words, _ in found] for outcome, found in seen.items()}
    held, failed = numbers["held"], numbers["failed"]
    inside = _told(seen["inside"], "interval includes zero", f"neither within {equal_within} nor beyond it")
    if missing and not any(margin is None for *_, margin in pairs):
        return case.verdict(NOT_MEASURABLE, ours, f"{OUT_OF_REACH} ({missing})", **numbers)
    if case.reach.missing_model(case.scale):
        if beyond := [found.words() for found in differences if found.is_beyond]:
            reason = f"apart by more than the noise here: {', '.join(beyond)}; {OUT_OF_REACH} ({missing})"
            return case.verdict(NOT_MEASURABLE, ours, reason, **numbers)
        reason = f"every interval includes zero {rest}; {OUT_OF_REACH} ({missing})"
        return case.verdict(UNRESOLVED, ours, reason, **numbers)
    if missing:
        if failed:
            other = _told(seen["failed"], "reversed here", f"further apart than {equal_within} here")
            reason = f"{other} {rest}; {OUT_OF_REACH} ({missing})"
            return case.verdict(NOT_MEASURABLE, ours, reason, **numbers)
        if inside:
            there = f"seen: {'; '.join(held)}; " if held else ""
            reason = f"{there}{inside} {rest}; {EARLY} ({missing})"
            return case.verdict(UNRESOLVED, ours, reason, **numbers)
        reason = f"{'; '.join(held)} {rest}; {EARLY} ({missing})"
        return case.verdict(REPRODUCED, ours, reason, **numbers)
    if failed:
        return case.verdict(CONTRADICTED, ours, f"{'; '.join(failed)} {rest}", **numbers)
    if inside:
        return case.verdict(UNRESOLVED, ours, f"{inside} {rest}", **numbers)
    return case.verdict(REPRODUCED, ours, f"{'; '.join(held)} {rest}", **numbers)


def _first_to_last(
    arms: Mapping[str, Arm], groups: Sequence[Sequence[str]], judged: Sequence[Difference], noise: Noise
) -> str:
    """Differences of the first and the last of an order that share more seeds than any pair that is judged does.

    Only neighbours are judged; without this, seeds that only the two ends have would say nothing.
    """
    if len(groups) < 3:
        return ""
    ends = [difference(arms[a], arms[b], noise, comparisons=1) for a in groups[0] for b in groups[-1]]
    most = max([1, *(found.seeds for found in judged)])
    return "; ".join(found.words() for found in ends if found.seeds > most)


def _told(pairs: Sequence[tuple[str, bool]], of_orders: str, of_equals: str) -> str:
    """Pairs in words, those of an order and those that are claimed equal (true) each under its heading."""
    parts = []
    for heading, equal in ((of_orders, False), (of_equals, True)):
        if words := [words for words, is_equal in pairs if is_equal is equal]:
            parts.append(f"{heading}: {'; '.join(words)}")
    return "; ".join(parts)


def direction(case: Case, ours: str, words: str, outcome: str, **numbers: Any) -> Verdict:
    """A statement that something goes one way, judged as an order is.

    Args:
        outcome: "held" beyond the noise, "failed" (the other way beyond the noise) or "inside" it.
        words: what was seen, with its numbers, and beyond or inside which noise (of seeds, or of one run's points).
    """
    verdict = {"held": REPRODUCED, "failed": CONTRADICTED, "inside": UNRESOLVED}[outcome]
    missing = case.reach.missing(case.scale)
    if not missing:
        return case.verdict(verdict, ours, words, **numbers)
    if outcome == "failed" or (outcome == "held" and case.reach.missing_model(case.scale)):
        return case.verdict(NOT_MEASURABLE, ours, f"{words}; {OUT_OF_REACH} ({missing})", **numbers)
    lacking = OUT_OF_REACH if case.reach.missing_model(case.scale) else EARLY
    return case.verdict(verdict, ours, f"{words}; {lacking} ({missing})", **numbers)
