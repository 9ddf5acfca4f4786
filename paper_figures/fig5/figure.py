"""Figure 5 (Section 4): the way of each operand into the three GEMMs of a quantised linear layer. No claim.

    fprop  y [T, N] = x [T, K] w [N, K]^T     contracts K
    dgrad dx [T, K] = g [T, N] w [N, K]       contracts N
    wgrad dw [N, K] = g [T, N]^T x [T, K]     contracts T

An operand is transposed where its contracted dimension is not its last one. Drawn from the frozen recipe; data()
refuses a run that recorded another precision than its recipe says.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from repro.analysis import drawing, source_lines
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.trained_run import Run
from repro.analysis.verdicts import Verdict
from repro.experiments.recipe import GEMM_OPERANDS, Recipe
from repro.numerics.formats import block_format

RUN = "12b_nvfp4"
RULE = ("format", "blocks", "rounding", "hadamard", "signs")
LAST_DIMENSION = {"x": "K", "w": "K", "g": "N"}
CONTRACTED = {"fprop": "K", "dgrad": "N", "wgrad": "T"}
SOURCES = {"x": "activation x\nBF16 [T, K]", "w": "weight w\nFP32 [N, K]", "g": "gradient g\nBF16 [T, N]"}
OUTPUTS = {"fprop": "y\nBF16", "dgrad": "dx\nBF16", "wgrad": "dw\nFP32"}
SIGNS = {"fixed": "one sign vector", "per_transform": "new signs each time", "none": "no signs"}
FILL = {"source": "#e3ecf5", "step": "#ffffff", "quantise": "#cfeedd", "bf16": "#eeeeee", "gemm": "#fbe3c0"}


def data(results: Results) -> pd.DataFrame:
    """One row an operand: its rule, whether it is transposed before the product, and whether a run was compared."""
    recipe = Recipe.model_validate(results.frozen(RUN)["recipe"])
    rows = []
    for gemm, operands in GEMM_OPERANDS.items():
        for operand in operands:
            rule = recipe.rule(gemm, operand)
            rows.append(
                {
                    "gemm": gemm,
                    "operand": operand,
                    **{key: getattr(rule, key) for key in RULE},
                    "tile": "" if rule.format == "bf16" else _tile(rule.format, rule.blocks),
                    "transposed": LAST_DIMENSION[operand] != CONTRACTED[gemm] and rule.blocks != "1d_shared",
                    "same_in_both": operand == "w" and recipe.same_representation("w"),
                }
            )
    compared = results.has(RUN)
    if compared:
        _check_recorded(results.run(RUN), rows, recipe)
    blocks = recipe.bf16_blocks
    kept = f"first {blocks.first} and last {blocks.last}"
    table = pd.DataFrame(rows).assign(run=RUN, role="run", blocks_in_bf16=kept, compared=compared)
    return table.assign(**results.meta(RUN))


def _check_recorded(run: Run, rows: list[dict], recipe: Recipe) -> None:
    """What ran, layer by layer, is what the recipe says outside the blocks that keep BF16."""
    by_block: dict[int, list[dict]] = {}
    for record in run.last.done["precision"]:
        by_block.setdefault(record["block"], []).append(record)
    if not by_block:
        raise ValueError(f"{run.last.folder / 'done.json'}: records no precision")
    kept = recipe.blocks_in_bf16(_num_blocks(run))
    expected = {(row["gemm"], row["operand"]): tuple(row[key] for key in RULE) for row in rows}
    for block, records in by_block.items():
        for record in records:
            ran = tuple(record[key] for key in RULE)
            rule = expected[record["gemm"], record["operand"]]
            if ran[0] != "bf16" if block in kept else ran != rule:
                raise ValueError(
                    f"{run.last.folder / 'done.json'}: block {block}, {record['gemm']}.{record['operand']} ran as "
                    f"{ran}, but the frozen recipe says {'bf16' if block in kept else rule}"
                )


def _num_blocks(run: Run) -> int:
    model = run.frozen["model"]
    return len(model["pattern"]) // model["symbols_per_block"]


def _tile(form: str, blocks: str) -> str:
    record = block_format(form)
    return "x".join(map(str, record.tiles_2d if blocks == "2d" else record.tiles_1d))


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    figure = drawing.new_figure(8.6, 5.4)
    axes = figure.subplots()
    axes.axis("off")
    y = 0.0
    for gemm, operands in table.groupby("gemm", sort=False):
        axes.text(
            -0.1,
            y + 0.62,
            f"{gemm.capitalize()}   contracts {CONTRACTED[gemm]}",
            fontsize=9,
            fontweight="bold",
        )
        heights = []
        for row in operands.itertuples():
            _lane(axes, row, y)
            heights.append(y)
            y -= 0.86
        middle = sum(heights) / len(heights)
        _box(axes, 7.75, middle, "GEMM\nFP32 sums", "gemm", height=0.95)
        for height in heights:
            axes.annotate("", (7.75, middle + 0.25 * (height - middle)), (7.1, height), arrowprops=_ARROW)
        _box(axes, 9.3, middle, OUTPUTS[gemm], "source", width=0.8)
        axes.annotate("", (9.3, middle), (8.95, middle), arrowprops=_ARROW)
        y -= 0.62
    axes.set(xlim=(-0.2, 10.2), ylim=(y + 0.75, 1.0))
    notes = [
        f"{table['blocks_in_bf16'].iloc[0]} blocks: all three GEMMs in BF16; elsewhere as drawn",
        "the recorded precision of every layer agrees with the frozen recipe"
        if table["compared"].all()
        else f"{RUN} is not recorded: drawn from its frozen recipe, compared with no run",
    ]
    if table["same_in_both"].any():
        notes.append("square tiles: Fprop and Dgrad see the same quantised weight")
    stand_in = source_lines.stand_in(table, with_seeds=False)
    return drawing.finish(figure, paper.title, source_lines.provenance(table, *notes), stand_in)


_ARROW = {"arrowstyle": "-|>", "lw": 0.8, "color": "#444444", "shrinkA": 0, "shrinkB": 0}


def _lane(axes: Axes, row: object, y: float) -> None:
    """Source box, then the steps of one operand from left to right, then a line to the GEMM."""
    _box(axes, 0.0, y, SOURCES[row.operand], "source")
    steps: list[tuple[str, str]] = []
    if row.transposed:
        steps.append(("transpose", "step"))
    if row.hadamard:
        steps.append((f"Hadamard {row.hadamard}\n{SIGNS[row.signs]}", "step"))
    if row.format == "bf16":
        steps.append(("BF16\nnot quantised", "bf16"))
    else:
        rounding = "stochastic rounding" if row.rounding == "sr" else "round to nearest"
        steps.append((f"{row.format.upper()} {row.tile}\n{rounding}", "quantise"))
    # Equal steps stand under each other: transpose, Hadamard, quantise.
    places = {"transpose": 1.75, "Hadamard": 3.35, "quantise": 5.3, "bf16": 5.3}
    end = 1.3
    for words, kind in steps:
        x = places[kind] if kind in places else places[words.split()[0]]
        axes.annotate("", (x, y), (end, y), arrowprops=_ARROW)
        width = 1.8 if kind in ("quantise", "bf16") else 1.1 if words == "transpose" else 1.5
        _box(axes, x, y, words, kind, width=width)
        end = x + width
    axes.plot([end, 7.1], [y, y], color="#444444", lw=0.8)


def _box(
    axes: Axes, x: float, y: float, words: str, kind: str, *, width: float = 1.3, height: float = 0.6
) -> None:
    width = 1.2 if kind == "gemm" else width
    patch = FancyBboxPatch(
        (x, y - height / 2),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.08",
        fc=FILL[kind],
        ec="#555555",
        lw=0.7,
    )
    axes.add_patch(patch)
    axes.text(x + width / 2, y, words, ha="center", va="center", fontsize=7)


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    """The flow itself states no number."""
    return []
