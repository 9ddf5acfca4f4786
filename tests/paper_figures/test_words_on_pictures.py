"""What pictures say in words: the line below the title, the paper's values in brackets, how many runs there are."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import matplotlib.text
import pandas as pd
import pytest
from drawn_text import drawn_texts
from matplotlib.figure import Figure
from stated import paper_of
from synthetic_results import REPO

from paper_figures.__main__ import FOLDER, TEXT_COLUMNS, elements
from repro.analysis import source_lines
from repro.analysis.bends import bends_of
from repro.analysis.shown import ours_of, paper_end, tier_title

CONFIGS = REPO / "configs"
#: Drawn from formats, full-size models and rates: no run stands behind them.
WITHOUT_RUNS = {"fig1", "table1", "table3", "table4", "table5"}


def table_of(element: str, made: Path) -> pd.DataFrame:
    return pd.read_csv(made / "elements" / element / "data.csv", dtype=TEXT_COLUMNS)


def figure_of(element: str, table: pd.DataFrame) -> Figure:
    module = __import__(f"paper_figures.{element}.figure", fromlist=["draw"])
    with matplotlib.rc_context(fname=FOLDER / "style.mplstyle"):
        return module.draw(table, paper_of(element))


def words_of(element: str, table: pd.DataFrame) -> list[str]:
    """All texts of the element's picture."""
    return [text.get_text() for text in figure_of(element, table).findobj(matplotlib.text.Text)]


@pytest.mark.parametrize("element", elements())
def test_a_picture_of_runs_says_below_its_title_what_stands_for_the_papers_model(
    element: str, made: Path
) -> None:
    said = [text for text in words_of(element, table_of(element, made)) if "-parameter stand-in" in text]
    if element in WITHOUT_RUNS:
        assert not said
    else:
        assert len(said) == 1
        size = r"[\d.]+[kM]"
        seeds = "" if element == "fig5" else ", .*seeds?"  # a diagram of a recipe has none
        assert re.fullmatch(rf"tiny tier: ({size}- and )?{size}-parameter stand-ins?{seeds}", said[0]), said


def test_the_line_below_the_title_counts_seeds_and_sizes() -> None:
    row = {"tier": "proxy", "role": "run", "status": "completed", "git_commit": "abc", "run_hash": "def"}
    runs = pd.DataFrame(
        [
            row | {"run": "a", "num_parameters": 102_000_000, "replica_of": "a", "replica": 1},
            row | {"run": "b", "num_parameters": 80_800_000, "replica_of": "b", "replica": 1},
        ]
    )
    assert source_lines.stand_in(runs.head(1)) == "proxy tier: 102M-parameter stand-in, one seed"
    again = runs.head(1).assign(run="a_seed2", role="replica", replica=2)
    assert source_lines.stand_in(pd.concat([runs.head(1), again])).endswith("stand-in, 2 seeds")
    assert source_lines.stand_in(pd.concat([runs, again])) == (
        "proxy tier: 80.8M- and 102M-parameter stand-ins, 1 to 2 seeds"
    )
    baseline = runs.head(1).assign(run="base", role="baseline", replica_of="base")
    its_seed = baseline.assign(run="base_seed2", role="replica", replica=2)
    ends = {
        "stand-in, one seed; baseline: 2 seeds": [runs.head(1), baseline, its_seed],
        "stand-in, 2 seeds": [runs.head(1), again, baseline, its_seed],
        "stand-in, 2 seeds; baseline: one seed": [runs.head(1), again, baseline],
    }
    for words, parts in ends.items():
        assert source_lines.stand_in(pd.concat(parts)).endswith(words)
    assert source_lines.stand_in(runs.assign(tier="paper")) == ""
    assert source_lines.stand_in(runs.assign(role="missing")) == ""


def test_the_drop_at_the_edge_of_figure_4_is_said_to_be_the_blend(made: Path) -> None:
    """Its panel ends just beyond the first change of the blend, and has nothing of the decay."""
    table = table_of("fig4", made)
    words = words_of("fig4", table)
    assert words.count("blend changes") == 1
    assert "decay starts" not in words
    assert bends_of(table, "blend_change")[0] == pytest.approx(0.7, abs=0.01)
    assert "blend changes" not in words_of("fig4", table[table["panel"] != "schedule"])
    later = table.assign(fraction=table["fraction"].where(table["quantity"] != "blend_change", 0.8))
    assert "blend changes" not in words_of("fig4", later)


@pytest.mark.parametrize("element", ["fig8", "claims_text"])
def test_a_legend_explains_seeds_and_noise_where_they_are_drawn(element: str, made: Path) -> None:
    table = table_of(element, made)
    marks = {"thick: seed 1", "dotted: other seeds of a run"}
    noise = "seed noise of an end value (95 %)"
    words = words_of(element, table)
    assert marks <= set(words)
    assert any(text.startswith(noise) for text in words)
    alone = words_of(element, table[table["role"] != "replica"])
    assert not marks & set(alone)
    assert not any(text.startswith(noise) for text in alone)


@pytest.mark.parametrize(("element", "run"), [("fig9", "1p2b_last1"), ("claims_text", "1p2b_base_all")])
def test_a_legend_explains_the_cross_where_a_run_diverged(element: str, run: str, made: Path) -> None:
    table = table_of(element, made)
    assert set(table.loc[table["status"] == "diverged", "run"]) == {run}
    assert words_of(element, table).count("diverged") == 1
    assert "diverged" not in words_of(element, table.assign(status="completed"))


