"""What the commands share: options, loading, and printing tables and lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from repro.experiments import Plan, load
from repro.experiments.config_file import check_config
from repro.experiments.errors import read_mapping

CONFIGS = Path("configs")
TierOption = Annotated[
    str | None, typer.Option("--tier", "-t", help="tiny, proxy or paper; default: configs/config.yaml")
]
ConfigsOption = Annotated[Path, typer.Option("--configs", help="folder with tiers/, experiments/, ...")]
ResultsOption = Annotated[Path | None, typer.Option(help="default: results of configs/config.yaml")]

# Columns of a table when the output is no terminal.
_PIPED_WIDTH = 180


def tier_name(tier: str | None, configs: Path) -> str:
    """`tier`, or the one of configs/config.yaml. Raises ValueError for an empty one, e.g. of a variable not set."""
    if tier == "":
        raise ValueError("--tier: say a tier, e.g. `--tier tiny`, or leave it out")
    return tier or str(_config(configs)["tier"])


def load_plan(tier: str | None, configs: Path) -> Plan:
    """The plan of a tier; raises ValueError in the user's words."""
    return load(tier_name(tier, configs), configs_dir=configs)


def results_of(tier: str, results: Path | None, configs: Path, *, recorded: bool = False) -> Path:
    """results/<tier>, or results/<tier>-recorded: what is drawn and judged from the records of the repository."""
    folder = results or Path(str(_config(configs)["results"]))
    return folder / (f"{tier}-recorded" if recorded else tier)


def _config(configs: Path) -> dict[str, Any]:
    """config.yaml of the folder, checked."""
    path = configs / "config.yaml"
    config = read_mapping(path)
    check_config(config, path)
    return config


def workflow(tier: str, configs: Path) -> str:
    """`snakemake` as it is called for a tier: jobs of cluster runs go to Slurm, not to this machine."""
    path = configs / "tiers" / f"{tier}.yaml"
    on_cluster = read_mapping(path).get("backend") == "cluster"
    return "snakemake --profile slurm" if on_cluster else "snakemake --cores 2"


def print_table(title: str, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A table without lines: readable in a terminal, greppable in a file."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    _console().print(table, "")


def say(*lines: str) -> None:
    """Each line as it is; empty ones are left out."""
    for line in lines:
        if line:
            _console().print(escape(line), soft_wrap=True)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)
