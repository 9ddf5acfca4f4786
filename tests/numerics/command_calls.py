"""`repro quantize` as a test calls it."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

from repro.numerics.command import quantize_command

app = typer.Typer()
app.command("quantize")(quantize_command)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def refused(tmp_path, *arguments):
    """The one line a refusal prints; nothing may be left behind."""
    result = run(*arguments, "--out", tmp_path / "out.npz")
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert [p.name for p in tmp_path.iterdir() if "out" in p.name] == []
    return result.stderr
