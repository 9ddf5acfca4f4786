"""Whether a tier's runs can train on the cluster of site.yaml, told before a job is submitted.

A wrong layout would show in the first training job, days after the data was asked for. So what that job checks about
a run and its layout (repro.cluster.fit) is checked when Snakemake starts, for every segment: also by a dry run. Tiers
of the portable backend have no layout. Not here: packages and cards, which a login node does not have.
"""

from __future__ import annotations

import os
from pathlib import Path

from repro.cluster import fit
from repro.cluster.__main__ import EMULATE_VARIABLE, LAYOUT_VARIABLE
from repro.cluster.frozen import segment_of
from repro.cluster.layout import DEFAULT_LAYOUT, load_layout
from repro.cluster.paths import decide
from repro.experiments import Plan
from repro.experiments.errors import nearest
from repro.workflow.site import Site

_OURS = "REPRO_CLUSTER_"


def check_fit(plan: Plan, site: Site, site_file: str, *, layouts: Path) -> None:
    """Raises ValueError naming `site_file` and its key, or the first run that does not fit and why.

    layouts: the folder of configs/cluster.
    """
    if plan.backend != "cluster":
        return
    known = (LAYOUT_VARIABLE, EMULATE_VARIABLE)
    for name in site.environment:
        if name.startswith(_OURS) and name not in known:
            raise ValueError(f"{site_file}: environment: unknown name {name!r}{nearest(name, known)}")
    here = {**os.environ, **site.environment}
    emulate = here.get(EMULATE_VARIABLE, "0")
    if emulate not in ("0", "1"):
        raise ValueError(f"{site_file}: environment.{EMULATE_VARIABLE}: {emulate!r} is neither 0 nor 1")
    try:
        layout = load_layout(here.get(LAYOUT_VARIABLE, DEFAULT_LAYOUT), layouts)
    except ValueError as error:
        raise ValueError(f"{site_file}: environment.{LAYOUT_VARIABLE}: {error}") from None
    if layout.gpus_per_node != site.gpus_per_node:
        raise ValueError(
            f"{site_file}: gpus_per_node: {site.gpus_per_node}, but layout {layout.name} "
            f"(environment.{LAYOUT_VARIABLE}) is for nodes of {layout.gpus_per_node}"
        )
    for part in plan.segments:
        segment = segment_of(dict(part.frozen), Path(part.folder))
        decision = decide(segment.recipe, emulate=emulate == "1")
        gpus = part.resources.nodes * part.resources.gpus_per_node
        try:
            fit.raise_errors(fit.check(segment, layout, decision, num_gpus=gpus), layout)
        except ValueError as error:
            way_out = (
                f" (in a site's file: environment.{EMULATE_VARIABLE}: 1)" if "--emulate" in str(error) else ""
            )
            raise ValueError(f"{site_file}: run {part.run}: {error}{way_out}") from None
