"""A run has one colour and one mark in all pictures, and those of one panel differ."""

from __future__ import annotations

from collections import defaultdict

from stated import paper_of

from paper_figures.__main__ import elements
from paper_figures.fig2.figure import GAP
from paper_figures.mechanisms.figure import COLORS
from repro.analysis.palette import MARKERS, PALETTE

SERIES = [(element, series) for element in elements() for series in paper_of(element).series]


def test_a_run_has_one_colour_in_all_pictures() -> None:
    looks, places = defaultdict(set), defaultdict(set)
    for element, series in [*SERIES, ("fig2", GAP)]:
        looks[series.run].add((series.color, series.dash))
        places[series.run].add(element)
    for run, color in COLORS.items():
        looks[run].add((color, "solid"))
    assert {run: look for run, look in looks.items() if len(look) > 1} == {}
    assert len(places["1p2b_last4"]) > 3, "no run is in several pictures: the test finds nothing"


def test_the_runs_of_a_panel_have_colours_of_their_own() -> None:
    runs = defaultdict(list)
    for element, series in SERIES:
        runs[element, series.panel, series.color].append(series.run)
    assert {key: own for key, own in runs.items() if len(own) > 1} == {}


def test_every_colour_is_of_the_palette_and_has_its_mark() -> None:
    assert {series.color for _, series in SERIES} <= set(PALETTE)
    assert set(MARKERS) == set(PALETTE)
