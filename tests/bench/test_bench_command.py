"""The command: its table, its file, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from repro.bench import machine
from repro.bench.__main__ import main


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SHORT", machine.Effort(0.0, 1, 1))
    monkeypatch.setattr("repro.bench.products.CPU_SHAPE", (32, 32, 64))


def _bench(*words: str) -> int:
    return main(["--device", "cpu", *words])


def test_rows_are_printed_and_kept_with_what_they_were_measured_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "rows.json"
    assert _bench("--rows", "product/bf16", "storage/nvfp4", "product/nvfp4/native", "--json", str(out)) == 0
    report = json.loads(out.read_text())
    assert {"git_commit", "versions", "device", "threads", "date", "run", "emulation"} <= set(report)
    assert report["ceilings"]["bf16_product_tflops"].keys() == {"32x32x64"}
    names = [row["name"] for row in report["rows"]]
    assert names == ["product/bf16/native", "product/nvfp4/native", "storage/nvfp4/1x16"]
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)
    assert "needs compute capability 10.0 or 10.3" in printed
    assert "no FP4 here" in printed
    assert not list(out.parent.glob(".*")), "a temporary file is left"


@pytest.mark.parametrize(("load", "num_notes"), [(7.0, 2), (0.0, 0)])
def test_a_busy_machine_is_told_again_beside_the_targets(load, num_notes, monkeypatch, capsys) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    assert _bench("--rows", "qdq/nvfp4/1x16/rne") == 0
    lines = capsys.readouterr().out.splitlines()
    notes = [number for number, line in enumerate(lines) if line.startswith("BUSY: load 7.0 on ")]
    assert len(notes) == num_notes
    [targets] = [number for number, line in enumerate(lines) if "targets met" in line]
    assert all(lines[note] == lines[notes[0]] for note in notes)
    assert notes[1:] == [targets + 1] * bool(notes)


def test_a_busy_machine_is_not_told_again_where_nothing_was_measured(monkeypatch, capsys) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (7.0, 0.0, 0.0))
    assert _bench("--rows", "product/nvfp4/native") == 0
    assert capsys.readouterr().out.count("BUSY: ") == 1


def test_list_names_rows_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench("--list", "--rows", "layer/nvfp4") == 0
    assert capsys.readouterr().out.startswith("layer/nvfp4/2048x512x2048")


def test_rows_of_a_gpu_are_listed_and_asked_for_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    name = "qdq/nvfp4/1x16/rne/amax-given"
    assert _bench("--list", "--rows", "qdq/nvfp4/1x16/rne") == 0
    own, other = capsys.readouterr().out.splitlines()
    assert own.startswith("qdq/nvfp4/1x16/rne ")
    assert other.startswith(name)
    assert other.endswith("; measured on a GPU only")
    assert _bench("--rows", name, "layer/nvfp4/8192x5120x20480") == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.endswith("measured on a GPU only")]
    assert [row.split()[0] for row in rows] == [name, "layer/nvfp4/8192x5120x20480"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rows", "qdqq"], "no row matches 'qdqq'; did you mean 'qdq'?"),
        (["--device", "cuda:77"], "CUDA GPU"),
        (["--device", "gpu"], "--device 'gpu': cpu, cuda or cuda:N"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(words, told, capsys) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "rows.json", tmp_path):
        assert _bench("--rows", "product/bf16", "--json", str(target)) == 2
        printed = capsys.readouterr()
        assert "cannot be written" in printed.err
        assert not printed.out


def test_a_row_that_breaks_gives_exit_code_1_and_the_others_run(monkeypatch, tmp_path, capsys) -> None:
    def breaks(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("repro.bench.products.make_packed", breaks)
    out = tmp_path / "rows.json"
    assert _bench("--rows", "storage/nvfp4", "product/bf16/native", "--json", str(out)) == 1
    assert "failed: storage/nvfp4/1x16" in capsys.readouterr().out
    assert [row["failed"] for row in json.loads(out.read_text())["rows"]] == [False, True]


def test_a_bare_machine_runs_passes_and_says_what_layers_need() -> None:
    """Only torch, numpy and PyYAML (on a GPU triton) are there."""
    absent = "pydantic", "typer", "rich", "snakemake", "lm_eval", "pandas"
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r}));"
        "from repro.bench import machine; machine.SHORT = machine.Effort(0.0, 1, 1);"
        "from repro.bench.__main__ import main;"
        "sys.exit(main(['--device', 'cpu', '--rows', 'small/nvfp4/rows', 'layer/nvfp4/512*', 'step/8b/bf16']))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    small, layer, step = (
        line for line in done.stdout.splitlines() if line.startswith(("small", "layer", "step"))
    )
    assert " us " in small
    assert layer.endswith("needs pydantic")
    assert step.endswith("needs pydantic")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_message_says_what_to_do(capsys) -> None:
    assert main(["--device", "cuda"]) == 2
    assert "no CUDA GPU here; --device cpu measures the processor" in capsys.readouterr().err.replace(
        "GPUs", "GPU"
    )
