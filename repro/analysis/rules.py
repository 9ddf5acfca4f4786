"""The rules by which a tier's numbers become verdicts, and never say more than they carry.

    exact     reproduced      computed here and equal to the stated value within its rounding
              contradicted    computed and not equal
    value     reproduced      |ours - paper| <= tolerance and the effect exceeds the seed noise (a stated 0: the
                              noise is smaller than the tolerance)
              contradicted    |ours - paper| exceeds tolerance + noise
              unresolved      neither; or nothing was repeated with another seed
              not measurable  out of reach
              not measured    a run diverged, or has no value
    order     repro.analysis.orders
    event     reproduced      every run, of all seeds, ended as stated: finite, or diverged
              contradicted    some run ended otherwise, with a model as large as the paper's
              unresolved      some run ended otherwise, with a smaller model; or out of reach and a run that should
                              stay finite diverged
              not measurable  out of reach
              (that a loss bends or jumps, C7, is an event judged as an order is: orders.direction)
    hardware  not measured    without that hardware
    all       not measured    a run is not recorded

Where a line does not say "out of reach", the runs are within reach. What is missing comes first: a claim that lacks a
run or a number is not measured, also out of reach, also in one of several parts unless another is contradicted; "not
measurable" always stands beside our numbers, a value with its interval wherever anything was repeated.

Reach: each claim names in its paper.yaml the least number of parameters, tokens, or tokens a parameter at which the
paper's own curves show the effect, and says why. A statement about a number (value) belongs to the paper's own model
and token count; an order may show on a smaller model; a divergence that did not come on a smaller model is no
contradiction. A model smaller than the least shows neither a statement nor its opposite. (Set before any run of the
proxy tier was trained.)

"Out of reach" is said as "not measurable at this size", with what the runs lack. Noise and its limit:
repro.analysis.noise. Does not: judge an order or a direction (repro.analysis.orders), read files or choose
tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from repro.analysis.claims_file import Claim
from repro.analysis.noise import Noise, own_limit
from repro.analysis.verdicts import (
    CONTRADICTED,
    NOT_MEASURABLE,
    NOT_MEASURED,
    REPRODUCED,
    UNRESOLVED,
    Arm,
    Case,
    Verdict,
    human,
    words_of,
)

# What a reason says, in the same words everywhere, so that a combination can say it once.
OUT_OF_REACH = "not measurable at this size"
EARLY = "at this size, earlier than in the paper"
NO_REPLICAS = "no seed replicas at this tier, so no estimate of the noise"
_UNRECORDED = "not recorded: "
# Share of the paper's parameters and tokens from which on a run counts as one of the paper's size.
SAME_SIZE = 0.8


def exact(
    claim: Claim, *, element: str, tier: str, paper: str, ours: str, holds: bool, reason: str
) -> Verdict:
    """A statement of arithmetic: computed here, holds or does not, at every tier."""
    verdict = REPRODUCED if holds else CONTRADICTED
    return Verdict(claim.id, element, claim.kind, claim.statement, paper, ours, verdict, reason, tier)


def not_measured(claim: Claim, *, element: str, tier: str, paper: str, ours: str, reason: str) -> Verdict:
    """A statement that nothing of this tier speaks about."""
    return Verdict(claim.id, element, claim.kind, claim.statement, paper, ours, NOT_MEASURED, reason, tier)


def not_recorded(case: Case, arms: Iterable[Arm] = ()) -> Verdict | None:
    """The verdict on a statement whose runs are not all recorded, with what is known of its `arms`; None when they
    are."""
    if not case.scale.unrecorded:
        return None
    known = words_of([arm for arm in arms if arm.rank_value is not None])
    return case.verdict(NOT_MEASURED, known or "-", unrecorded_words(case.scale.unrecorded))


def unrecorded_words(names: Iterable[str]) -> str:
    """The reason of a verdict that lacks these runs; each is named once."""
    return _UNRECORDED + ", ".join(dict.fromkeys(names))


def value(
    case: Case, arms: Sequence[Arm], paper_values: Sequence[float], *, tolerance: float, noise: Noise | None
) -> Verdict:
    """Numbers against the paper's, one to one; every one has to agree."""
    limits = [_limit(arm, noise, comparisons=len(arms)) for arm in arms]
    ours, basis = words_of(arms, limits), _basis(arms, noise)
    numbers = {
        "values": {arm.name: arm.value for arm in arms},
        "limits": _finite(limits),
        "tolerance": tolerance,
    }
    if unread := _unread(case, arms, limits, basis, numbers):
        return unread
    off, weak = [], []
    for arm, limit, stated in zip(arms, limits, paper_values, strict=True):
        assert arm.value is not None
        assert limit is not None
        distance = abs(arm.value - stated)
        if distance > tolerance + limit:
            off.append(f"{arm.name} is {distance:.2f} points from {stated:+.2f}")
        elif distance > tolerance or (limit > tolerance if stated == 0 else abs(arm.value) <= limit):
            weak.append(f"{arm.name} {arm.value:+.2f} with a noise limit of {limit:.2g}")
    if off:
        return case.verdict(
            CONTRADICTED, ours, f"{'; '.join(off)}, tolerance {tolerance} ({basis})", **numbers
        )
    if weak:
        return case.verdict(UNRESOLVED, ours, f"{'; '.join(weak)} ({basis})", **numbers)
    return case.verdict(REPRODUCED, ours, f"within {tolerance} of the paper ({basis})", **numbers)


