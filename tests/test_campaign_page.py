"""docs/campaign.md says what the records and the campaign file hold."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest
from readme_text import ROOT, section
from recorded_runs import RECORDED, losses

from repro.campaign.__main__ import main
from repro.campaign.leases import CampaignFile, load_campaign
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


def file_of_leases() -> CampaignFile:
    return load_campaign(ROOT / "configs" / "campaign" / "proxy.yaml")


def test_the_table_of_leases_says_what_a_plan_leaves(frozen, capsys):
    table = PAGE.partition("| lease | for | state ")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    minutes, runs = defaultdict(list), {}
    for gpus in ("1", "2", "8"):
        assert (
            main(["--frozen", str(frozen), "--recorded", str(RECORDED.parent), "plan", "--gpus", gpus]) == 0
        )
        parts = capsys.readouterr().out.split("\n\n")
        for name, part in ((part.split(":")[0].split(",")[0], part) for part in parts):
            left = re.search(r" ([\d.]+) minutes", part.partition("\n")[0])
            if left and float(left[1]):
                minutes[name.replace("total", "all")].append(f"{float(left[1]):.0f}")
                runs[name] = len(re.findall(r"^    \w+ +[\d.]+M  ", part, re.MULTILINE))
    assert [row[0] for row in cells] == [*file_of_leases().leases, "all"]
    for name, _, state, left in cells[:-1]:
        assert left == " / ".join(minutes[name])
        ending = "1 run is left" if runs.get(name) == 1 else f"{runs.get(name)} runs are left"
        assert state.endswith(ending) if left else state.startswith("recorded, ")
    assert cells[-1][-1] == " / ".join(minutes["all"])


def test_the_runs_of_the_1p2b_stand_in_took_the_seconds_that_are_told():
    with (RECORDED / "runs.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["git_commit"].startswith("1482e45")]
    seconds = {row["run"]: float(row["seconds"]) for row in rows}
    weights = sorted(value for run, value in seconds.items() if "_weights_" in run)
    rest = [value for run, value in seconds.items() if "_weights_" not in run]
    assert len(seconds) == 10, "ten runs"
    assert f"({min(rest):.0f} to {max(rest):.0f} s of training steps a run" in PAGE
    assert f"{weights[0]:.0f} and {weights[1]:.0f} with only the weights in NVFP4)" in PAGE


def test_runs_with_other_transforms_took_the_seconds_that_are_told():
    with (RECORDED / "runs.csv").open(encoding="utf-8") as file:
        seconds = {row["run"]: float(row["seconds"]) for row in csv.DictReader(file)}
    took = [f"{seconds[f'1p2b_rht_size{size}']:.0f}" for size in (2, 4, 128)]
    assert "runs with 2, 4 and 128 took {}, {} and {} s.".format(*took) in PAGE


def test_the_campaign_page_expects_the_minutes_that_a_plan_prints(frozen, capsys):
    file = file_of_leases()

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
    first = re.search(r"What to train first: `start ([\w ]+)` \((\d+) minutes on two GPUs", PAGE)
    assert printed(today, "together", "--gpus", "2", *first[1].split()) == first[2]
    fork = file.lease(["12b_without_sr"], frozen).tasks(frozen)[0][-1]
    rates = file.new_rates()
    assert f"{fork.tokens / rates.rate(fork.cost_class, 1):.0f} s of it" in PAGE
    assert f"the plan expects {rates.seconds(fork, 1):.0f} s" in PAGE
