"""`python -m repro.cluster explain`: what it prints, and whose layout and emulation it takes."""

import subprocess
import sys

import pytest

from repro.cluster import site
from repro.cluster.__main__ import main
from repro.experiments.freeze import frozen_text


@pytest.fixture
def frozen_file(tmp_path, paper):
    """Writes the first segment of a run of the paper."""

    def write(run):
        path = tmp_path / "run.yaml"
        path.write_text(frozen_text(paper.run(run).segments[0].frozen))
        return str(path)

    return write


def test_explain_prints_path_reasons_and_the_whole_command(frozen_file, capsys):
    path = frozen_file("12b_rht4")
    assert main(["explain", path]) == 0
    text = capsys.readouterr().out
    assert "path emulated" in text
    assert "because hadamard is 4 in wgrad.x, wgrad.g" in text
    assert "--fp4-quantizer-factory repro.cluster.quantizers.factory" in text
    assert main(["explain", path, "--layout", "hopper"]) == 1


def test_a_site_says_once_for_all_jobs_that_four_bits_are_emulated(frozen_file, capsys, monkeypatch):
    path = frozen_file("12b_nvfp4")
    for value, words, expected in (
        ("1", [], "emulated"),
        ("0", [], "te_nvfp4"),
        ("1", ["--no-emulate"], "te_nvfp4"),
    ):
        monkeypatch.setenv("REPRO_CLUSTER_EMULATE", value)
        assert main(["explain", path, *words]) == 0
        assert f"path {expected}" in capsys.readouterr().out
    monkeypatch.setenv("REPRO_CLUSTER_EMULATE", "True")
    assert main(["explain", path]) == 1, "a word that would be read as no"


def test_explain_takes_the_sites_layout_and_a_job_that_of_its_environment(
    frozen_file, tmp_path, capsys, monkeypatch
):
    path = frozen_file("12b_nvfp4")
    file = tmp_path / "site.yaml"
    file.write_text("environment: {REPRO_CLUSTER_LAYOUT: h200x8, REPRO_CLUSTER_EMULATE: 1}\n")
    (tmp_path / "workflow.yaml").write_text(f"site: {file}\n")
    monkeypatch.setattr(site, "PROFILE", tmp_path / "workflow.yaml")
    for variable in (site.LAYOUT_VARIABLE, site.EMULATE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    assert main(["explain", path]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"# layout h200x8 as said by {file}: environment.REPRO_CLUSTER_LAYOUT;")
    assert "on layout h200x8 (NVIDIA H200): path emulated" in text
    assert site.layout_here(None, site.from_shell)[0].name == "gb200", "another site's job may have set none"
    assert not site.emulation_here(None, site.from_shell)
    monkeypatch.setenv(site.LAYOUT_VARIABLE, "b200x8")
    assert main(["explain", path]) == 0
    assert "# layout b200x8 as said by REPRO_CLUSTER_LAYOUT" in capsys.readouterr().out


def test_explaining_needs_neither_torch_nor_megatron_nor_transformer_engine():
    code = (
        "import sys; from repro.cluster import command, golden, __main__, state, stack; golden.texts(); "
        "bad = {'torch', 'megatron', 'transformer_engine', 'mamba_ssm'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
