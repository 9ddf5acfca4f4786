"""Options of commands that measure: what is wrong is told in one line, with exit code 2, before anything is measured.

Does not: know what a command measures.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import torch


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with exit code 2."""
        self.exit(2, f"{self.prog}: {message}\n")

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tells a ValueError of what stands inside as a wrong option: for checks, not for measurements."""
        try:
            yield
        except ValueError as error:
            self.error(str(error))


def whole_number(least: int = 1) -> Callable[[str], int]:
    """The type of an option that counts: a whole number from `least` on."""

    def number(words: str) -> int:
        found = int(words) if words.isascii() and words.isdigit() else -1
        if found < least:
            raise argparse.ArgumentTypeError(f"{words!r}: a whole number from {least} on")
        return found

    return number


def time_limit(words: str) -> float:
    """The type of an option in seconds: above 0."""
    try:
        found = float(words)
    except ValueError:
        found = math.nan
    if not found > 0:
        raise argparse.ArgumentTypeError(f"{words!r}: seconds, more than 0")
    return found


def device_named(words: str) -> torch.device:
    """The device of --device, which need not be there. Raises ValueError for anything but cpu, cuda and cuda:N."""
    import torch

    try:
        found = torch.device(words)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {words!r}: cpu, cuda or cuda:N")
    return found


def check_gpu(what: str) -> None:
    """Raises ValueError where there is no GPU; `what`: what then cannot be measured, e.g. "the scan's tiles"."""
    import torch

    if not (torch.cuda.is_available() and torch.cuda.device_count()):
        raise ValueError(f"no CUDA GPU here, and {what} are measured on one")


def check_batch(batch: int, micro_batches: Iterable[int]) -> None:
    """Raises ValueError where sequences of a step would be counted and not trained."""
    for micro in micro_batches:
        if batch % micro:
            raise ValueError(
                f"--batch {batch} is no multiple of --micro {micro}: {batch % micro} of its sequences would be "
                f"counted and not trained; --batch {batch + -batch % micro} is one"
            )
