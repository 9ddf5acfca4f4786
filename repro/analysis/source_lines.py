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
    if seeds := _seeds(table):
        lines.append(f"drawn, and in legends: seed 1; verdicts take the mean over the seeds ({seeds})")
    runs = _runs(table)
    if len(runs):
        last[0] += f" ({' and '.join(_sizes(runs))} parameters)"
        commits = ", ".join(dict.fromkeys(str(commit) for commit in runs["git_commit"]))
        hashes = [f"{run} {row.run_hash[:8]}" for run, row in runs.iterrows()]
        beside = f"{len(hashes)} runs, their hashes beside this picture: data.csv, published as {tier}.csv"
        last.append(f"commit {commits} · {', '.join(hashes) if len(hashes) <= MOST_HASHES else beside}")
    if tier != "paper":
        last[0] += " · stand-in models and data: not the paper's result"
    return [*lines, *last]


def stand_in(table: pd.DataFrame) -> str:
    """The line below the title: that a small tier's models stand for the paper's, their size and their seeds.

    "" at the paper's size and without a run.
    """
    tier, runs = str(table["tier"].iloc[0]), _runs(table)
    if tier == "paper" or runs.empty:
        return ""
    sizes = _sizes(runs)
    words = f"{'- and '.join(sizes)}-parameter stand-in{'s' if len(sizes) > 1 else ''}"
    numbers = [1]
    if "replica" in table:
        numbers = [table.loc[table["replica_of"] == run, "replica"].nunique() for run in runs.index]
    few, most = min(numbers), max(numbers)
    seeds = "one seed" if most == 1 else f"{most} seeds" if few == most else f"{few} to {most} seeds"
    return f"{tier} tier: {words}, {seeds}"


def _runs(table: pd.DataFrame) -> pd.DataFrame:
    """One row a recorded run that is no replica, indexed by its name; empty for a table without runs."""
    if "num_parameters" not in table:
        return pd.DataFrame()
    roles = table.get("role", pd.Series("run", index=table.index))
    drawn = ~roles.isin(["replica", "missing"]) & ~table["run"].isin(missing_runs(table))
    return table[drawn].groupby("run", sort=False).first()


def _sizes(runs: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(human(size) for size in sorted(runs["num_parameters"])))


def _seeds(table: pd.DataFrame) -> str:
    """The drawn runs that were repeated, with their number of seeds."""
    if "replica" not in table:
        return ""
    drawn = dict.fromkeys(table.loc[table["role"] == "run", "run"])
    numbers = table.groupby("replica_of")["replica"].nunique()
    return ", ".join(f"{run} {numbers[run]}" for run in drawn if numbers[run] > 1)
