"""The frozen order of samples without its tables: what a training job of trillions of tokens starts with at once.

`repro.data.order.SampleOrder` is the definition and keeps nine bytes a sample and eight a window: 1.2 billion of each
for the 12B model's 10T tokens, minutes of a core in every process. This gives the same categories and windows, equal
to the bit, from what a process asks for:

1. Category of sample i: from its own u_i. Its rank within the category, the number of earlier samples with u in the
   category's interval, is a sum of floor((a i + b) / 2^64), which Euclid's algorithm gives exactly in some 90 steps.
2. Window of a rank: the place in a sorted list of hashed numbers. One pass counts them by their first 16 bits; from
   then on a rank's bin is known, and one pass more collects and sorts the bins around it, a 64th of the category.

Memory: two times eight bytes a window of the parts in use, a 64th of all, and half a megabyte a category. Time: a
pass over a category's window numbers at its first sample, another for each part that the run comes to.

Not here: the definition, reading of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from repro.data.order import (
    U_DROPPED_BITS,
    U_STEP,
    PhaseBlend,
    SampleOrder,
    edges_of,
    permutation,
    splitmix64,
    stable_key,
    u_key,
    u_of,
)

_MODULUS = 1 << 64
_BIN_BITS = 16
_SHIFT = 64 - _BIN_BITS
_BLOCK = 1 << 16  # window numbers hashed at a time: what fits a core's cache


class SparseOrder(SampleOrder):
    """As SampleOrder, in bounded memory."""

    #: Windows sorted at a time; None: a 64th of the category, at least 2^20.
    part_windows: int | None = None

    def _prepare(self, phases: Sequence[PhaseBlend]) -> None:
        self._key = int(u_key(self._seed))
        self._sorted: dict[tuple[int, int], SortedParts] = {}
        starts = [0, *(phase.until_sample for phase in phases[:-1])]
        self._phases = [
            _Phase(start, phase.until_sample, edges_of(phase, self.categories))
            for start, phase in zip(starts, phases, strict=True)
        ]

    def locate(self, first_sample: int, num_samples: int) -> tuple[np.ndarray, np.ndarray]:
        """As SampleOrder.locate."""
        self._check_range(first_sample, num_samples)
        numbers = self._categories_of(first_sample, num_samples)
        windows = np.empty(num_samples, dtype=np.int64)
        for number in map(int, np.unique(numbers)):
            rank = self._rank_before(number, first_sample)
            size = self._num_windows[self.categories[number]]
            for place in np.flatnonzero(numbers == number):
                windows[place] = self._parts(number, rank // size).at(rank % size)
                rank += 1
        return numbers, windows

    def _categories_of(self, first_sample: int, num_samples: int) -> np.ndarray:
        """[num_samples] int8."""
        samples = np.arange(first_sample, first_sample + num_samples, dtype=np.uint64)
        u = u_of(samples, seed=self._seed)
        numbers = np.empty(num_samples, dtype=np.int8)
        for phase in self._phases:
            inside = (samples >= phase.start) & (samples < phase.until)
            numbers[inside] = np.searchsorted(phase.edges, u[inside], side="right")
        return numbers

    def _rank_before(self, number: int, sample: int) -> int:
        """How many samples before `sample` are of category `number`."""
        return sum(
            self._count(phase.edges, number, phase.start, min(sample, phase.until))
            for phase in self._phases
            if phase.start < sample
        )

    def _count(self, edges: np.ndarray, number: int, start: int, end: int) -> int:
        """Samples start..end-1 with u between the edges of category `number`."""
        low, high = (int(edges[number - 1]) if number else 0), int(edges[number])
        return sum(
            sign * num_below(last, self._key, edge << U_DROPPED_BITS)
            for sign, last, edge in ((1, end, high), (-1, end, low), (-1, start, high), (1, start, low))
        )

    def _parts(self, number: int, epoch: int) -> SortedParts:
        """Of a category's epoch-th pass; only the newest pass of each is kept."""
        if (number, epoch) not in self._sorted:
            self._sorted = {key: parts for key, parts in self._sorted.items() if key[0] != number}
            category = self.categories[number]
            size = self._num_windows[category]
            part = self.part_windows or max(1 << 20, size >> 6)
            self._sorted[number, epoch] = SortedParts(size, part, "windows", self._seed, category, epoch)
        return self._sorted[number, epoch]


