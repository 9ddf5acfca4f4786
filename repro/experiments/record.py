"""What every file of configs/ and every frozen run is read into: records that cannot change, with no unknown key and
no number without end. `repro.experiments.errors.validate` fills one, and tells what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Record(BaseModel):
    """The base of all of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """true and false would be read as 1 and 0; only a field of type bool may hold them."""
        if _holds_switch(value):
            kinds = list(_kinds(cls.model_fields[str(info.field_name)].annotation))
            is_record = isinstance(value, dict) and dict not in kinds  # which looks for itself
            if not is_record and bool not in kinds and Any not in kinds:
                raise ValueError(
                    "true and false are no values here (YAML reads yes, no, on and off as such, too)"
                )
        return value


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of: int, tuple and bool of `int | tuple[bool, ...]`."""
    yield get_origin(annotation) or annotation
    for part in get_args(annotation):
        yield from _kinds(part)


def _holds_switch(value: Any) -> bool:
    """Whether a value, or one of its items, is true or false; records inside look for themselves."""
    if isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        return any(not isinstance(item, dict) and _holds_switch(item) for item in items)
    return isinstance(value, bool)