ROLES = ("baseline", "run", "replica")


def test_of_many_runs_the_hashes_are_said_to_be_beside_the_picture(made: Path) -> None:
    """In a table whose name differs between the results and what is published of them."""
    table = table_of("fig8", made)
    first, every = (table.loc[table["role"].isin(roles), "run"].nunique() for roles in (ROLES[:2], ROLES))
    assert every > first
    table.loc[table["role"] == "replica", "git_commit"] = "of another seed"
    (*_, last) = source_lines.provenance(table)
    assert last.endswith(f"{every} runs, their hashes in the table (.csv) beside this picture")
    assert ", of another seed · " in last


BRACKETS = ("fig2", "fig4", "fig6", "fig7", "fig8", "fig11", "fig12", "fig13", "fig14")


@pytest.mark.parametrize("element", BRACKETS)
def test_the_papers_values_in_a_legend_are_those_of_the_claims(element: str, made: Path) -> None:
    ends = paper_of(element).drawn_ends
    assert ends
    words = words_of(element, table_of(element, made))
    for run, value in ends.items():
        label = "difference at the end" if element == "fig2" else paper_of(element).labels[run]
        lines = [text for text in words if text.startswith(f"{label}  ")]
        assert any(f"{value:+.2f}" in text for text in lines), (run, lines)
    assert any("read off its curves (configs/claims.yaml)" in " ".join(text.split()) for text in words)


def test_only_the_run_that_ends_early_is_read_and_compared_where_it_ends(made: Path) -> None:
    table, paper = table_of("fig7", made), paper_of("fig7")
    backward = "12b_switch_backward_82"
    assert set(paper.labels) - set(paper.drawn_ends) == {backward}
    end = ours_of(table, backward, "gap")["fraction"].max()
    [said] = [text for text in words_of("fig7", table) if re.search(r" % at \d+ %$", text)]
    curve = paper.curve(backward)
    near = curve[(curve["fraction"] > end - 0.02) & (curve["fraction"] <= end)]
    assert said.startswith("BF16 backward from 82 %  ")
    assert said.endswith(f"({near['value'].mean():+.2f}) % at {100 * end:.0f} %")
    assert paper_end(paper, backward, curve, None) != paper_end(paper, backward, curve, end)


@pytest.mark.parametrize("element", ["fig9", "fig10"])
def test_what_leaves_the_axis_of_the_gaps_beside_losses_is_told(element: str, made: Path) -> None:
    table = table_of(element, made)
    run = next(series for series in paper_of(element).series if series.run == "1p2b_last4")
    gaps = table[(table["run"] == run.run) & (table["quantity"] == "gap")]
    early = gaps.index[(gaps["fraction"] - 0.15).abs().argmin()]
    table.loc[early, "value"] = -77.0
    words = words_of(element, table)
    assert any(f"{run.label} -77 % at " in " ".join(text.split()) for text in words), "not in the notes"
    assert "to -77 %" in words, "not at its place"


@pytest.mark.parametrize(("element", "there", "all_runs"), [("fig8", 3, 5), ("fig9", 3, 6)])
def test_the_baseline_counts_among_the_recorded_runs(
    element: str, there: int, all_runs: int, made: Path
) -> None:
    """In Figure 8 the gaps are to it, in Figure 9 it has a curve."""
    table, paper = table_of(element, made), paper_of(element)
    baseline = table.loc[table["role"] == "baseline", "run"].iloc[0]
    kept = list(dict.fromkeys(table.loc[table["role"] == "run", "run"]))[: there - 1]
    table = table[table["run"].isin([baseline, *kept])]
    quantity = "gap" if element == "fig8" else "loss"
    ours = {series.run: ours_of(table, series.run, quantity) for series in paper.series}
    assert tier_title(table, paper, ours) == f"tiny tier, {there} of {all_runs} runs recorded so far"


#: The width in pixels at which README shows a picture, and the least height of letters there ("e" takes half of it).
README_WIDTH, LEAST = 830, 8.0


def test_letters_of_the_pictures_in_readme_can_be_read_at_the_width_that_it_shows(made: Path) -> None:
    """All but the fine print below the picture."""
    images = re.findall(r"!\[.*?\]\((\S+?)\.png\)", (REPO / "README.md").read_text())
    shown = {Path(image).stem if "docs" in image else Path(image).parent.parent.name for image in images}
    assert {"mechanisms", "fig6"} <= shown
    small = []
    for element in shown:
        figure = figure_of(element, table_of(element, made))
        pixels = README_WIDTH / figure.get_figwidth() / 72
        for text in drawn_texts(figure):
            if text not in figure.texts and text.get_fontsize() * pixels < LEAST:
                small.append((element, text.get_text(), round(text.get_fontsize() * pixels, 1)))
    assert small == []


@pytest.mark.parametrize("element", ["fig2", "fig6", "fig7", "fig8"])
def test_a_legend_says_what_stands_in_brackets(element: str, made: Path) -> None:
    words = words_of(element, table_of(element, made))
    assert any(re.search(r"[+-]\d\.\d\d \([+-]\d\.\d\d\) %", text) for text in words)
    assert "faint, in brackets: the paper (arXiv 2509.25149)" in words
