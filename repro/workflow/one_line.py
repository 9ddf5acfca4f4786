"""What is wrong with a target or a configuration, in one line. Does not: decide what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from snakemake.logging import logger


def end(error: Exception) -> NoReturn:
    """Ends Snakemake with the error's words; of a WorkflowError it would tell the rule's file and line as well."""
    logger.error(f"error: {error}")
    sys.exit(1)


def in_one_line(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`find(wildcards)`, an input of a rule; its ValueError ends Snakemake, without the way through its code."""

    def found(wildcards: Any) -> Any:
        try:
            return find(wildcards)
        except ValueError as error:
            end(error)

    return found
