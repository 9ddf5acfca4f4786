"""What each rule's job asks for: the tier's wishes on this machine, the same fitted to a cluster when there is one.

Without a site (`snakemake --cores 2`) jobs carry what the tier states and nothing of Slurm. With one, a training job
takes whole nodes of the site for the run's number of GPUs, and its time follows from the run's size at the tier's
rate (repro.experiments.cost), up to the site's limit; what is longer goes on in the next job of its chain. A job that
looks at checkpoints takes one GPU and memory for the model, one that asks published benchmarks all GPUs of a node.
Each job's message says what was asked for, so that a dry run lists it. Not here: how a job runs
(repro.workflow.launch), the numbers (configs/tiers, slurm/site.yaml).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from repro.cluster.__main__ import EMULATE_VARIABLE
from repro.cluster.paths import emulated_runs
from repro.experiments import Plan
from repro.experiments.cost import cost_of
from repro.experiments.describe import amount, duration
from repro.workflow.site import Site

_OWN = ("launch", "asked", "mem_mb", "runtime", "nodes", "gpus_per_node")
_SLURM = (
    "slurm_partition",
    "slurm_account",
    "qos",
    "constraint",
    "mpi",
    "tasks_per_gpu",
    "gres",
    "slurm_extra",
    "tasks",
    "cpus_per_task",
)

# Start, compilation, data and validation, and a rate that is an assumption before the first measurement.
_MARGIN, _START_MINUTES = 1.5, 15.0
# Of a loaded checkpoint: its file as it was read, the model in FP32 and a copy of that while it is exported.
_LOADED_BYTES_PER_PARAMETER = 8
# Host memory of one process with its libraries loaded, and nothing else.
_LIBRARIES_GB = 6.0


def expected_minutes(plan: Plan, run: str, index: int, *, emulate: bool = False) -> float:
    """Training time of one segment on the tier's number of devices, at the tier's rate.

    emulate: the site computes 4-bit products in software, also of runs that have a native path.
    """
    segment, whole = plan.segment(run, index), plan.run(run)
    devices = segment.resources.nodes * max(1, segment.resources.gpus_per_node)
    cost = cost_of(plan, whole, emulated=emulated_runs(plan, emulate=emulate))
    return 60.0 * cost.device_hours * segment.num_tokens / whole.num_tokens / devices


@dataclass(frozen=True)
class JobResources:
    """Resources of the rules; `site` is None on a machine without Slurm."""

    plan: Plan
    site: Site | None
    site_file: str = ""

    def rule(
        self,
        device: Literal["cpu", "gpu"],
        *,
        memory_gb: float,
        minutes: int,
        cpus: int = 1,
        gpus: int = 1,
        keeps: str = "",
    ) -> dict[str, Any]:
        """Resources of a rule on one node; "gpu": `gpus` of them where the tier trains on GPUs.

        keeps: what a job says when it keeps something; it is queued again at its time limit as long as it does.
        """
        if self.site is None:
            return {"mem_mb": round(1000 * memory_gb), "runtime": minutes, "launch": "", "asked": ""}
        on_gpus = device == "gpu" and any(s.resources.gpus_per_node for s in self.plan.segments)
        job = self.site.job("gpu" if on_gpus else "cpu")
        if on_gpus and gpus > 1:
            job["gres"], cpus = f"gpu:{gpus}", self.site.cpus_per_node
        own = {
            "launch": self._launcher(f"--keeps {keeps} " if keeps else ""),
            "mem_mb": round(1000 * min(memory_gb, self.site.memory_gb_per_node)),
            "runtime": self.site.minutes(minutes),
            # Said besides `threads`, which Snakemake cuts to the cores of the machine that it runs on.
            "cpus_per_task": min(cpus, self.site.cpus_per_node),
        }
        return {**own, "asked": _asked(1, gpus if on_gpus else 0, own), **job}

    def rates(self) -> dict[str, Any]:
        """Resources of measuring a GPU's rates: all cores of a node, and a second process for Transformer Engine."""
        return self.rule("gpu", memory_gb=2 * _LIBRARIES_GB, minutes=30, cpus=32)

    def prepare(self, *, memory_gb: float) -> dict[str, Any]:
        """Resources of the data's preparation, which holds the corpora in memory: at least what training asks for."""
        largest = max(segment.resources.memory_gb for segment in self.plan.segments)
        return self.rule("cpu", memory_gb=max(memory_gb, largest), minutes=240, cpus=2)

    def checkpoints(self, *, minutes: int, keeps: str = "", gpus: int = 1) -> dict[str, Any]:
        """Resources of a rule that looks at a run's checkpoints: by run, memory for its model.

        keeps: as `rule`'s.
        """
        names = self.rule("gpu", memory_gb=1, minutes=minutes)
        return {name: self._by_run(name, minutes, keeps, gpus) for name in names}

    def _by_run(self, name: str, minutes: int, keeps: str, gpus: int) -> Callable[[Any], Any]:
        def resource(wildcards: Any) -> Any:
            run = self.plan.run(wildcards.run)
            bytes_each = self.plan.spec.cost.state_bytes_per_parameter + _LOADED_BYTES_PER_PARAMETER
            loaded_gb = self.plan.models[run.family].num_parameters() * bytes_each / 1e9
            memory_gb = _LIBRARIES_GB + loaded_gb
            return self.rule("gpu", memory_gb=memory_gb, minutes=minutes, keeps=keeps, gpus=gpus)[name]

        return resource

    def train(self) -> dict[str, Any]:
        """Resources of the training rule, by run and segment."""
        return {name: self._by_segment(name) for name in (*_OWN, *(_SLURM if self.site else ()))}

    def _by_segment(self, name: str) -> Callable[[Any], Any]:
        return lambda wildcards: self.segment(wildcards.run, int(wildcards.segment)).get(name)

    def segment(self, run: str, index: int) -> dict[str, Any]:
        """All resources of one segment's job. Raises ValueError when its GPUs don't fill the site's nodes."""
        wanted = self.plan.resources(run, index)
        own = {
            "launch": self._launcher("--train "),
            "asked": "",
            "mem_mb": round(1000 * wanted.memory_gb),
            "runtime": wanted.minutes,
            "nodes": wanted.nodes,
            "gpus_per_node": wanted.gpus_per_node,
        }
        if self.site is None:
            return own
        site, gpus, cpus = self.site, wanted.nodes * wanted.gpus_per_node, wanted.threads
        if gpus:
            own["nodes"], own["gpus_per_node"] = site.shape(gpus)
        job = site.job("gpu" if gpus else "cpu", nodes=own["nodes"])
        if gpus:
            job["gres"] = f"gpu:{own['gpus_per_node']}"
            cpus = max(1, site.cpus_per_node * own["gpus_per_node"] // site.gpus_per_node)
        own["mem_mb"] = round(1000 * min(wanted.memory_gb, site.memory_gb_per_node))
        emulate = site.environment.get(EMULATE_VARIABLE) == "1"
        expected = expected_minutes(self.plan, run, index, emulate=emulate)
        own["runtime"] = site.minutes(_MARGIN * expected + _START_MINUTES)
        own["asked"] = _asked(own["nodes"], own["gpus_per_node"], own, self._expected(run, index, expected))
        return {**own, **job, "tasks": own["nodes"], "cpus_per_task": cpus}

    def _expected(self, run: str, index: int, minutes: float) -> str:
        """What a segment takes in all its jobs; its checkpoints: those kept for good and the newest few."""
        if not minutes:
            return ""
        checkpoints = self.plan.segment(run, index).frozen["checkpoints"]
        model = self.plan.models[self.plan.run(run).family]
        each = model.num_parameters() * self.plan.spec.cost.state_bytes_per_parameter
        stored = (len(checkpoints["keep_tokens"]) + checkpoints["keep_last"]) * each
        return f"; {duration(minutes / 60)} and {amount(stored)}B of checkpoints expected"

    def _launcher(self, options: str = "") -> str:
        """What stands before a rule's command: nothing, or the cluster's launcher."""
        if self.site is None:
            return ""
        return f"python -m repro.workflow.launch --site {self.site_file} {options}-- "


def _asked(nodes: int, gpus: int, own: dict[str, Any], expected: str = "") -> str:
    """What stands behind a job's message: (8 nodes x 8 GPUs, 800 GB a node, 240 minutes a job; 20.8 h expected)."""
    shape = f"{nodes} node{'s' if nodes > 1 else ''}" + (
        f" x {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else ""
    )
    text = f"{shape}, {own['mem_mb'] / 1000:.0f} GB a node, {own['runtime']} minutes a job"
    return f" ({text}{expected})"
