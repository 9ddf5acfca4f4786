"""What several tests of recipes need: operands made in pairs, as on a GPU, on a CPU."""

from __future__ import annotations

import pytest

from repro.recipes import linear, operands


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Pairs of operands are made as on a GPU; what each was made of."""
    made: list[object] = []

    def pays(first, second, _original, context) -> bool:
        exact = (plan.spec is not None and plan.spec.format.is_exact_in_bf16 for plan in (first, second))
        return context.observer is None and all(exact)

    def make(source, *requests):
        made.append(source)
        return operand_pair(source, *requests)

    operand_pair = operands.make_operand_pair
    monkeypatch.setattr(linear, "pays_as_pair", pays)
    monkeypatch.setattr(operands, "make_operand_pair", make)
    return made
