"""`repro show RUN`: what a run is trained with, and who says with which layout and on which path."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from command_line import ROOT, repro


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A shell that says nothing about a site."""
    monkeypatch.delenv("REPRO_CLUSTER_LAYOUT", raising=False)
    monkeypatch.delenv("REPRO_CLUSTER_EMULATE", raising=False)
    return monkeypatch


@pytest.fixture
def site(shell: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A site's file with a layout and emulation that are not the repository's."""
    file = tmp_path / "site.yaml"
    file.write_text("environment: {REPRO_CLUSTER_LAYOUT: h200x8, REPRO_CLUSTER_EMULATE: 1}\n")
    (tmp_path / "workflow.yaml").write_text(f"site: {file}\n")
    shell.setattr("repro.cluster.site.PROFILE", tmp_path / "workflow.yaml")
    return file


SHOW = ("show", "12b_nvfp4", "--command", "--tier", "paper")


@pytest.mark.usefixtures("shell")
def test_show_prints_all_that_a_cluster_run_is_trained_with() -> None:
    output = repro(*SHOW, "--layout", "gb200")
    golden = (ROOT / "tests" / "cluster" / "golden" / "12b_nvfp4.txt").read_text()
    assert output.endswith(golden)
    assert "# layout gb200 as said by --layout\n" in output
    for number in range(4):
        assert f"python -m repro.cluster results/paper/runs/12b_nvfp4/{number}/run.yaml " in output


@pytest.mark.usefixtures("shell")
def test_show_takes_the_layout_of_the_repositorys_site_file() -> None:
    said = yaml.safe_load((ROOT / "slurm" / "site.yaml").read_text())["environment"]["REPRO_CLUSTER_LAYOUT"]
    told = f"# layout {said} as said by slurm/site.yaml: environment.REPRO_CLUSTER_LAYOUT; --layout names another"
    assert told in repro(*SHOW)


def test_show_takes_layout_and_emulation_of_the_site_the_shell_or_an_option(site: Path, shell) -> None:
    output = repro(*SHOW)
    assert f"# layout h200x8 as said by {site}: environment.REPRO_CLUSTER_LAYOUT" in output
    assert "# layout h200x8, path emulated" in output
    assert "--fp4-recipe custom" in output
    assert "path:    emulated: asked for" in repro("show", "12b_nvfp4", "--tier", "paper")
    assert "# layout gb200, path te_nvfp4" in repro(*SHOW, "--layout", "gb200", "--no-emulate")
    shell.setenv("REPRO_CLUSTER_LAYOUT", "b200x8")
    shell.setenv("REPRO_CLUSTER_EMULATE", "0")
    output = repro(*SHOW)
    assert "# layout b200x8 as said by REPRO_CLUSTER_LAYOUT;" in output
    assert "# layout b200x8, path te_nvfp4" in output
    shell.delenv("REPRO_CLUSTER_LAYOUT")
    site.unlink()
    (site.parent / "workflow.yaml").unlink()
    assert "# layout gb200 as said by nobody: the one that jobs take then" in repro(*SHOW)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{REPRO_CLUSTER_LAYOUT: h200x}", "environment.REPRO_CLUSTER_LAYOUT: no layout 'h200x'"),
        ("{REPRO_CLUSTER_EMULATE: maybe}", "environment.REPRO_CLUSTER_EMULATE: 'maybe' is neither 0 nor 1"),
        ("[h200x8]", "environment: ['h200x8'] has no names; write NAME: value"),
    ],
)
def test_a_mistake_in_the_sites_file_is_told_with_its_place(site: Path, text: str, message: str) -> None:
    site.write_text(f"environment: {text}\n")
    assert f"error: {site}: {message}" in repro(*SHOW, code=2)


def test_show_prints_the_command_of_a_portable_run() -> None:
    output = repro("show", "12b_rht4", "--command", "--tier", "tiny")
    assert output.startswith("python -m repro.portable results/tiny/runs/12b_rht4/0/run.yaml --data ")


@pytest.mark.usefixtures("shell")
def test_show_names_the_path_of_a_cluster_run() -> None:
    paths = {run: repro("show", run, "--tier", "paper") for run in ("12b_nvfp4", "12b_rht4")}
    assert "path:    te_nvfp4: every operand fits NVFP4BlockScaling" in paths["12b_nvfp4"]
    assert "path:    emulated: hadamard is 4 in wgrad.x, wgrad.g" in paths["12b_rht4"]
    assert "path:    emulated: asked for" in repro("show", "12b_nvfp4", "--tier", "paper", "--emulate")
    assert "path:" not in repro("show", "12b_nvfp4", "--tier", "tiny")


def test_emulation_is_asked_for_by_0_or_1_and_nothing_else(monkeypatch) -> None:
    monkeypatch.setenv("REPRO_CLUSTER_EMULATE", "true")
    output = repro("show", "12b_nvfp4", "--tier", "paper", code=2)
    assert output == "error: REPRO_CLUSTER_EMULATE: 'true' is neither 0 nor 1\n"


@pytest.mark.usefixtures("shell")
def test_a_layout_that_does_not_fit_is_told_beside_the_command() -> None:
    output = repro("show", "12b_nvfp4", "--command", "--tier", "paper", "--layout", "h200x8")
    assert "# error: native NVFP4 needs compute capability 10.0 or 10.3" in output
