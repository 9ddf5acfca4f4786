"""Figure 1 (Section 2): how a 16x32 matrix lies in NVFP4. Claim C1.

Everything but the made-up numbers comes from the record repro.numerics.formats.NVFP4, so the drawing can't disagree
with what runs. The arithmetic of Appendix B is done here in float64 for display; the bit-exact one is
repro.numerics.quantize.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from repro.analysis import drawing, rules
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.verdicts import Verdict
from repro.numerics.formats import E4M3, NVFP4, ElementFormat

ROWS, COLUMNS = 16, 32
SEED = 1
COLORS = {"value": "#e9e9e9", "amax": "#7fce9e", "scale": "#f6d55c", "tensor": "#f2b134"}


def data(results: Results) -> pd.DataFrame:
    """One row a matrix element: x, the stored element value, its block's scale, whether it is the block's amax."""
    height, width = NVFP4.tiles_1d
    x = np.random.default_rng(SEED).standard_normal((ROWS, COLUMNS))
    # Appendix B: the tensor's amax goes to the largest product of element and scale.
    tensor_decode = np.abs(x).max() / NVFP4.tensor_max
    rows = []
    for top in range(0, ROWS, height):
        for left in range(0, COLUMNS, width):
            block = x[top : top + height, left : left + width]
            amax = np.abs(block).max()
            scale = nearest(NVFP4.scale, amax / NVFP4.element.max / tensor_decode)
            for (i, j), value in np.ndenumerate(block):
                stored = np.sign(value) * nearest(NVFP4.element, abs(value) / (scale * tensor_decode))
                rows.append((top + i, left + j, left // width, value, stored, scale, abs(value) == amax))
    columns = ["row", "column", "block", "x", "stored", "scale", "is_amax"]
    record = {
        "tensor_decode_scale": tensor_decode,
        "element": NVFP4.element.name,
        "element_bits": NVFP4.element.bits,
        "element_max": NVFP4.element.max,
        "scale_format": NVFP4.scale.name,
        "tile": f"{height}x{width}",
        "bits_per_value": NVFP4.bits_per_value(),
        "tier": results.tier,
    }
    return pd.DataFrame(rows, columns=columns).assign(**record)


def nearest(form: ElementFormat, magnitude: float) -> float:
    """The format's number nearest to a magnitude, ties to the even code, saturating."""
    grid = np.asarray(form.magnitudes)
    distance = np.abs(grid - magnitude)
    codes = np.flatnonzero(distance == distance.min())
    return float(grid[codes[codes % 2 == 0][0] if len(codes) > 1 else codes[0]])


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    first = table.iloc[0]
    width = table.loc[table["block"] == 0, "column"].nunique()
    figure = drawing.new_figure(8.4, 4.2)
    axes = figure.subplots()
    axes.axis("off")
    for cell in table.itertuples():
        x = cell.column + cell.block  # one extra cell a block, for its scale
        color = COLORS["amax" if cell.is_amax else "value"]
        axes.add_patch(Rectangle((x, cell.row), 1, 1, fc=color, ec="white", lw=0.7))
        axes.text(x + 0.5, cell.row + 0.52, f"{cell.stored + 0.0:g}", ha="center", va="center", fontsize=4.6)
    scales = table.groupby(["row", "block"], as_index=False)["scale"].first()
    for cell in scales.itertuples():
        x = (cell.block + 1) * (width + 1) - 1
        axes.add_patch(Rectangle((x, cell.row), 1, 1, fc=COLORS["scale"], ec="white", lw=0.7))
        axes.text(x + 0.5, cell.row + 0.52, f"{cell.scale:g}", ha="center", va="center", fontsize=4.6)
    num_blocks = scales["block"].nunique()
    for block in range(num_blocks):
        left = block * (width + 1)
        axes.annotate("", (left, -0.35), (left + width, -0.35), arrowprops={"arrowstyle": "<->", "lw": 0.7})
        axes.text(
            left + width / 2, -0.55, f"block of {first.tile} values", ha="center", va="bottom", fontsize=7
        )
    end = num_blocks * (width + 1)
    axes.text(end + 0.4, 0.5, f"{first.tensor_decode_scale:.2e}", fontsize=6.5, va="center",
              bbox={"fc": COLORS["tensor"], "ec": "none", "pad": 3})  # fmt: skip
    axes.text(end + 0.4, 1.6, "FP32 scale\nof the tensor", fontsize=7, va="top")
    keys = (
        ("value", f"{first.element}, {first.element_bits} bits"),
        ("amax", f"largest of its block,\nstored as ±{first.element_max:g}"),
        ("scale", f"{first.scale_format} scale\nof the block"),
    )
    for i, (key, words) in enumerate(keys):
        axes.add_patch(Rectangle((end + 0.4, 5 + 2.2 * i), 0.9, 0.9, fc=COLORS[key]))
        axes.text(end + 1.6, 5.45 + 2.2 * i, words, fontsize=7, va="center")
    axes.text(
        end + 0.4, 12, f"{first.bits_per_value:g} bits a value\n+ 32 for the tensor", fontsize=7, va="top"
    )
    axes.set(xlim=(-0.2, end + 7.2), ylim=(16.1, -1.7), aspect="equal")
    return drawing.finish(
        figure, paper.title, ["numbers made up (normal, seed 1); layout from the format record"]
    )


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    """C1: the share of values that are their block's amax, kept as near as rounding to FP8 (E4M3) keeps a number."""
    claim = paper.claims["C1"]
    kept = table["stored"] * table["scale"] * table["tensor_decode_scale"]
    errors = ((kept - table["x"]) / table["x"]).abs()[table["is_amax"]]
    of_fp8 = 2.0 ** -(E4M3.mantissa_bits + 1)
    near = int((errors <= of_fp8).sum())
    share, stated = near / len(table), claim.numbers["value"]
    verdict = rules.exact(
        claim,
        element=paper.element,
        tier=str(table["tier"].iloc[0]),
        paper=f"{stated} = 1/16",
        ours=f"{share:g} = {near} of {len(table)} values",
        holds=share == stated,
        reason=f"{near} of the {len(errors)} amax of blocks of {table['tile'].iloc[0]} values within {of_fp8:.2%} of "
        f"themselves, the largest error of rounding to E4M3; the worst is {errors.max():.2%} off",
    )
    return [verdict]
