"""Which text each sample of a run is: a pure function of (seed, sample index) for given phases.

Sample i of a run goes through two steps.

1. Category. u_i = frac(u_0 + i * golden ratio) is compared with the cumulative weights of the phase that sample i
   falls in. This sequence has low discrepancy: after n samples of a phase each category has its weight's share to
   within a few samples, in every stretch and nearly in every batch, so blends differ by their weights and not by
   luck. A phase switches exactly at its first sample.
2. Window. The k-th sample that category c gets in the whole run is window permutation(seed, c, epoch)[k mod n_c],
   epoch = k div n_c: no window of a category repeats before all n_c were seen, also across phases.

Everything is 64-bit integer arithmetic (splitmix64 and a stable sort), so neither the machine nor a library's
random generator can change the order, a restart sees the same order, and so does every recipe.

Does not: read tokens (`repro.data.training_data` does), or draw anything at random outside the seed. Memory is nine
bytes a sample of the run; `repro.cluster.order` gives the same order without these tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: u_i in units of 2^-64 is (i * U_STEP + a key of the seed) mod 2^64: 2^64 / golden ratio, odd.
U_STEP = 0x9E3779B97F4A7C15
#: Low bits of it that u does not have: u has 53, as many as the weights' cumulative sums in double precision.
U_DROPPED_BITS = 11


def splitmix64(x: np.ndarray) -> np.ndarray:
    """[...] uint64 -> [...] uint64: the finaliser of splitmix64, a bijection that mixes all bits."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)  # the generator's own increment
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def stable_key(*parts: int | str) -> np.uint64:
    """64 bits that depend on every part and on nothing else (first eight bytes of a SHA-256)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return np.uint64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))


def permutation(size: int, *key: int | str) -> np.ndarray:
    """[size] int64: a permutation of 0..size-1, fixed by `key`."""
    keys = splitmix64(np.arange(size, dtype=np.uint64) ^ stable_key(*key))
    return np.argsort(keys, kind="stable").astype(np.int64)


@dataclass(frozen=True)
class PhaseBlend:
    """Samples before `until_sample` (and after the previous phase) are drawn with these weights, which sum to 1."""

    until_sample: int
    weights: Mapping[str, float]


class SampleOrder:
    """The order of one run's samples.

    Attributes:
        categories: names, sorted; a category's number is its place here.
        num_samples: samples of the whole run.
    """

    def __init__(self, phases: Sequence[PhaseBlend], num_windows: Mapping[str, int], *, seed: int) -> None:
        """
        Args:
            phases: in order; until_sample rises strictly.
            num_windows: windows each category has; at least 1 for each category with a weight.
            seed: of the run's data section.

        Raises:
            ValueError: a category with weight has no window.
        """
        self.categories = tuple(sorted({c for phase in phases for c, w in phase.weights.items() if w > 0}))
        for category in self.categories:
            if num_windows.get(category, 0) < 1:
                raise ValueError(
                    f"category {category!r} is in the blend but has not one whole sample of text"
                )
        self.num_samples = phases[-1].until_sample
        self._num_windows = {c: num_windows[c] for c in self.categories}
        self._seed = seed
        self._prepare(phases)

    def _prepare(self, phases: Sequence[PhaseBlend]) -> None:
        """Works out what `locate` needs; the run's samples and windows are known."""
        self._category = assign_categories(phases, self.categories, seed=self._seed)
        self._rank = np.empty(self.num_samples, dtype=np.int64)
        for number in range(len(self.categories)):
            members = self._category == number
            self._rank[members] = np.arange(int(members.sum()))
        self._permutations: dict[tuple[int, int], np.ndarray] = {}

    def locate(self, first_sample: int, num_samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Where samples first_sample, first_sample + 1, ... come from.

        Returns:
            (category number [num_samples] int8, window within that category [num_samples] int64)

        Raises:
            ValueError: a sample before 0 or past the end of the run.
        """
        self._check_range(first_sample, num_samples)
        chosen = slice(first_sample, first_sample + num_samples)
        numbers, ranks = self._category[chosen], self._rank[chosen]
        windows = np.empty(num_samples, dtype=np.int64)
        for place, (number, rank) in enumerate(zip(numbers, ranks, strict=True)):
            size = self._num_windows[self.categories[number]]
            windows[place] = self._permutation(int(number), int(rank) // size)[int(rank) % size]
        return numbers, windows

    def _check_range(self, first_sample: int, num_samples: int) -> None:
        if first_sample < 0 or num_samples < 0 or first_sample + num_samples > self.num_samples:
            raise ValueError(
                f"samples {first_sample}..{first_sample + num_samples - 1} asked for, but the run's phases hold "
                f"samples 0..{self.num_samples - 1}"
            )

    def _permutation(self, number: int, epoch: int) -> np.ndarray:
        """[num_windows] int64 order of a category in its epoch-th pass; only the newest pass of each is kept."""
        if (number, epoch) not in self._permutations:
            self._permutations = {key: p for key, p in self._permutations.items() if key[0] != number}
            category = self.categories[number]
            self._permutations[number, epoch] = permutation(
                self._num_windows[category], "windows", self._seed, category, epoch
            )
        return self._permutations[number, epoch]


def assign_categories(phases: Sequence[PhaseBlend], categories: Sequence[str], *, seed: int) -> np.ndarray:
    """[samples of the run] int8: number of the category each sample is drawn from (step 1 of the module text)."""
    num_samples = phases[-1].until_sample
    u = u_of(np.arange(num_samples, dtype=np.uint64), seed=seed)
    numbers = np.empty(num_samples, dtype=np.int8)
    start = 0
    for phase in phases:
        assert phase.until_sample > start, "phases must rise"
        stretch = slice(start, phase.until_sample)
        numbers[stretch] = np.searchsorted(edges_of(phase, categories), u[stretch], side="right")
        start = phase.until_sample
    return numbers


def u_of(samples: np.ndarray, *, seed: int) -> np.ndarray:
    """[...] uint64 sample numbers -> [...] uint64: their u, in units of 2^-53."""
    with np.errstate(over="ignore"):
        u = samples * np.uint64(U_STEP) + u_key(seed)
    u >>= np.uint64(U_DROPPED_BITS)
    return u


def u_key(seed: int) -> np.uint64:
    """u_0 in units of 2^-64, before its low bits are dropped."""
    return stable_key("categories", seed)


def edges_of(phase: PhaseBlend, categories: Sequence[str]) -> np.ndarray:
    """[categories] uint64: category c has the u from edge c-1 up to edge c, in units of 2^-53.

    The last edge is 2^53 and u < 2^53, so every sample finds a category; one of weight 0 has no room.
    """
    weights = np.array([phase.weights.get(category, 0.0) for category in categories])
    sums = np.cumsum(weights)  # its last is not weights.sum(), which adds in another order
    return np.rint(sums / sums[-1] * 2.0**53).astype(np.uint64)
