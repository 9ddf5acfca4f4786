"""The colours of curves by name, and the mark and dashes that go with them. Does not: draw."""

from __future__ import annotations

# Okabe and Ito's colours, but two: with red-green blindness their purple is nearly their green, and their vermilion
# nearly their orange; runs of one panel have these. Not for one panel: green and grey.
PALETTE = {
    "black": "#000000",
    "green": "#009E73",
    "vermilion": "#BF4400",
    "blue": "#0072B2",
    "orange": "#E69F00",
    "purple": "#8100E6",
    "sky": "#56B4E9",
    "grey": "#7F7F7F",
}
# The mark of a curve goes with its colour, so that not colour alone tells curves apart.
MARKERS = {
    "black": "o",
    "green": "s",
    "vermilion": "o",
    "blue": "^",
    "orange": "v",
    "purple": "D",
    "sky": "P",
    "grey": "h",
}
DASHES = ("solid", "dashed", "dotted", "dashdot")
