"""The golden texts of the cluster backend: arguments and environment of every run, kept in git for review.

``python -m repro.cluster.golden`` renews tests/cluster/golden/<run>.txt from configs/ (paper tier, default layout).
"""

from __future__ import annotations

from pathlib import Path

from repro.cluster.command import run_text
from repro.cluster.layout import DEFAULT_LAYOUT, load_layout
from repro.experiments import load

GOLDEN_DIR = Path("tests/cluster/golden")
TIER = "paper"


def texts() -> dict[str, str]:
    """Run name -> text, for every run of the paper tier."""
    layout = load_layout(DEFAULT_LAYOUT)
    return {name: run_text(run, layout) for name, run in load(TIER).runs.items()}


def renew(folder: Path = GOLDEN_DIR) -> list[Path]:
    """Writes what differs and removes what no run has; returns the files it touched."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = texts()
    touched = [path for path in folder.glob("*.txt") if path.stem not in wanted]
    for path in touched:
        path.unlink()
    for name, text in wanted.items():
        path = folder / f"{name}.txt"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            touched.append(path)
    return touched


if __name__ == "__main__":
    print(f"{GOLDEN_DIR}: {len(renew())} files changed")
