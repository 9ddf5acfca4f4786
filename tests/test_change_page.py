"""docs/change.md: the files that it names are there, what it says to write is taken, and means what it says."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import textwrap
from pathlib import Path

import pytest
import torch
import yaml
from command_line import repro
from readme_text import ROOT, section

from repro.analysis.paper import load_paper
from repro.analysis.paper_file import check_elements
from repro.data.sources import READERS
from repro.experiments import load
from repro.experiments.model import load_model_spec
from repro.numerics import QuantSpec, formats, quantize

PAGE = (ROOT / "docs" / "change.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


def blocks() -> dict[str, str]:
    """Indented lines below a comment that names their file, by that file."""
    found = re.findall(r"^    # (\S+\.(?:py|yaml)).*\n((?:    .*\n)+)", PAGE, re.MULTILINE)
    assert len(found) == 5
    return {name: textwrap.dedent(lines) for name, lines in found}


BLOCKS = blocks()
pytestmark = pytest.mark.skipif(
    any((ROOT / name).exists() for name in BLOCKS if "/own" in name or "hadamard_32" in name),
    reason="the page has been followed here: its runs and claims would be there twice",
)
RUN = "1p2b_rht_wgrad32"


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """configs/ with the page's own files in it."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    for name, text in BLOCKS.items():
        if name.startswith("configs/") and not (ROOT / name).exists():
            (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / "configs"


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, f"{path}: {old!r} stands {text.count(old)} times"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def test_the_files_that_it_names_are_there():
    named = set(re.findall(r"`((?:configs|repro|paper_figures|tests|slurm|docs)/[^` ]*)`", PAGE))
    own = {name for name in named if re.search(r"/mid[./]", name)}
    assert len(named) > 20
    assert "`docs/change.md`" in section("Where do I change ...")
    assert [name for name in sorted(named - own) if not (ROOT / name).exists()] == []
    assert all((ROOT / name.replace("mid", "proxy")).exists() for name in own)


def test_the_ablation_is_what_is_said(configs: Path):
    plan = load("tiny", configs_dir=configs)
    rules = plan.run(RUN).recipe.wgrad
    assert [(rule.hadamard, rule.signs) for rule in (rules.x, rules.g)] == [(32, "fixed")] * 2
    (words,) = re.findall(r"^    repro (diff .*)$", PAGE, re.MULTILINE)
    assert "recipe.wgrad.x.hadamard" in repro(*words.split(), "--configs", str(configs))
    assert f"results/tiny/runs/{RUN}/0/done.json" in PAGE
    assert [segment.index for segment in plan.run(RUN).segments] == [0]


def test_a_further_seed_is_a_run(configs: Path):
    (line,) = re.findall(rf"`({RUN}: .*?)`", PAGE)
    edit(configs / "tiers" / "tiny.yaml", ("replicas:", f"replicas:\n  {line}\n#"))
    (replica,) = load("tiny", configs_dir=configs).replicas(RUN)
    assert f"`{replica}`" in PAGE


def test_the_figure_of_ones_own_is_taken(configs: Path):
    name = "paper_figures/hadamard_32/paper.yaml"
    folder = configs.parent / "hadamard_32"
    folder.mkdir()
    (folder / "paper.yaml").write_text(BLOCKS[name], encoding="utf-8")
    claims = configs / "claims.yaml"
    claims.write_text(claims.read_text(encoding="utf-8") + BLOCKS["configs/claims.yaml"], encoding="utf-8")
    paper = load_paper(folder, claims)
    assert paper.element == paper.claims["O1"].where
    assert set(paper.claims["O1"].numbers["order"]) == set(paper.judge["O1"]["arms"])
    assert paper.stated.keys() == {"horizon_trillions", "parameters", "baseline"}
    assert paper.stated["baseline"] in yaml.safe_load(BLOCKS[name])["caption"]
    assert paper.claims["O1"].is_own
    figures = configs.parent / "paper_figures"
    figures.mkdir()
    for path in (ROOT / "paper_figures").glob("*/paper.yaml"):
        (figures / path.parent.name).mkdir()
        shutil.copy(path, figures / path.parent.name)
    shutil.copytree(folder, figures / folder.name)
    assert check_elements(load("tiny", configs_dir=configs), figures)[folder.name].source == "own"
    plan = load("tiny", configs_dir=configs)
    needed = yaml.safe_load(BLOCKS[name])["needs"]["runs"]
    assert all(run in plan.runs for run in needed)
    source = (ROOT / "paper_figures" / "fig11" / "figure.py").read_text(encoding="utf-8")
    assert {"RUNS", "NOISE", "BASELINE"} <= {*re.findall(r"^(\w+) = ", source, re.MULTILINE)}


def test_the_number_format_is_what_is_said():
    names = dict(vars(formats))
    exec(BLOCKS["repro/numerics/formats.py"], names)
    assert names["INT4"].magnitudes == tuple(range(8))
    assert names["INT4_FP8"].is_exact_in_bf16
    x = torch.randn(4, 32)
    quantized = quantize(x, QuantSpec(names["INT4_FP8"], (1, 16)))
    # Half a step of at most a seventh of the largest value, and E4M3's rounding of the scale.
    assert (quantized.dequantize() - x).abs().max() < x.abs().max() / 12
    assert f'`changes: {{"*.*.format": {names["INT4_FP8"].name}}}`' in WORDS


def test_ones_own_text_is_taken(configs: Path):
    edit(configs / "tiers" / "tiny.yaml", ("data: tiny", "data: own"))
    assert load("tiny", configs_dir=configs).data_config == "own"
    (source,) = yaml.safe_load(BLOCKS["configs/data/own.yaml"])["sources"]
    assert source["kind"] in READERS


def test_the_tier_of_ones_own_is_what_is_said(configs: Path):
    shutil.copytree(configs / "models" / "proxy", configs / "models" / "mid")
    shutil.copy(configs / "tiers" / "proxy.yaml", configs / "tiers" / "mid.yaml")
    edit(configs / "tiers" / "mid.yaml", ("tier: proxy", "tier: mid"))
    model = configs / "models" / "mid" / "1p2b.yaml"
    for key in ("hidden_size", "ffn_hidden_size", "num_attention_heads", "num_key_value_heads"):
        (line,) = re.findall(rf"`({key}: \d+)`", PAGE)
        model.write_text(re.sub(rf"^{key}: \d+", line, model.read_text(), flags=re.MULTILINE))
    assert f"has {load_model_spec(model).num_parameters() / 1e6:.0f}M parameters" in WORDS
    (words,) = re.findall(r"`repro (plan .*?)`", WORDS)
    assert "1p2b_bf16" in repro(*words.split(), "--configs", str(configs))


def test_widths_go_along_as_is_said():
    spec = load_model_spec(ROOT / "configs" / "models" / "tiny" / "1p2b.yaml")
    assert spec.ffn_hidden_size == 3 * spec.hidden_size
    assert spec.init_std == pytest.approx(0.014 * (2048 / spec.hidden_size) ** 0.5, rel=0.01)
    assert "(0.014 x sqrt(2048 / width))" in WORDS


def test_the_lines_for_transformers_name_what_is_there():
    lines = re.findall(r"^    (from .*)$", PAGE, re.MULTILINE)
    for node in ast.parse("\n".join(lines)).body:
        module = importlib.import_module(node.module)
        assert all(hasattr(module, alias.name) for alias in node.names), node.module
    assert len(lines) == 4
