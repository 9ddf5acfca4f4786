"""Records: true and false are no numbers, whatever the words of a field's annotation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from repro.experiments.record import Record


class Anybody(Record):
    boolean: int = 0


class Numbers(Record):
    plain: int = 0
    optional: float | None = None
    several: tuple[int, ...] = ()
    by_name: dict[str, float] | None = None
    #: The words of a type in an annotation that does not have it.
    named: Literal["bool", "Any"] | int = 0
    described: tuple[Annotated[int, Field(description="no bool, dict[str, Any] neither")], ...] = ()
    inner: Anybody | int = 0
    inners: tuple[Anybody, ...] = ()


class Switches(Record):
    plain: bool = False
    optional: bool | None = None
    several: tuple[bool, ...] = ()
    by_name: dict[str, bool] | None = None
    named: Annotated[bool | str, Field(description="a name, too")] = ""
    anything: Any = None
    options: dict[str, Any] | None = None


@pytest.mark.parametrize(
    "given",
    [
        {"plain": True},
        {"optional": False},
        {"several": [1, True]},
        {"by_name": {"a": True}},
        {"named": True},
        {"described": [True]},
        {"inner": True},
        {"inner": {"boolean": True}},
        {"inners": [{"boolean": False}]},
    ],
    ids=str,
)
def test_a_switch_is_no_number(given):
    with pytest.raises(ValidationError, match="true and false are no values here"):
        Numbers.model_validate(given)


@pytest.mark.parametrize(
    "given",
    [
        {"plain": True},
        {"optional": False},
        {"several": [True, False]},
        {"by_name": {"a": True}},
        {"named": True},
        {"anything": [True]},
        {"options": {"a": True, "b": [False]}},
    ],
    ids=str,
)
def test_a_field_of_switches_takes_them(given):
    [(name, value)] = given.items()
    ours = getattr(Switches.model_validate(given), name)
    assert (list(ours) if isinstance(ours, tuple) else ours) == value
