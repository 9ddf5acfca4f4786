"""A copy of configs/ that a test may edit, and plans of the real one: the tiny tier's, and every tier's in turn."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from repro.experiments import Plan, load

CONFIGS = Path(__file__).parents[2] / "configs"


@dataclass(frozen=True)
class Configs:
    """A private copy of configs/."""

    folder: Path

    def edit(self, name: str, old: str, new: str) -> None:
        """Replaces `old`, which must stand exactly once in the file."""
        path = self.folder / name
        text = path.read_text()
        assert text.count(old) == 1, f"{name}: {old!r} stands {text.count(old)} times"
        path.write_text(text.replace(old, new))

    def append(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(path.read_text() + text)

    def add_run(self, text: str, file: str = "ablate_12b") -> None:
        """A further run of the 12B ablations, as `name: {...}`."""
        self.append(f"experiments/{file}.yaml", f"\n  {text}\n")

    def load(self, tier: str = "tiny") -> Plan:
        return load(tier, configs_dir=self.folder)


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    shutil.copytree(CONFIGS, tmp_path / "configs")
    return Configs(tmp_path / "configs")


@pytest.fixture(scope="session")
def tiny() -> Plan:
    return load("tiny", configs_dir=CONFIGS)


@pytest.fixture(scope="session", params=["tiny", "proxy", "paper"])
def plan(request: pytest.FixtureRequest) -> Plan:
    return load(request.param, configs_dir=CONFIGS)
