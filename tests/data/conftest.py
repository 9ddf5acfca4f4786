"""A small prepared folder, made once: three embedded books, generated exercises, a 512-entry tokenizer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from snapshot_server import NO_APT, Archive, serving

from repro.data import snapshot
from repro.data.prepare import prepare
from repro.experiments.data_spec import DataSpec, load_data_spec

TINY = Path(__file__).parents[2] / "configs" / "data" / "tiny.yaml"


@pytest.fixture(scope="session")
def tiny_spec() -> DataSpec:
    return load_data_spec(TINY)


@pytest.fixture(scope="session")
def small_spec(tiny_spec) -> DataSpec:
    content = tiny_spec.model_dump()
    by_name = {source["name"]: source for source in content["sources"]}
    arithmetic = by_name["arithmetic"] | {
        "options": {"seed": 1, "tasks": {"gsm_symbolic": 100, "chain_sum": 60}}
    }
    content["sources"] = [
        *(by_name[name] for name in ("addresses", "shakespeare", "devils_dictionary", "declarations")),
        arithmetic,
    ]
    content["tokenizer"] = {"vocab_size": 512, "train_bytes": 200_000}
    blend = {"crawl": 60, "crawl_plus": 20, "wiki": 2, "math": 10, "multilingual": 8}
    content["blends"] = {
        "three_phase": [
            {"until_fraction": 0.7, "blend": blend},
            {"until_fraction": 0.9, "blend": {"crawl": 1, "math": 1}},
            {"until_fraction": 1.0, "blend": {"wiki": 1, "math": 3}},
        ]
    }
    return DataSpec.model_validate(content | {"name": "small"})


@pytest.fixture(scope="session")
def prepared(small_spec, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "small"
    prepare(small_spec, folder, say=lambda line: None)
    return folder


@pytest.fixture
def run_sections(small_spec) -> tuple[dict, dict]:
    """`data` and `schedule` of a frozen run of 100 steps of 4 samples of 64 tokens."""
    phases = small_spec.phases_of_run("three_phase", horizon_tokens=100 * 4 * 64, tokens_per_step=4 * 64)
    return {"name": "small", "seed": 7, "phases": phases}, {
        "sequence_length_tokens": 64,
        "batch_sequences": 4,
    }


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Archive]:
    """An archive that is asked in the place of Debian's, on a machine whose apt has no package."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "apt-get").write_text(NO_APT)
    (tools / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(snapshot, "WAITS_S", (0.0, 0.0))
    archive = Archive()
    with serving(archive) as url:
        monkeypatch.setattr(snapshot, "URL", url)
        yield archive
