"""Reading YAML and saying what is wrong with it in the user's words: file, key, nearest valid value.

Everything under configs/ that this package owns goes through `read_mapping` (no duplicate keys, no silent
last-one-wins) and `validate` (pydantic with extra=forbid, its errors translated). Messages are one line each, so
that a workflow log shows them whole. Not here: what the keys mean (repro.experiments.schema).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)
Keys = tuple[Any, ...]
# A message that finds no near miss lists at most so many valid names.
_MOST_NAMES = 12
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeyLoader(_Loader):
    """A safe loader to which a repeated key is an error: the second of two runs of one name must not win."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if isinstance(key, Hashable) and key in seen:
                raise ValueError(f"line {line}: {key!r} is there twice (first on line {seen[key]})")
            seen[key] = line
        return super().construct_mapping(node, deep=deep)


def read_mapping(path: Path) -> dict[str, Any]:
    """One YAML file as a dict.

    Raises ValueError naming the file (and line) when it is missing, not YAML, not a mapping, or repeats a key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = sorted(p.name for p in path.parent.glob(f"*{path.suffix}")) if path.parent.is_dir() else []
        there = f"; {path.parent} holds {', '.join(siblings)}" if siblings else ""
        raise ValueError(f"{path}: no such file{there}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not readable ({error})") from None
    try:
        content = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected `key: value` lines, found {type(content).__name__}")
    return content


def validate(
    model: type[Model],
    content: Any,
    where: str | Path,
    *,
    strict: bool = False,
    written_at: Callable[[Keys, str], Keys] | None = None,
) -> Model:
    """`content` as a `model`; raises ValueError naming `where`, the key and the nearest valid key or value.

    `strict`: "4" is no number. For who goes on with `content` itself. `written_at`: from the path of keys in the
    record, and what is wrong there, to the path in the file, where they differ. What is told twice is said once.
    """
    try:
        return model.model_validate(content, strict=strict)
    except ValidationError as error:
        told = dict.fromkeys(_in_words(model, problem, written_at) for problem in error.errors())
        raise ValueError(f"{where}: {'; '.join(told)}") from None


def nearest(word: object, known: Iterable[object]) -> str:
    """The tail of a message: `; did you mean 'x'?` for a near miss, else all that is known."""
    names = [str(name) for name in known]
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names[:_MOST_NAMES]) or 'none'}{', ...' if len(names) > _MOST_NAMES else ''}"


def _in_words(
    model: type[BaseModel], problem: Any, written_at: Callable[[Keys, str], Keys] | None = None
) -> str:
    """One pydantic problem in words; the place as the dotted path that the user wrote."""
    loc, kind, message = problem["loc"], problem["type"], problem["msg"].removeprefix("Value error, ")
    message = message.replace("a valid tuple", "a list")  # YAML knows no others
    place = ".".join(str(part) for part in (written_at(loc, message) if written_at else loc))
    if kind == "extra_forbidden":
        owner = _model_at(model, loc[:-1])
        hint = nearest(loc[-1], owner.model_fields) if owner else ""
        return f"unknown key {place!r}{hint}"
    if kind == "missing":
        return f"key {place!r} is missing"
    if kind == "literal_error":
        values = [part.strip(" '") for part in problem["ctx"]["expected"].replace(" or ", ", ").split(",")]
        return f"{place}: {problem['input']!r} is no valid value{nearest(problem['input'], values)}"
    given = "" if isinstance(problem["input"], dict | list | BaseModel) else f", found {problem['input']!r}"
    lead = f"{place}: " if place else ""
    return f"{lead}{message}{given if kind != 'value_error' else ''}"


def _model_at(model: type[BaseModel], loc: Keys) -> type[BaseModel] | None:
    """The record that a path of keys leads to, following fields, dict values and list items."""
    current: Any = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            current = field.annotation if field else None
        else:
            current = _item_type(current)
        if current is None:
            return None
    while current is not None and not (isinstance(current, type) and issubclass(current, BaseModel)):
        current = _item_type(current)
    return current


def _item_type(annotation: Any) -> Any:
    """`V` of dict[K, V], `T` of list[T], `T` of T | None; None for a plain type."""
    arguments = [a for a in getattr(annotation, "__args__", ()) if a not in (type(None), Ellipsis)]
    return arguments[-1] if arguments else None
