"""python -m repro.portable: what is wrong with its words or its surroundings is told in one line."""

import os
import subprocess
import sys

import pytest
from small_segment import MODEL, freeze

from repro.portable.__main__ import parser


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "repro.portable", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=60
    )


def test_bad_input_gives_one_line(tmp_path, data_dir):
    missing = run_command("nowhere.yaml", "--data", str(data_dir), "--state", str(tmp_path))
    assert missing.returncode == 1
    assert missing.stderr.count("\n") == 1, missing.stderr
    assert "nowhere.yaml: no such frozen run" in missing.stderr
    path = freeze(tmp_path / "run", model={**MODEL, "max_sequence_tokens": 128})
    no_data = run_command(str(path), "--data", str(tmp_path / "void"), "--state", str(tmp_path / "state"))
    assert no_data.returncode == 1
    assert "Traceback" not in no_data.stderr
    assert "void" in no_data.stderr


@pytest.mark.parametrize(
    ("option", "environment", "told"),
    [
        (["--device", "tpu"], {}, "error: device 'tpu': cpu, cuda or cuda:N"),
        (["--device", "cuda:7777"], {}, "error: device 'cuda:7777': "),
        ([], {"WORLD_SIZE": "two"}, "error: WORLD_SIZE is 'two', but must be"),
    ],
)
def test_a_wrong_option_or_variable_is_one_line_before_anything_is_done(tmp_path, option, environment, told):
    words = ["run.yaml", "--data", "data", "--state", str(tmp_path / "state"), *option]
    refused = run_command(*words, **environment)
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.startswith(told)
    assert refused.stderr.count("\n") == 1, refused.stderr


@pytest.mark.parametrize("threads", ["0", "-1", "two", "1.5", "100000", "99999999999999999999"])
def test_a_wrong_number_of_threads_is_one_line(threads, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["run.yaml", "--data", "data", "--state", "state", f"--threads={threads}"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == f"error: argument --threads: {threads!r}: a whole number from 1 to 1024\n"