@dataclass(frozen=True)
class _Phase:
    """Samples start..until-1; `edges` [categories] uint64: see `edges_of`."""

    start: int
    until: int
    edges: np.ndarray


def num_below(num: int, offset: int, threshold: int) -> int:
    """How many i of 0..num-1 have (i * U_STEP + offset) mod 2^64 < threshold, for 0 <= threshold <= 2^64.

    The remainder of x is below t just where floor(x / 2^64) exceeds floor((x - t) / 2^64), and then by one.
    """
    return floor_sum(num, _MODULUS, U_STEP, offset) - floor_sum(num, _MODULUS, U_STEP, offset - threshold)


def floor_sum(num: int, modulus: int, step: int, offset: int) -> int:
    """Sum over i of 0..num-1 of floor((step * i + offset) / modulus), exactly, by Euclid's algorithm."""
    total, sign = 0, 1
    while num > 0:
        whole, step = divmod(step, modulus)
        total += sign * whole * (num * (num - 1) // 2)
        whole, offset = divmod(offset, modulus)
        total += sign * whole * num
        # Lattice points under the line, counted by rows: all of them, less those right of it.
        rows = (step * num + offset) // modulus
        total += sign * rows * num
        sign = -sign
        # A row y = 1..rows is crossed at i = ceil((y modulus - offset) / step); floor_sum over y of these.
        num, modulus, step, offset = rows, step, modulus, modulus - offset + step - 1
    return total


class SortedParts:
    """`permutation(size, *key)` a part at a time."""

    def __init__(self, size: int, part: int, *key: int | str) -> None:
        """One pass over the numbers when size > part: counts hashes by their first 16 bits."""
        self._size, self._part, self._key = size, part, key
        self._first, self._order = 0, np.empty(0, dtype=np.int64)
        if size <= part:
            self._order = permutation(size, *key)
            return
        counts = np.zeros(1 << _BIN_BITS, dtype=np.int64)
        for _, hashes in self._hashes():
            bins = (hashes >> np.uint64(_SHIFT)).astype(np.int64)
            counts += np.bincount(bins, minlength=len(counts))
        self._ends = np.cumsum(counts)

    def at(self, rank: int) -> int:
        """Element `rank` of the permutation; another pass where its part is not the present one."""
        if not self._first <= rank < self._first + len(self._order):
            self._sort_part(rank)
        return int(self._order[rank - self._first])

    def _sort_part(self, rank: int) -> None:
        """Sorts the bin of `rank` and those after it, up to `part` numbers in all (or the one bin if it has more)."""
        first = int(np.searchsorted(self._ends, rank, side="right"))
        start = int(self._ends[first - 1]) if first else 0
        last = max(first, int(np.searchsorted(self._ends, start + self._part, side="right")) - 1)
        numbers = np.empty(int(self._ends[last]) - start, dtype=np.int64)
        hashes = np.empty(len(numbers), dtype=np.uint64)
        low, high = np.uint64(first << _SHIFT), np.uint64((last + 1 << _SHIFT) - 1)
        filled = 0
        for begin, block in self._hashes():
            inside = np.flatnonzero((block >= low) & (block <= high))
            chosen = slice(filled, filled + len(inside))
            numbers[chosen], hashes[chosen] = inside + begin, block[inside]
            filled += len(inside)
        self._first, self._order = start, numbers[np.argsort(hashes, kind="stable")]

    def _hashes(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first number, [block] uint64 hashes) of all numbers, in order."""
        key = stable_key(*self._key)
        for first in range(0, self._size, _BLOCK):
            yield first, splitmix64(np.arange(first, min(first + _BLOCK, self._size), dtype=np.uint64) ^ key)
