"""The words around a picture that say where its numbers come from: tier, size of the models, seeds, commits, runs.

They are read off the provenance columns of the table that is drawn. Does not: draw (repro.analysis.drawing).
"""

from __future__ import annotations

import pandas as pd

from repro.analysis.curves import missing_names, missing_runs
from repro.analysis.verdicts import human

# More runs than that are not named with their hashes below a picture: the table from which it is drawn names them.
MOST_HASHES = 3


def provenance(table: pd.DataFrame, *notes: str) -> list[str]:
    """Lines that say what the drawn numbers come from, from the provenance columns of a table."""
    tier = str(table["tier"].iloc[0])
    lines = [note for note in notes if note]
    last = [f"{tier} tier"]
    if lost := missing_names(table):
        lines.append("not recorded: " + ", ".join(lost))
    runs = _runs(table)
    if len(runs):
        last[0] += f" ({' and '.join(_sizes(runs))} parameters)"
        every = _runs(table, with_seeds=True)
        commits = ", ".join(dict.fromkeys(str(commit) for commit in every["git_commit"]))
        hashes = [f"{run} {row.run_hash[:8]}" for run, row in every.iterrows()]
        beside = f"{len(hashes)} runs, their hashes in the table (.csv) beside this picture"
        last.append(f"commit {commits} · {', '.join(hashes) if len(hashes) <= MOST_HASHES else beside}")
    if tier != "paper":
        last[0] += " · stand-in models and data: not the paper's result"
    return [*lines, *last]


def stand_in(table: pd.DataFrame, *, with_seeds: bool = True) -> str:
    """The line below the title: that a small tier's models stand for the paper's, their size and their seeds.

    "" at the paper's size and without a run. `with_seeds`: false of what no seed has a part in.
    """
    tier, runs = str(table["tier"].iloc[0]), _runs(table)
    if tier == "paper" or runs.empty:
        return ""
    sizes = _sizes(runs)
    words = f"{'- and '.join(sizes)}-parameter stand-in{'s' if len(sizes) > 1 else ''}"
    return f"{tier} tier: {words}" + (f", {_seed_words(table, runs)}" if with_seeds else "")


def _seed_words(table: pd.DataFrame, runs: pd.DataFrame) -> str:
    """1 to 2 seeds; baseline: 3 seeds. How many the runs have, and their baseline where that has another number."""
    if "replica" not in table:
        return "one seed"
    every = {run: table.loc[table["replica_of"] == run, "replica"].nunique() for run in runs.index}
    of_baseline = {every[run] for run in runs.index[runs["role"] == "baseline"]}
    of_runs = {every[run] for run in runs.index[runs["role"] != "baseline"]} or of_baseline
    words = _count(of_runs)
    other = _count(of_baseline) if of_baseline else words
    return words if other == words else f"{words}; baseline: {other}"


def _count(numbers: set[int]) -> str:
    few, most = min(numbers), max(numbers)
    return "one seed" if most == 1 else f"{most} seeds" if few == most else f"{few} to {most} seeds"


def _runs(table: pd.DataFrame, *, with_seeds: bool = False) -> pd.DataFrame:
    """One row a recorded run, of the first seed or of all, indexed by its name; empty for a table without runs."""
    if "num_parameters" not in table:
        return pd.DataFrame()
    roles = table.get("role", pd.Series("run", index=table.index))
    left_out = ["missing"] if with_seeds else ["missing", "replica"]
    drawn = ~roles.isin(left_out) & ~table["run"].isin(missing_runs(table))
    return table[drawn].groupby("run", sort=False).first()


def _sizes(runs: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(human(size) for size in sorted(runs["num_parameters"])))
