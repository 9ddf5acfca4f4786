"""Switches of --config, which come as text: a word that is neither true nor false must not decide anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.workflow.layout import Layout

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def layout_of(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    return lambda **more: Layout.load({"tier": "tiny", "results": str(tmp_path), **more})


@pytest.mark.parametrize("word", ["yes", "on", 1, "ture"])
@pytest.mark.parametrize("key", ["recorded", "allow_code_execution"])
def test_a_switch_is_true_or_false(key, word, layout_of):
    with pytest.raises(ValueError, match=f"{key}: '{word}' is neither true nor false"):
        layout_of(**{key: word})


def test_from_records_table_1_takes_the_recorded_rates_where_there_are_any(layout_of):
    assert layout_of(tier="proxy", recorded=True).needs("table1") == [
        layout_of(tier="proxy", recorded=True).results + "/recorded.json"
    ]
    assert layout_of(recorded=True).needs("table1")[-1].endswith("bench/gemm.json"), "none of the tiny tier"


def test_from_records_nothing_is_trained(layout_of):
    for word in ("true", True, "True"):
        layout = layout_of(recorded=word)
        assert layout.results.endswith("tiny-recorded")
        assert layout.trained == []
    assert layout_of().trained
    assert layout_of(recorded="false").trained
