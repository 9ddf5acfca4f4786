"""What rows read in --configs is looked at before anything is measured."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repro.bench import machine
from repro.bench.__main__ import main

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SHORT", machine.Effort(0.0, 1, 1))


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A copy of configs/ in which one recipe names a format that does not exist."""
    folder = shutil.copytree(CONFIGS, tmp_path / "configs")
    recipe = folder / "recipes" / "nvfp4.yaml"
    recipe.write_text(recipe.read_text().replace("format: nvfp4", "format: nvfp5"))
    return folder


def _bench(configs: Path, *rows: str) -> int:
    return main(["--device", "cpu", "--configs", str(configs), "--rows", *rows])


def _refused(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr()
    assert not printed.out, "measured, or began to"
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize("rows", [("small/nvfp4", "layer/mxfp4/512"), ("step/8b/bf16",)])
def test_a_missing_folder_is_one_line_and_exit_code_2(rows, tmp_path: Path, capsys) -> None:
    assert _bench(tmp_path / "none", *rows) == 2
    assert f"--configs {tmp_path / 'none'}: no such folder; layers and steps read it" in _refused(capsys)


@pytest.mark.parametrize("rows", [("small/nvfp4", "layer/nvfp4/512"), ("step/8b/bf16",)])
def test_a_recipe_that_a_row_cannot_use_is_named(rows, wrong: Path, capsys) -> None:
    assert _bench(wrong, *rows) == 2
    said = _refused(capsys)
    assert f"--configs {wrong}: " in said
    assert "nvfp4.yaml: fprop.x.format: unknown format 'nvfp5'; did you mean 'nvfp4'?" in said


def test_a_folder_without_the_tier_is_told(tmp_path: Path, capsys) -> None:
    assert _bench(tmp_path, "step/8b/bf16") == 2
    assert "no tier 'tiny'" in _refused(capsys)


def test_rows_that_read_nothing_there_run_without_it(tmp_path: Path, wrong: Path, capsys) -> None:
    assert _bench(tmp_path / "none", "small/nvfp4/rows") == 0
    assert _bench(wrong, "layer/bf16_tensors/512") == 0
    assert "layer/bf16_tensors/512x256x1024" in capsys.readouterr().out


def test_an_option_without_its_value_is_one_line() -> None:
    command = [sys.executable, "-m", "repro.bench", "--rows"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "python -m repro.bench: argument --rows: expected at least one argument\n"