def bound(case: Case, arm: Arm, *, above: float, noise: Noise | None, windows: int = 1) -> Verdict:
    """A number that is stated to stay above a limit.

    Args:
        windows: of how many places `arm` is the lowest: chosen so, it lies below only by more than the noise of
            that many comparisons; above, it speaks for all of them.
    """
    limit = _limit(arm, noise)
    numbers = {"values": {arm.name: arm.value}, "limits": _finite([limit]), "above": above}
    if unread := _unread(case, [arm], [limit], _basis([arm], noise), numbers):
        return unread
    assert arm.value is not None
    held = arm.value > above
    needed = limit if held else _limit(arm, noise, comparisons=windows)
    assert needed is not None
    of = "" if held or windows == 1 else f" of {windows} comparisons"
    noise_words = f"the noise limit{of} {needed:.2g} ({_basis([arm], noise)})"
    if abs(arm.value - above) <= needed:
        reason = f"{arm.name} closer to {above} than {noise_words}"
        return case.verdict(UNRESOLVED, arm.words(limit), reason, **numbers)
    reason = f"{arm.name} {'above' if held else 'below'} {above} by more than {noise_words}"
    return case.verdict(REPRODUCED if held else CONTRADICTED, arm.words(limit), reason, **numbers)


def event(
    case: Case, arms: Mapping[str, Arm], stays_finite: Mapping[str, bool], *, paper_parameters: float
) -> Verdict:
    """Which runs end and which diverge, each with all its seeds: `stays_finite` is the statement, key by key."""
    if unrecorded := not_recorded(case, arms.values()):
        return unrecorded
    ours = "; ".join(arms[key].end_words() for key in stays_finite)
    other = {key: words for key, finite in stays_finite.items() if (words := _otherwise(arms[key], finite))}
    names = ", ".join(other.values())
    broke = any(stays_finite[key] for key in other)
    size = human(case.scale.parameters)
    if missing := case.reach.missing(case.scale):
        if broke:
            reason = f"{names} ended otherwise than stated; {OUT_OF_REACH} ({missing})"
            return case.verdict(UNRESOLVED, ours, reason)
        return case.verdict(NOT_MEASURABLE, ours, f"{OUT_OF_REACH} ({missing})")
    if not other:
        return case.verdict(REPRODUCED, ours, f"every run ended as stated, with {size} parameters")
    if case.scale.parameters < SAME_SIZE * paper_parameters:
        reason = f"{names} ended otherwise, but with {size} parameters, not {human(paper_parameters)}"
        return case.verdict(UNRESOLVED, ours, reason)
    return case.verdict(CONTRADICTED, ours, f"{names} ended otherwise")


