"""What signals do before and after training can be saved; in processes of their own, as a handler is a process'."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, subprocess, sys, time
from repro.portable.stop import StopRequests

def asked(within=5.0):
    end = time.monotonic() + within
    while not stop.is_asked and time.monotonic() < end:
        time.sleep(0.01)
    return stop.is_asked

stop = StopRequests()
"""

BLOCKED = """
import ctypes
subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -{sys.argv[1]} {os.getpid()}"])
ctypes.CDLL(None).pause()  # in a library; a signal interrupts it, but the next one waits again
while True:
    ctypes.CDLL(None).pause()
"""

SAVING = """
stop.start_saving()
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(0)
os.kill(child, signal.SIGTERM)
print("from a child", asked(within=0.3))
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
os.kill(os.getpid(), getattr(signal, "SIG" + sys.argv[1]))
print("own", asked())
"""


def run(script: str, name: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", SCRIPT + script, name]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("INT", 130)])
def test_before_training_a_signal_ends_the_process_whatever_it_waits_for(name, code):
    done = run(BLOCKED, name)
    assert done.returncode == code, done.stderr
    assert done.stderr == "stopped before training began: nothing to save; the same command starts it\n"


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_later_it_asks_to_stop_and_a_childs_signals_are_its_own(name):
    done = run(SAVING, name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["from a child False", "own True"]
