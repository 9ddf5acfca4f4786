"""The command line: what it prints, what it refuses, and that it stays light."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import ROOT, repro

from repro.experiments import load


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
    assert [line.split()[0] for line in lines] == list(load("paper", configs_dir=ROOT / "configs").runs)


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


def test_show_starts_an_element_of_the_paper_tier_on_slurm() -> None:
    """With --cores it would train a million steps on the login node."""
    output = repro("show", "fig8", "--tier", "paper")
    assert output.endswith("command: snakemake --profile slurm fig8 --config tier=paper\n")


@pytest.mark.parametrize(
    "words", [("show", "12b_nvfp4", "--command", "--tier", "paper"), ("list",), ("bench", "--list")]
)
def test_a_reader_that_has_enough_is_no_error(words: tuple[str, ...]) -> None:
    """repro ... | head -3, with a pipe that is closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        code = f"import sys; sys.argv = ['repro', *{words!r}]; from repro.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, check=False
        )
    assert done.stderr == b""
    assert done.returncode == 1


def test_plan_prints_totals_beside_their_assumptions() -> None:
    output = repro("plan", "--tier", "tiny")
    for word in (
        "total",
        "12b_fp8_seed2",
        "FLOPs",
        "12 bytes a parameter",
        "one CPU thread",
        "a product of two formats takes the slower one's, with BF16 among them BF16's",
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
        (
            ("show", "12b_rht4", "--command", "--layout", "xyz"),
            "--layout: without effect on the portable runs of tier tiny",
        ),
        (
            ("show", "12b_rht4", "--emulate"),
            "--emulate, --no-emulate: without effect on the portable runs of tier tiny",
        ),
        (("list", "--tier", ""), "--tier: say a tier"),
        (("diff", ":12b_rht4", "12b_rht4"), "--tier: say a tier"),
        (("show", "mechanism"), "did you mean 'mechanisms'"),
        (("show", "12b_rth4"), "did you mean '12b_rht4'"),
        (("show", "FIG8"), "did you mean 'fig8'"),
        (("show", "C19"), "no element or run 'C19'; fig8 judges that claim: `repro show fig8`"),
        (("show", "c7A"), "fig2 judges that claim"),
        (("plan", "12b_rth4"), "did you mean '12b_rht4'"),
        (("diff", "12b_rht4", "12b_rht_128"), "did you mean '12b_rht128'"),
        (("diff", "tinny:12b_rht4", "12b_rht4"), "no tier 'tinny'"),
        (("list", "--tier", "tinny"), "did you mean 'tiny'"),
        (("list", "--configs", "nowhere"), "nowhere/config.yaml: no such file"),
        (("check", "--results", "nowhere"), "snakemake --cores 2 check"),
        (
            ("check", "--tier", "paper", "--results", "nowhere"),
            "`snakemake --profile slurm check --config tier=paper` writes it",
        ),
        (("check", "--tier", "tinny"), "did you mean 'tiny'"),
    ],
)
def test_wrong_input_ends_in_one_line_and_exit_code_2(words: tuple[str, ...], expected: str) -> None:
    output = repro(*words, code=2)
    assert output.startswith("error: ")
    assert expected in output
    assert output.count("\n") == 1, output


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
        "print('imported:', *sorted({'torch', 'pandas'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "imported:", "the light commands load what is slow to import"
