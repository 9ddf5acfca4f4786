"""The colours of curves by name, and the mark and dashes that go with them. Does not: draw."""

from __future__ import annotations

# Okabe and Ito's colours, told apart with every common colour blindness.
PALETTE = {
    "black": "#000000",
    "green": "#009E73",
    "vermilion": "#D55E00",
    "blue": "#0072B2",
    "orange": "#E69F00",
    "purple": "#CC79A7",
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
