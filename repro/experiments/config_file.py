"""configs/config.yaml together with Snakemake's --config: which keys there are, and what they may hold.

Not here: what the keys decide (repro.workflow.layout, repro.cli.console).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from repro.experiments.errors import nearest

_KEYS = ("tier", "results", "configs", "site", "corpora", "allow_code_execution", "recorded")
# Rules write folders into commands of a shell, which would take others apart.
_FOLDER = re.compile(r"[\w./+@%:,=-]+")


def check_config(config: Mapping[str, Any], where: object) -> None:
    """Raises ValueError naming `where` and the key: unknown, missing, no name, or a folder that is no plain path."""
    for key in config:
        if key not in _KEYS:
            raise ValueError(f"{where}: unknown key {key!r}{nearest(key, _KEYS)}")
    for key, example in (("tier", "tiny"), ("results", "results"), ("configs", "configs")):
        value = config.get(key, example if key == "configs" else None)
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            raise ValueError(f"{where}: {key}: say a name, e.g. `{key}: {example}`; found {value!r}")
        if key != "tier" and not _FOLDER.fullmatch(str(value)):
            raise ValueError(
                f"{where}: {key}: {value!r} is no path of letters, digits and . / _ - + @ % : , =, e.g. {example}"
            )
