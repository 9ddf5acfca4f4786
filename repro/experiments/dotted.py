"""Changes to a tree of settings by dotted paths, e.g. {"wgrad.*.hadamard": 4}.

An ablation is its parent and one named change; this is the meaning of such a change on plain nested dicts. Used by
`Recipe.with_changes`; knows nothing of recipes.

Does not: validate values, merge mappings (a mapping as the value replaces what was there), or create keys.
"""

from __future__ import annotations

from typing import Any

from repro.experiments.errors import nearest


def assign(tree: dict[str, Any], path: str, value: Any) -> None:
    """Sets the node at `path` in place; a segment `*` stands for every key under which the rest of the path exists.

    Raises:
        ValueError: no such node; the message names the path and the nearest key.
    """
    _assign(tree, path.split("."), value, path)


def _assign(tree: dict[str, Any], segments: list[str], value: Any, path: str) -> None:
    head, rest = segments[0], segments[1:]
    keys = [key for key in tree if _leads_on(tree[key], rest)] if head == "*" else [head]
    if not keys:
        below = [key for child in tree.values() if isinstance(child, dict) for key in child]
        raise ValueError(f"change {path!r}: no key {rest[0]!r}{nearest(rest[0], dict.fromkeys(below))}")
    if head != "*" and head not in tree:
        raise ValueError(f"change {path!r}: no key {head!r}{nearest(head, tree)}")
    for key in keys:
        if not rest:
            tree[key] = value
        elif isinstance(tree[key], dict):
            _assign(tree[key], rest, value, path)
        else:
            raise ValueError(f"change {path!r}: {key} is {tree[key]!r} and has no {'.'.join(rest)}")


def _leads_on(node: Any, segments: list[str]) -> bool:
    if not segments:
        return True
    if not isinstance(node, dict):
        return False
    if segments[0] == "*":
        return any(_leads_on(child, segments[1:]) for child in node.values())
    return segments[0] in node and _leads_on(node[segments[0]], segments[1:])
