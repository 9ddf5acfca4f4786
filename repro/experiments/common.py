"""`common` of a tier file: what it gives to every family, and where a key of a family stands in the file.

A family's own keys win, key by key also inside a section. Not here: what the keys mean (repro.experiments.schema).
"""

from __future__ import annotations

import re
from typing import Any


def spread_common(content: dict[str, Any]) -> dict[str, Any]:
    """`content` without `common`, its keys under every family. Raises ValueError when it is no section."""
    content = dict(content)
    common = content.pop("common", None) or {}
    if not isinstance(common, dict):
        raise ValueError("common: expected keys of a family")
    content["families"] = {
        family: _merged(common, own) if isinstance(own, dict) else own
        for family, own in content["families"].items()
    }
    return content


def written_at(content: dict[str, Any], loc: tuple[Any, ...], message: str) -> tuple[Any, ...]:
    """Where a tier file says what is wrong at `loc` of the record: in `common`, or where `loc` says.

    So one mistake in `common` is told once and not for every family. A key that no family has is missing in `common`;
    of a `message` about a whole family all keys that it names have to stand there.
    """
    families, common = content.get("families"), content.get("common")
    if loc[:1] != ("families",) or not isinstance(families, dict) or not isinstance(common, dict):
        return loc
    family, *rest = loc[1:] or (None,)
    own = families.get(family)
    if not isinstance(own, dict) or "[key]" in rest:  # pydantic's word for: the family itself is unknown
        return loc
    shared = ("common", *rest)
    if not rest:
        return loc if own.keys() & re.findall(r"\w+", message) else shared
    key = rest[0]
    if key not in common:
        others = [keys for keys in families.values() if isinstance(keys, dict)]
        return loc if len(others) < 2 or any(key in keys for keys in others) else shared
    if key not in own:
        return shared
    both = isinstance(own[key], dict) and isinstance(common[key], dict)
    return shared if both and len(rest) > 1 and rest[1] not in own[key] else loc


def _merged(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(common)
    for key, value in own.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if both else value
    return merged