def combine(*parts: Verdict) -> Verdict:
    """One verdict of a statement with several parts: the weakest decides, what each says is kept once."""
    rank = [CONTRADICTED, NOT_MEASURED, NOT_MEASURABLE, UNRESOLVED, REPRODUCED]
    worst = min(parts, key=lambda part: rank.index(part.verdict))
    # All parts lack the same reach: it is said once, at the end.
    lost = [part.reason.removeprefix(_UNRECORDED) for part in parts if part.reason.startswith(_UNRECORDED)]
    unrecorded = unrecorded_words(name for names in lost for name in names.split(", ")) if lost else ""
    others = [part for part in parts if not part.reason.startswith(_UNRECORDED)]
    own, reach = zip(*map(_split_reach, [unrecorded, *(part.reason for part in others)]), strict=True)
    return replace(
        parts[0],
        ours="; ".join(dict.fromkeys(part.ours for part in parts if part.ours != "-")) or "-",
        verdict=worst.verdict,
        reason="; ".join(text for text in dict.fromkeys([*own, *_strongest(reach)]) if text),
        numbers={f"part{i}": part.numbers for i, part in enumerate(parts, start=1)},
    )


def _otherwise(arm: Arm, stays_finite: bool) -> str:
    """The arm, with how many of its seeds if not all, where any ended otherwise than stated; else ""."""
    number = arm.num_diverged if stays_finite else arm.num_runs - arm.num_diverged
    of_seeds = "" if number == arm.num_runs else f" ({number} of {arm.num_runs} seeds)"
    return f"{arm.name}{of_seeds}" if number else ""


def _split_reach(reason: str) -> tuple[str, str]:
    """(what was seen, "out of reach (...)") of a reason."""
    starts = [start for words in (OUT_OF_REACH, EARLY) if (start := reason.find(words)) >= 0]
    return (reason[: min(starts)].removesuffix("; "), reason[min(starts) :]) if starts else (reason, "")


def _strongest(reach: Sequence[str]) -> list[str]:
    """Without EARLY of what is OUT_OF_REACH for the same reason in another part."""
    weaker = {text.replace(OUT_OF_REACH, EARLY, 1) for text in reach if text.startswith(OUT_OF_REACH)}
    return [text for text in reach if text not in weaker]


def _limit(arm: Arm, noise: Noise | None, *, comparisons: int = 1) -> float | None:
    """Half the interval of an arm's mean: of its own seeds from two on, else of other runs; None without a value or
    any noise."""
    if arm.value is None or arm.diverged_fraction is not None:
        return None
    if len(arm.by_seed) > 1:
        return own_limit([*arm.by_seed.values()], comparisons=comparisons, is_paired=arm.is_paired)
    return None if noise is None else noise.limit(1, comparisons=comparisons)


def _finite(limits: Sequence[float | None]) -> list[float | None]:
    """The limits for programs: None for one without bound, which JSON has no number for."""
    return [limit if limit is not None and math.isfinite(limit) else None for limit in limits]


def _basis(arms: Sequence[Arm], noise: Noise | None) -> str:
    """What the intervals of the arms rest on, in one clause; "" without any."""
    of_one = [len(arm.by_seed) < 2 for arm in arms]
    if not all(of_one):
        own = "interval of its own seeds" if len(arms) == 1 else "intervals of their own seeds"
        return f"{own}; where there is one, {noise.words()}" if noise and any(of_one) else own
    return noise.words() if noise else ""


def _unread(
    case: Case, arms: Sequence[Arm], limits: Sequence[float | None], basis: str, numbers: dict[str, Any]
) -> Verdict | None:
    """The verdict on numbers that can't be compared with the paper's: why not; None when they can."""
    if unrecorded := not_recorded(case, arms):
        return unrecorded
    ours = words_of(arms, limits)
    missing = case.reach.missing(case.scale)
    if lost := [arm.words() for arm in arms if arm.value is None or arm.diverged_fraction is not None]:
        reason = f"no value: {', '.join(lost)}" + (f"; {OUT_OF_REACH} ({missing})" if missing else "")
        return case.verdict(NOT_MEASURED, ours, reason, **numbers)
    if missing:
        reason = f"{basis}; " if basis else ""
        return case.verdict(NOT_MEASURABLE, ours, f"{reason}{OUT_OF_REACH} ({missing})", **numbers)
    return case.verdict(UNRESOLVED, ours, NO_REPLICAS, **numbers) if None in limits else None
