"""The command line: what it prints, what it refuses, and that it stays light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from repro.cli import app
from repro.experiments import load

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def repro(*words: str, code: int = 0) -> str:
    """Output of `repro words...`; fails when the exit code is another one or a traceback escapes."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == code, f"exit code {result.exit_code}:\n{result.output}"
    assert "Traceback" not in result.output
    return result.output


def test_list_names_elements_and_runs_with_their_sizes() -> None:
    output = repro("list", "--tier", "tiny")
    for word in ("12b_nvfp4", "1p2b_last4_2d_rht_sr", "12b_nvfp4 at 34.3 %", "wgrad.*.hadamard: 4"):
        assert word in output


@pytest.mark.parametrize("tier", ["tiny", "proxy", "paper"])
def test_every_tier_can_be_listed_shown_and_planned(tier: str) -> None:
    assert "fig6" in repro("list", "--tier", tier)
    for name in ("fig6", "fig14", "8b_mxfp4", "1p2b_sr_weights"):
        assert name in repro("show", name, "--tier", tier)
    assert "fig12" in repro("plan", "--tier", tier)


def test_list_of_runs_has_the_name_first_on_each_line() -> None:
    lines = repro("list", "--runs", "--tier", "paper").splitlines()
    assert [line.split()[0] for line in lines] == list(load("paper").runs)


@pytest.mark.parametrize(
    ("element", "statement", "number"),
    [
        ("fig6", "NVFP4 1.5%, MXFP4 2.5%", "nvfp4: -1.5; mxfp4: -2.5"),
        ("fig8", "added in turn", "last4_2d_rht_sr > last4_2d_rht > last4_2d > last4"),
        ("fig13", "one fixed sign vector", "fixed = per_transform > none"),
        ("table3", "parameter count", "12,310,000,000"),
    ],
)
def test_show_prints_a_claims_number_in_words(element: str, statement: str, number: str) -> None:
    [line] = [line for line in repro("show", element, "--tier", "proxy").splitlines() if number in line]
    assert line.index(statement) < line.index(number)


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


def test_show_tells_a_run_as_parent_fork_and_change() -> None:
    output = repro("show", "12b_rht4", "--tier", "tiny")
    for word in (
        "12b_nvfp4 at 34.3 %, to 39.4 %",
        "wgrad.*.hadamard: 4",
        "hadamard 4 fixed",
        "ablate_12b.yaml",
        "C14",
    ):
        assert word in output


def test_show_tells_an_element_with_runs_claims_and_command() -> None:
    output = repro("show", "fig12", "--tier", "tiny")
    for word in (
        "12b_rht128",
        "12b_nvfp4",
        "C14",
        "Hadamard 128",
        "snakemake --cores 2 fig12 --config tier=tiny",
    ):
        assert word in output


def test_plan_prints_totals_beside_their_assumptions() -> None:
    output = repro("plan", "--tier", "tiny")
    for word in (
        "total",
        "12b_fp8_seed2",
        "FLOPs",
        "12 bytes a parameter",
        "one CPU thread",
        "start-up included",
        "rounded to",
    ):
        assert word in output


def test_plan_of_one_figure_counts_the_parents_too() -> None:
    output = repro("plan", "fig12", "--tier", "tiny")
    assert "12b_nvfp4" in output
    assert "1p2b_last4" not in output


def test_diff_shows_what_really_differs() -> None:
    output = repro("diff", "12b_rht4", "12b_rht128", "--tier", "tiny")
    rows = [line.split() for line in output.splitlines()]
    assert ["recipe.wgrad.x.hadamard", "4", "128"] in rows
    assert ["recipe.wgrad.g.hadamard", "4", "128"] in rows
    assert len([row for row in rows if len(row) == 3 and "." in row[0]]) == 2, output


def test_diff_of_a_run_with_itself_says_so() -> None:
    assert "do not differ" in repro("diff", "12b_rht4", "12b_rht4", "--tier", "tiny")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("show", "12b_rht5", "--command"), "12b_rht4"),
        (("show", "fig12", "--command"), "fig12 is an element, --command wants a run: 12b_fp8, "),
        (("show", "table1", "--command"), "it has none"),
        (("show", "12b_rht4", "--layout", "h200x8"), "add --command"),
        (("show", "mechanism"), "did you mean 'mechanisms'"),
        (("show", "12b_rth4"), "did you mean '12b_rht4'"),
        (("plan", "12b_rth4"), "did you mean '12b_rht4'"),
        (("diff", "12b_rht4", "12b_rht_128"), "did you mean '12b_rht128'"),
        (("diff", "tinny:12b_rht4", "12b_rht4"), "no tier 'tinny'"),
        (("list", "--tier", "tinny"), "did you mean 'tiny'"),
        (("list", "--configs", "nowhere"), "nowhere/config.yaml: no such file"),
        (("check", "--results", "nowhere"), "snakemake --cores 2 check"),
        (("check", "--tier", "tinny"), "did you mean 'tiny'"),
    ],
)
def test_wrong_input_ends_in_one_line_and_exit_code_2(words: tuple[str, ...], expected: str) -> None:
    output = repro(*words, code=2)
    assert output.startswith("error: ")
    assert expected in output
    assert output.count("\n") == 1, output


