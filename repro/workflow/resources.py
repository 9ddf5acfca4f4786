"""What each rule's job asks for: the tier's wishes on this machine, the same fitted to a cluster when there is one.

Without a site (`snakemake --cores 2`) jobs carry what the tier states and nothing of Slurm. With one, a training job
takes whole nodes of the site for the run's number of GPUs, and its time follows from the run's size at the tier's
rate (repro.experiments.cost), up to the site's limit; what is longer goes on in the next job of its chain.
Not here: how a job runs (repro.workflow.launch), the numbers themselves (configs/tiers, slurm/site.yaml).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from repro.experiments import Plan
from repro.experiments.cost import cost_of
from repro.workflow.site import Site

# Start, compilation, data and validation, and a rate that is an assumption before the first measurement.
_MARGIN, _START_MINUTES = 1.5, 15.0


def expected_minutes(plan: Plan, run: str, index: int) -> float:
    """Training time of one segment on the tier's number of devices, at the tier's rate."""
    segment, whole = plan.segment(run, index), plan.run(run)
    devices = segment.resources.nodes * max(1, segment.resources.gpus_per_node)
    return 60.0 * cost_of(plan, whole).device_hours * segment.num_tokens / whole.num_tokens / devices


@dataclass(frozen=True)
class JobResources:
    """Resources of the rules; `site` is None on a machine without Slurm."""

    plan: Plan
    site: Site | None
    site_file: str = ""

    def rule(
        self, device: Literal["cpu", "gpu"], *, memory_gb: float, minutes: int, cpus: int = 1
    ) -> dict[str, Any]:
        """Resources of a rule on one node; "gpu": one GPU where the tier trains on GPUs."""
        if self.site is None:
            return {"mem_mb": round(1000 * memory_gb), "runtime": minutes, "launch": ""}
        on_gpus = device == "gpu" and any(s.resources.gpus_per_node for s in self.plan.segments)
        return {
            "launch": self._launcher(),
            "mem_mb": round(1000 * min(memory_gb, self.site.memory_gb_per_node)),
            "runtime": self.site.minutes(minutes),
            # Said besides `threads`, which Snakemake cuts to the cores of the machine that it runs on.
            "cpus_per_task": min(cpus, self.site.cpus_per_node),
            **self.site.job("gpu" if on_gpus else "cpu"),
        }

    def train(self) -> dict[str, Any]:
        """Resources of the training rule, by run and segment."""
        return {name: self._by_segment(name) for name in (*_OWN, *(_SLURM if self.site else ()))}

    def _by_segment(self, name: str) -> Callable[[Any], Any]:
        return lambda wildcards: self.segment(wildcards.run, int(wildcards.segment)).get(name)

    def segment(self, run: str, index: int) -> dict[str, Any]:
        """All resources of one segment's job. Raises ValueError when its GPUs don't fill the site's nodes."""
        wanted = self.plan.resources(run, index)
        own = {
            "launch": self._launcher(train=True),
            "asked": "",
            "mem_mb": round(1000 * wanted.memory_gb),
            "runtime": wanted.minutes,
            "nodes": wanted.nodes,
            "gpus_per_node": wanted.gpus_per_node,
        }
        if self.site is None:
            return own
        site, gpus, cpus = self.site, wanted.nodes * wanted.gpus_per_node, wanted.threads
        job = site.job("gpu" if gpus else "cpu")
        if gpus:
            own["nodes"], own["gpus_per_node"] = site.shape(gpus)
            job["gres"] = f"gpu:{own['gpus_per_node']}"
            cpus = max(1, site.cpus_per_node * own["gpus_per_node"] // site.gpus_per_node)
        own["mem_mb"] = round(1000 * min(wanted.memory_gb, site.memory_gb_per_node))
        expected = expected_minutes(self.plan, run, index)
        own["runtime"] = site.minutes(_MARGIN * expected + _START_MINUTES)
        own["asked"] = (
            f" ({own['nodes']} nodes x {own['gpus_per_node']} GPUs, {own['runtime']} minutes a job;"
            f" {expected / 60:.1f} hours expected)"
        )
        return {**own, **job, "tasks": own["nodes"], "cpus_per_task": cpus}

    def _launcher(self, *, train: bool = False) -> str:
        """What stands before a rule's command: nothing, or the cluster's launcher."""
        if self.site is None:
            return ""
        return f"python -m repro.workflow.launch --site {self.site_file} {'--train ' if train else ''}-- "


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
