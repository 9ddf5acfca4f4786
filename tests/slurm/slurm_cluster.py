"""A Slurm of several nodes on this machine, for tests: own munged, slurmctld and slurmd's below one folder.

As a script it starts that Slurm for one command and ends it afterwards, e.g. for the rehearsal of slurm/README.md:
`python tests/slurm/slurm_cluster.py snakemake --profile slurm ...`.

Nodes are names on the loopback interface, their CPUs and GPUs are told, not real (each GPU is a link to /dev/null),
and nothing is confined. What is real: allocations, steps, signals, time limits, preemption, requeueing, node failure,
an unreachable controller. The inner jobs of Snakemake's Slurm plugin lose SLURM_CONF, so the configuration is linked
into /etc/slurm: one cluster a machine at a time, as root. Not here: accounting (no slurmdbd), cgroups, a network.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
_ETC = Path("/etc/slurm")
_LINKED = ("slurm.conf", "gres.conf", "cgroup.conf")


def missing() -> str | None:
    """Why no cluster can be started here; None when it can."""
    absent = [name for name in DAEMONS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)}: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
    if os.geteuid() != 0:
        return "only root may link a test cluster's configuration into /etc/slurm"
    for name in _LINKED:
        path = _ETC / name
        if path.exists() and not path.is_symlink():
            return f"{path} is a real cluster's configuration"
    return None


def wait_for(condition: Callable[[], object], what: str, *, seconds: float = 120.0) -> object:
    """Polls until `condition()` is true; AssertionError naming `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(0.1)
    return found


class Cluster:
    """Four nodes of 8 CPUs and 8 GPUs; partitions `cpu`, `gpu`, `urgent` (preempts) and `spare` (is preempted)."""

    def __init__(self, folder: Path, *, nodes: int = 4, controller_port: int = 16817) -> None:
        self.folder, self.num_nodes, self._port = folder, nodes, controller_port
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "etc/slurm.conf")}

    # life

    def start(self) -> None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                raise RuntimeError(
                    f"port {self._port} answers: a test cluster is still running here (pgrep -a 'slurm|munged')"
                )
        for name in ("etc", "state", "spool", "log", "pid", "gpu", "munge"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._write_configuration()
        _ETC.mkdir(exist_ok=True)
        for name in _LINKED:
            with suppress(FileNotFoundError):
                (_ETC / name).unlink()
            (_ETC / name).symlink_to(self.folder / "etc" / name)
        self.start_munge()
        self.start_controller()
        for number in range(1, self.num_nodes + 1):
            self.start_node(number)
        wait_for(self.is_idle, "all nodes to be idle")

    def stop(self) -> None:
        with suppress(subprocess.SubprocessError):
            self.run("scancel", "--user", str(os.getuid()), timeout=10)
        with suppress(subprocess.SubprocessError, AssertionError):
            wait_for(lambda: not self.jobs("running,completing"), "the jobs to end", seconds=20)
        for pid_file in sorted((self.folder / "pid").glob("slurmd.*.pid")):
            self._end(pid_file)
        for name in ("slurmctld", "munged"):
            self._end(self.folder / f"pid/{name}.pid")
        for name in _LINKED:
            if (_ETC / name).is_symlink():
                (_ETC / name).unlink()

    def start_munge(self) -> None:
        key = self.folder / "munge/key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(1024))
        names = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        places = ("munge/key", "munge/socket", "pid/munged.pid", "munge/log", "munge/seed")
        options = [f"--{name}={self.folder / place}" for name, place in zip(names, places, strict=True)]
        subprocess.run(["munged", "--force", *options], check=True, capture_output=True)

    def stop_munge(self) -> None:
        self._end(self.folder / "pid/munged.pid")

    def start_controller(self) -> None:
        subprocess.run(["slurmctld"], env=self.environment, check=True, capture_output=True)

    def stop_controller(self, number: int = signal.SIGTERM) -> None:
        self._end(self.folder / "pid/slurmctld.pid", number)

    def start_node(self, number: int) -> None:
        (self.folder / f"spool/node{number}").mkdir(exist_ok=True)
        subprocess.run(
            ["slurmd", "-N", f"node{number}"], env=self.environment, check=True, capture_output=True
        )

    # questions and orders

    def run(self, *command: str, timeout: float = 30, check: bool = False) -> str:
        """Standard output of a Slurm command."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=check
        )
        return done.stdout.strip()

    def is_idle(self) -> bool:
        nodes = self.run("sinfo", "-h", "-p", "cpu", "-t", "idle", "-o", "%D", timeout=5)
        return nodes == str(self.num_nodes)

    def jobs(self, states: str = "all") -> dict[str, str]:
        """Job id -> state, of the jobs that the controller remembers."""
        lines = self.run("squeue", "-h", "-t", states, "-o", "%i %T").splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def job(self, number: str) -> dict[str, str]:
        """What the controller knows of one job, as scontrol names it."""
        words = self.run("scontrol", "-o", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def submit(self, script: str, *options: str) -> str:
        """Job id of a batch script."""
        command = ["sbatch", "--parsable", *options]
        done = subprocess.run(
            command, input=script, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _end(self, pid_file: Path, number: int = signal.SIGTERM) -> None:
        """Ends the daemon that wrote `pid_file`, and waits until it is gone."""
        try:
            pid = int(pid_file.read_text())
            os.kill(pid, number)
        except (OSError, ValueError):
            return
        for _ in range(100):
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return
            if state == "Z":
                return
            time.sleep(0.1)
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)

    def _write_configuration(self) -> None:
        here, host = self.folder, socket.gethostname().split(".")[0]
        for number in range(8):
            link = here / f"gpu/fake{number}"
            if not link.is_symlink():
                link.symlink_to("/dev/null")
        nodes = "\n".join(
            f"NodeName=node{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={self._port + 100 + n}"
            " CPUs=8 RealMemory=16000 Gres=gpu:8 State=UNKNOWN"
            for n in range(1, self.num_nodes + 1)
        )
        every = f"Nodes=node[1-{self.num_nodes}] DefaultTime=00:05:00 State=UP"
        # cred_expire: a requeued job may start again after that many seconds (120 where nothing is said).
        (here / "etc/slurm.conf").write_text(
            f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={self._port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={here}/munge/socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
EnforcePartLimits=ALL
StateSaveLocation={here}/state
SlurmdSpoolDir={here}/spool/%n
SlurmctldPidFile={here}/pid/slurmctld.pid
SlurmdPidFile={here}/pid/slurmd.%n.pid
SlurmctldLogFile={here}/log/slurmctld.log
SlurmdLogFile={here}/log/slurmd.%n.log
SwitchType=switch/none
MinJobAge=300
KillWait=10
InactiveLimit=0
SlurmctldTimeout=10
SlurmdTimeout=120
MessageTimeout=10
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
GresTypes=gpu
DefMemPerCPU=500
{nodes}
PartitionName=cpu {every} Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=gpu {every} PriorityTier=10 PreemptMode=OFF
PartitionName=urgent {every} PriorityTier=20 PreemptMode=OFF
PartitionName=spare {every} PriorityTier=1 PreemptMode=REQUEUE GraceTime=6
""",
            encoding="utf-8",
        )
        (here / "etc/gres.conf").write_text(
            f"NodeName=node[1-{self.num_nodes}] Name=gpu File={here}/gpu/fake[0-7]\n", encoding="utf-8"
        )
        (here / "etc/cgroup.conf").write_text("CgroupAutomount=no\n", encoding="utf-8")


def main(command: list[str]) -> int:
    """Runs `command` beside a started cluster; its exit code."""
    if not command or (reason := missing()):
        print(f"error: {reason if command else 'no command'}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start()
            return subprocess.run(command, env=cluster.environment, check=False).returncode
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
