"""The benchmark of a model that others wrote: what it refuses, and that recipes are put into it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import any_model_step

PAGES = ("docs/own_model.md", "README.md")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--hidden", "100"], "--hidden 100 is no multiple of 64, the size of a head"),
        (["--batch", "1", "--length", "40"], "--batch 1 of --length 40: 40 tokens are no multiple of 16"),
        (["--recipes", "fp4"], "argument --recipes: invalid choice: 'fp4'"),
    ],
)
def test_a_llama_is_timed_of_sizes_that_make_one(words: list[str], told: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        any_model_step.parse(words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_llama_is_timed_with_recipes_beside_the_one_it_is(monkeypatch, capsys, tmp_path: Path) -> None:
    sizes = {"hidden": 64, "blocks": 2, "length": 16, "batch": 1, "steps": 1, "warmup": 0}
    words = [word for key, value in sizes.items() for word in (f"--{key}", str(value))]
    out = tmp_path / "rows.json"
    monkeypatch.setattr(any_model_step, "VOCABULARY", 64)
    monkeypatch.setattr(sys, "argv", ["script", "--recipes", "nvfp4", *words, "--out", str(out)])
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    assert any_model_step.main() == 0
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["row"] for row in rows] == ["nn.Linear", "nvfp4"]
    assert rows[0]["ratio"] == 1
    assert rows[0]["losses"] != rows[1]["losses"], "the recipe was not put into the model"
    assert "nvfp4" in capsys.readouterr().out


def test_the_speed_that_is_told_is_the_recorded_one() -> None:
    root = Path(__file__).resolve().parents[2]
    page, readme = (" ".join((root / name).read_text(encoding="utf-8").split()) for name in PAGES)
    eager, compiled, wide = (
        json.loads(
            (root / "benchmarks" / "results" / f"any_model_step{kind}_h200_2026-12-01.json").read_text()
        )
        for kind in ("", "_compiled", "_4096")
    )
    told = "{bf16} with recipe `bf16`, {fp8_block} `fp8_block`, {mxfp4} `mxfp4`, {nvfp4} `nvfp4`"
    ratios, of_wide, in_graph = (
        {row["row"]: f"{row['ratio']:.2f}" for row in rows["rows"]} for rows in (eager, wide, compiled)
    )
    assert told.format(**ratios) in page
    assert told.format(**of_wide) in page
    assert (
        f"a Llama of hidden size 4,096 trained at {of_wide['nvfp4']} of `nn.Linear`'s speed, one of 1,024 at "
        f"{ratios['nvfp4']}." in readme
    )
    assert f"`bf16` has {in_graph['bf16']} and `nvfp4` {in_graph['nvfp4']} of `nn.Linear`'s" in page
    faster = compiled["rows"][0]["tokens_per_second"] / eager["rows"][0]["tokens_per_second"]
    assert f"which is then {faster:.2f} times as fast" in page
    assert f"{eager['rows'][0]['parameters'] / 1e6:.0f}M parameters" in page
    assert (
        f"({wide['options']['blocks']} blocks, {wide['rows'][0]['parameters'] / 1e6:,.0f}M parameters)"
        in page
    )
    assert [rows["options"]["hidden"] for rows in (eager, compiled, wide)] == [1024, 1024, 4096]
    assert [rows["options"]["compile"] for rows in (eager, compiled, wide)] == [False, True, False]
