"""`repro` as it is typed in the repository's folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

from typer.testing import CliRunner

from repro.cli import app

ROOT = Path(__file__).parents[1]


def repro(*words: str, code: int = 0) -> str:
    """Output of `repro words...`; fails when the exit code is another one or a traceback escapes."""
    with contextlib.chdir(ROOT):
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == code, f"exit code {result.exit_code}:\n{result.output}"
    assert "Traceback" not in result.output
    return result.output
