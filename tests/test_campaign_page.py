"""docs/campaign.md says what the records and the campaign file hold."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import mean

import pytest
from readme_text import ROOT, section
from recorded_runs import RECORDED, losses

from repro.campaign.__main__ import main
from repro.campaign.leases import load_campaign
from repro.experiments import freeze_all, load

PAGE = (ROOT / "docs" / "campaign.md").read_text(encoding="utf-8")
WORDS = " ".join(section("The proxy tier so far").split())


def test_repeated_runs_are_listed_with_what_they_repeat():
    with (RECORDED / "runs.csv").open(encoding="utf-8") as file:
        known = {row["run"]: row for row in csv.DictReader(file)}
    with (RECORDED / "repeats.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        steps = len(losses(row["run"]))
        assert f"{steps} steps in BF16, gave all their losses again" in WORDS
        assert f"gave all {steps} training losses" in PAGE
        assert f"`{row['run']}`" in PAGE
        assert row["steps"] == row["equal_train_losses"] == str(steps)
        same = ("device", "torch", "triton", "data_sha256", "run_hash")
        assert [row[key] for key in same] == [known[row["run"]][key] for key in same]
        assert row["git_commit"] != known[row["run"]]["git_commit"]


def test_the_campaign_page_says_what_every_column_of_the_run_list_is():
    table = PAGE.partition("| column | what it is |\n")[2].partition("\n\n")[0]
    with (RECORDED / "runs.csv").open(encoding="utf-8") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    told = [name for line in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", line.split(" | ")[0])]
    assert sorted(told) == sorted(rows["8b_bf16"])
    average, run, last = re.search(r"([\d.]+) for `(\w+)`, whose last step has ([\d.]+)", table).groups()
    values = [*losses(run).values()]
    tail = values[int(0.98 * len(values)) :]
    assert (average, last) == (f"{mean(tail):.2f}", f"{float(rows[run]['train_loss']):.2f}")


@pytest.fixture(scope="module")
def frozen(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    freeze_all(load("proxy"), folder)
    return folder / "runs"


def test_the_campaign_page_expects_the_minutes_that_a_plan_prints(frozen, capsys):
    file = load_campaign(ROOT / "configs" / "campaign" / "proxy.yaml")

    def printed(recorded: Path, line: str, *words: str) -> str:
        """Minutes in a line of a plan."""
        assert main(["--frozen", str(frozen), "--recorded", str(recorded), "plan", *words]) == 0
        found = re.search(rf"^{line}\b.* ([\d.]+) minutes", capsys.readouterr().out, re.MULTILINE)
        return f"{float(found[1]):.0f}"

    nothing, today = Path("none"), RECORDED.parent
    names = re.search(r"on eight `start ([\w ]+)`", PAGE)[1].split()
    new, left = (printed(recorded, "together", "--gpus", "8", *names) for recorded in (nothing, today))
    assert f"expected to take {new} minutes with nothing recorded, {left} with what is recorded now" in PAGE
    assert f"({printed(nothing, 'large', '--gpus', '4', 'large')} for `large`, from four GPUs on)" in PAGE
    fork = file.lease(["12b_without_sr"], frozen).tasks(frozen)[0][-1]
    rates = file.new_rates()
    assert f"{fork.tokens / rates.rate(fork.cost_class, 1):.0f} s of it" in PAGE
    assert f"the plan expects {rates.seconds(fork, 1):.0f} s" in PAGE
