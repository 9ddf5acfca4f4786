"""Options of commands: what is wrong with them is told in one line, with exit code 2, before anything is done.

The lowest floor: every command may use it. Does not: know what a command does.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage before it."""

    def __init__(self, *, lead: str | None = None, **options: Any) -> None:
        """`lead`: what stands before an error and its colon; the program's name unless given."""
        super().__init__(**options)
        self._lead = lead or self.prog

    def error(self, message: str) -> NoReturn:
        """Ends the process with exit code 2."""
        self.exit(2, f"{self._lead}: {message}\n")

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tells a ValueError of what stands inside as a wrong option: for checks, not for the command's work."""
        try:
            yield
        except ValueError as error:
            self.error(str(error))


def whole(words: str, least: int, most: int | None = None) -> int:
    """The number that `words` are; raises ValueError saying what they have to be, e.g. "a whole number from 1 on"."""
    found = int(words) if words.isascii() and words.isdigit() else -1
    if found < least or (most is not None and found > most):
        raise ValueError(f"a whole number from {least} " + ("on" if most is None else f"to {most}"))
    return found


def whole_number(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that counts: a whole number from `least`, which is 0 or more, to `most`."""

    def number(words: str) -> int:
        try:
            return whole(words, least, most)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{words!r}: {error}") from None

    return number


def amount(of: str) -> Callable[[str], float]:
    """The type of an option that measures: a finite number above 0; `of`: its unit, e.g. "seconds"."""

    def number(words: str) -> float:
        try:
            found = float(words)
        except ValueError:
            found = math.nan
        if not 0 < found < math.inf:
            raise argparse.ArgumentTypeError(f"{words!r}: {of}, more than 0 and finite")
        return found

    return number
