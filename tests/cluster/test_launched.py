"""Waiting for processes of a launch: who was waited for is told, and nobody is left running."""

from __future__ import annotations

import time

import pytest
from launched import finish, finish_all, process_of, wait_for

SLEEPS = ["-c", "import time; print('meeting the others', flush=True); time.sleep(90)"]
FAILS = ["-c", "print('no such layer'); raise SystemExit(3)"]
ENDS = ["-c", "print('complete')"]


def two(first, second):
    return [process_of(words, f"process {rank} of 2") for rank, words in enumerate((first, second))]


def test_ends_are_told_in_order_of_rank():
    assert finish_all(two(ENDS, FAILS)) == [(0, "complete\n"), (3, "no such layer\n")]
    assert finish(process_of(FAILS, "process 0 of 1")) == (3, "no such layer\n")


def test_a_process_that_waits_for_a_failed_one_is_not_waited_for():
    processes = two(SLEEPS, FAILS)
    began = time.monotonic()
    with pytest.raises(pytest.fail.Exception) as told:
        finish_all(processes, seconds=60, grace=0.5)
    assert time.monotonic() - began < 30
    first, *rest = str(told.value).splitlines()
    assert first.endswith("s for process 0 of 2")
    assert "process 0 of 2 did not end; it said: " in rest[0]
    assert "process 1 of 2 ended with exit code 3; it said: no such layer" in rest
    assert all(process.popen.poll() is not None for process in processes)


def test_a_launch_that_hangs_says_which_processes():
    processes = two(SLEEPS, SLEEPS)
    with pytest.raises(pytest.fail.Exception, match="waited 1 s for process 0 of 2 and process 1 of 2"):
        finish_all(processes, seconds=1)
    assert all(process.popen.poll() is not None for process in processes)


def test_a_file_that_never_comes_is_waited_for_so_long_and_its_process_named(tmp_path):
    process = process_of(SLEEPS, "process 1 of 2")
    with pytest.raises(pytest.fail.Exception, match="waited 1 s for process 1 of 2"):
        wait_for(tmp_path / "meta.json", process, seconds=1)
    assert process.popen.poll() is not None
    with pytest.raises(AssertionError, match=r"process 1 of 2 made no .*meta\.json and said: no such layer"):
        wait_for(tmp_path / "meta.json", process_of(FAILS, "process 1 of 2"))
