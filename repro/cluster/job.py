"""One process of one segment: checks, environment, megatron-core's entry point, and how it ends.

Order matters: what Transformer Engine reads from the environment it reads once, when it is imported; so everything
is checked and set before. A precision that differs from the parent's is a new process with its own environment.

megatron and transformer_engine are imported inside functions. What of this ran where: docs/records.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from repro.cluster import fit, recorder, stack
from repro.cluster.arguments import WITHOUT_CONV_KERNELS, Argument, Folders, argument_list, environment
from repro.cluster.layout import Layout
from repro.cluster.paths import decide
from repro.cluster.state import Start, find_start, refuse_altered
from repro.data.manifest import manifest_sha256
from repro.portable.frozen import FrozenSegment
from repro.portable.parallel import variable

log = logging.getLogger("repro.cluster")

EXIT_STOPPED = 128 + signal.SIGTERM
#: What a launcher sets and megatron-core reads.
LAUNCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def place() -> tuple[int, int]:
    """(rank, number of processes) as the launcher says; (0, 1) without one. Raises ValueError for a wrong number."""
    size = variable("WORLD_SIZE", default=1, least=1)
    variable("LOCAL_RANK")
    return variable("RANK", most=size - 1), size


class Job:
    """One process of a segment. `run` returns the exit code."""

    def __init__(
        self,
        segment: FrozenSegment,
        layout: Layout,
        data_dir: Path,
        state_root: Path,
        *,
        emulate: bool = False,
        threads: int = 1,
    ) -> None:
        """`threads`: of a node, shared out to its processes. Raises ValueError for a launcher's wrong numbers."""
        self.segment, self.layout = segment, layout
        self.data_dir, self.state_root = data_dir, state_root
        self.threads = max(1, threads // layout.gpus_per_node)
        self.decision = decide(segment.recipe, emulate=emulate)
        self.rank, self.size = place()

    @property
    def writes(self) -> bool:
        """The last process: it is in the last pipeline stage and knows the losses."""
        return self.rank == self.size - 1

    def run(self) -> int:
        """Trains to the segment's end, or says why not. Raises ValueError in the user's words."""
        if recorder.is_done(self.segment, self.state_root):
            log.info("%s: already trained", self.segment.name)
            return self._published()
        stack.check_packages(self.segment.model)
        missing = [name for name in LAUNCH if name not in os.environ]
        if missing:
            raise ValueError(
                f"{missing[0]} is not set; start one process a GPU, e.g. torchrun -m repro.cluster ..."
            )
        findings = fit.check(self.segment, self.layout, self.decision, num_gpus=self.size)
        fit.raise_errors(findings, self.layout)
        recorder.check_data(self.segment, self.state_root, self.data_dir, note=self.writes)
        if recorder.parent_diverged(self.segment, self.state_root):
            return self._diverged_before()
        start = find_start(self.segment, self.state_root)
        refuse_altered(start, rank=self.rank, size=self.size)
        self._check_degrees(start)
        if self.writes:
            for finding in findings:
                log.warning("%s: %s", self.segment.name, finding.text)
            verb = "resumed" if start.resumed else "starts"
            log.info("%s: path %s, %s at step %d", self.segment.name, self.decision.path, verb, start.step)
            for reason in (*self.decision.reasons, *self.decision.notes):
                log.info("  %s", reason)
        self.set_environment()
        return self._train(start, self.arguments(start))

    @property
    def degrees(self) -> tuple[int, int]:
        """Of tensor and pipeline parallelism."""
        spread = self.layout.spread(self.segment.content["family"])
        return spread.tensor, spread.pipeline

    def _check_degrees(self, start: Start) -> None:
        """megatron-core refuses other degrees too, with the advice of an option that does not help."""
        before = tuple(start.meta.get("degrees", self.degrees))
        if before != self.degrees:
            raise ValueError(
                f"{start.folders.load}: written with tensor: {before[0]}, pipeline: {before[1]}; layout "
                f"{self.layout.name} has tensor: {self.degrees[0]}, pipeline: {self.degrees[1]}, which its optimizer "
                "states do not fit. Another number of GPUs they do"
            )

    def arguments(self, start: Start) -> list[Argument]:
        """Megatron's arguments on this machine."""
        arguments = argument_list(self.segment, self.layout, self.decision, start.folders)
        if "M" in self.segment.model.pattern and find_spec("causal_conv1d") is None:
            arguments.append(WITHOUT_CONV_KERNELS)
        return arguments

    def set_environment(self) -> None:
        """Before Transformer Engine is imported, which reads its switches then and never again."""
        assert "transformer_engine" not in sys.modules, "its switches are read when it is imported"
        for name, value in environment(self.layout, self.decision).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _train(self, start: Start, arguments: list[Argument]) -> int:
        import torch

        from repro.cluster.entry import pretrain
        from repro.cluster.loop import MegatronLoop
        from repro.cluster.session import Session

        device = torch.device("cuda", variable("LOCAL_RANK"))
        if not torch.cuda.is_available():
            raise ValueError("no GPU is visible to this process; `explain` needs none, training does")
        name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        stack.check_card(self.layout, self.decision, name=name, capability=capability)
        torch.cuda.set_device(device)
        torch.set_num_threads(self.threads)
        writer = (
            recorder.Recorder(self.segment, self.state_root, start, degrees=self.degrees)
            if self.writes
            else None
        )
        loop = MegatronLoop(self.segment, self.decision, self.data_dir)
        session = Session(self.segment, loop, writer, start, rank=self.rank)
        stopped = pretrain(session, loop, [word for argument in arguments for word in argument.words])
        if stopped and not session.has_diverged:
            log.info("%s: stopped at step %d, saved; run again to go on", self.segment.name, session.step)
            return EXIT_STOPPED
        num_parameters = loop.num_parameters(session.model)
        status = "diverged" if session.has_diverged else "completed"
        if writer is not None:
            if session.reason is not None:
                if writer.trains_again(session.step):
                    raise ValueError(
                        f"{self.segment.name}: step {session.step}: {session.reason}. A GPU may have failed: run "
                        "again to go on from the newest checkpoint; where it comes back, the run has diverged"
                    )
                writer.diverged(session.step, session.reason)
            writer.finish(
                status,
                session.step,
                num_parameters=num_parameters,
                precision=session.precision,
                made_with=self._made_with(device, arguments),
            )
        return self._published()

    def _made_with(self, device: Any, arguments: list[Argument]) -> dict[str, Any]:
        """The provenance: the portable trainer's, and what is the cluster's own."""
        from repro.portable import provenance

        made_with = provenance.describe(device)
        for package in ("megatron-core", "transformer-engine", "mamba-ssm"):
            if version := stack.installed(package):
                made_with["versions"][package] = version
        own = {
            "path": self.decision.path,
            "notes": list(self.decision.notes),
            "layout": self.layout.name,
            "gpus": self.size,
            "data_sha256": manifest_sha256(self.data_dir),
            "environment": environment(self.layout, self.decision),
            "arguments": [" ".join(argument.words) for argument in arguments],
        }
        return {**made_with, **own}

    def _diverged_before(self) -> int:
        """A fork of a run that diverged before the fork point has diverged with it."""
        if self.writes:
            reason = "the parent run diverged before the fork point"
            step = self.segment.start_step
            writer = recorder.Recorder(
                self.segment, self.state_root, Start(Folders(self.state_root / self.segment.run_hash), step)
            )
            writer.diverged(step, reason)
            parameters = self.segment.model.num_parameters()
            made_with = {"notes": [reason], "layout": self.layout.name}
            writer.finish("diverged", step, num_parameters=parameters, precision=[], made_with=made_with)
        return self._published()

    def _published(self) -> int:
        if self.writes:
            log.info("%s: %s", self.segment.name, recorder.publish(self.segment, self.state_root))
        return 0
