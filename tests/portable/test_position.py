"""When something is due that happens every so many tokens."""

from __future__ import annotations

from repro.portable.position import crosses


def test_a_step_is_due_when_it_reaches_or_passes_a_multiple() -> None:
    """The interval need not be a whole number of steps."""
    assert [tokens for tokens in range(30, 331, 30) if crosses(tokens, 100, 30)] == [120, 210, 300]
    assert [tokens for tokens in range(50, 301, 50) if crosses(tokens, 100, 50)] == [100, 200, 300]