def verdict(claim: str, kind: str, outcome: str) -> dict[str, str]:
    return {
        "claim": claim, "element": "fig2", "kind": kind, "statement": "s", "paper": "1", "ours": "2",
        "verdict": outcome, "reason": "[why]", "tier": "tiny",
    }  # fmt: skip


def write_check(folder: Path, *verdicts: dict[str, str], name: str = "tiny") -> None:
    (folder / name).mkdir()
    (folder / name / "check.json").write_text(json.dumps({"tier": "tiny", "claims": verdicts}))


def test_check_passes_when_exact_claims_hold(tmp_path: Path) -> None:
    write_check(tmp_path, verdict("C1", "exact", "reproduced"), verdict("C5", "value", "contradicted"))
    output = repro("check", "--tier", "tiny", "--results", str(tmp_path))
    assert "[why]" in output
    assert "1 reproduced, 1 contradicted" in output


def test_check_of_the_records_reads_their_own_folder(tmp_path: Path) -> None:
    write_check(tmp_path, verdict("C1", "exact", "reproduced"), name="tiny-recorded")
    options = ("--tier", "tiny", "--results", str(tmp_path))
    assert "1 reproduced" in repro("check", "--recorded", *options)
    assert "recorded" not in repro("check", *options, code=2), "nothing of the tiny tier is recorded"


def test_check_names_the_records_where_nothing_was_trained(tmp_path: Path) -> None:
    output = repro("check", "--tier", "proxy", "--results", str(tmp_path), code=2)
    assert "`make recorded`, then `repro check --recorded --tier proxy`" in output
    assert output.count("\n") == 1, output
    output = repro("check", "--recorded", "--tier", "proxy", "--results", str(tmp_path), code=2)
    assert (
        "`make recorded` writes it, or `snakemake --cores 2 check --config tier=proxy recorded=true`"
        in output
    )
    output = repro("check", "--recorded", "--tier", "tiny", "--results", str(tmp_path), code=2)
    assert "no run of tier tiny is recorded; recorded are runs of tier proxy: add `--tier proxy`" in output


@pytest.mark.parametrize("outcome", ["contradicted", "not measured"])
def test_check_fails_when_an_exact_claim_does_not_hold(outcome: str, tmp_path: Path) -> None:
    write_check(tmp_path, verdict("C1", "exact", outcome), verdict("C5", "value", "reproduced"))
    assert "do not hold: C1" in repro("check", "--tier", "tiny", "--results", str(tmp_path), code=1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"claims": []}', '{"claims": [{"claim": "C1"}]}'])
def test_check_refuses_a_damaged_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "check.json").write_text(text)
    assert "check.json" in repro("check", "--tier", "tiny", "--results", str(tmp_path), code=2)


def test_freeze_writes_once(tmp_path: Path) -> None:
    first = repro("freeze", "--tier", "tiny", "--results", str(tmp_path))
    second = repro("freeze", "--tier", "tiny", "--results", str(tmp_path))
    assert (tmp_path / "tiny" / "runs" / "12b_rht4" / "0" / "run.yaml").is_file()
    assert " 0 of " not in first
    assert " 0 of " in second


def test_quantize_is_there_with_its_own_help_and_errors(tmp_path: Path) -> None:
    assert "--hadamard" in repro("quantize", "--help")
    np.save(tmp_path / "x.npy", np.ones((4, 16), dtype=np.float32))
    repro("quantize", str(tmp_path / "x.npy"), "--out", str(tmp_path / "x.npz"))
    assert "codes" in np.load(tmp_path / "x.npz")
    assert "nvfp4" in repro(
        "quantize", str(tmp_path / "x.npy"), "--format", "nvpf4", "--out", str(tmp_path / "y.npz"), code=2
    )


def test_bench_is_there_with_its_own_help_and_errors() -> None:
    assert "--full" in repro("bench", "--help")
    assert "layer/nvfp4" in repro("bench", "--device", "cpu", "--list", "--rows", "layer")
    repro("bench", "--device", "cpu", "--rows", "no_such_row", code=2)


def test_nothing_but_quantize_and_bench_imports_torch_nothing_but_compare_pandas() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from repro.cli import app;"
        "[CliRunner().invoke(app, words) for words in (['list', '-t', 'tiny'], ['show', '12b_rht4'], ['--help'])];"
        "sys.exit(bool({'torch', 'pandas'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
