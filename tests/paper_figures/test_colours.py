"""A run has one colour and one mark in all pictures, and those of one panel differ, to red-green blindness too."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import numpy as np
from matplotlib.colors import to_rgb
from stated import paper_of

from paper_figures.__main__ import elements
from paper_figures.fig2.figure import GAP
from paper_figures.mechanisms.figure import COLORS
from paper_figures.mechanisms.panels import PANELS
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


#: Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as it is seen without the red or the green cones.
BLIND = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}  # fmt: skip
XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def seen(color: str, blindness: str) -> np.ndarray:
    """CIE L*a*b* of a colour of the palette to an eye with that blindness."""
    part = np.array(to_rgb(PALETTE[color]))
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    light = XYZ @ np.clip(BLIND[blindness] @ linear, 0, 1) / [0.9505, 1, 1.089]
    root = np.where(light > 0.008856, np.cbrt(light), 7.787 * light + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def test_red_green_blindness_tells_the_curves_of_a_panel_apart() -> None:
    """At least as well as Okabe and Ito's blue and sky, which differ by lightness alone to every eye."""
    panels = defaultdict(set)
    for element, series in SERIES:
        panels[element, series.panel].add(series.color)
    for panel in PANELS:
        panels["mechanisms", panel.title] = {color for *_, color in panel.variants}
    assert {"blue", "sky"} <= panels["fig10", "main"]
    pairs = {tuple(sorted(pair)) for colors in panels.values() for pair in combinations(colors, 2)}
    for blindness in BLIND:
        apart = {
            pair: float(np.linalg.norm(seen(pair[0], blindness) - seen(pair[1], blindness))) for pair in pairs
        }
        nearest = apart["blue", "sky"]
        assert {pair: far for pair, far in apart.items() if far < nearest} == {}, blindness
