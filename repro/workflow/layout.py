"""Where the workflow's files lie and which of them a job needs: look-ups for the rules, no decisions.

The rules in *.smk state commands; this module answers "which files does run X need", from the frozen plan
(repro.experiments) and from what each element asks for in its paper.yaml. Importing it needs no torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from repro.analysis.paper_file import check_elements
from repro.analysis.recorded import BENCH
from repro.evaluate.settings import EvalTask, load_settings
from repro.experiments import Plan, freeze_all, load
from repro.experiments.config_file import check_config
from repro.experiments.data_spec import DataSpec, load_data_spec
from repro.experiments.elements import DEFAULT_FIGURES, Element, curves_of, runs_of
from repro.experiments.errors import nearest
from repro.workflow.cluster_fit import check_fit
from repro.workflow.resources import JobResources
from repro.workflow.site import Site

_RECORDED = Path("recorded")


@dataclass(frozen=True)
class Layout:
    """The files of one tier's results folder."""

    tier: str
    results: str
    configs: str
    plan: Plan
    elements: dict[str, Element]
    jobs: JobResources
    corpora: str = ""  # option of the data jobs: a folder of the data sets, in the place of the hub
    code: str = ""  # option of the evaluation: model-written code may run
    recorded: bool = False  # figures from the records in the repository; nothing is trained

    @classmethod
    def load(cls, config: Mapping[str, Any]) -> Layout:
        """Reads the tier's plan, lists the elements and freezes every segment that changed, once all is found right.

        Raises ValueError in the user's words: unknown key, tier, run, element or claim, with the nearest valid one;
        a run that an element evaluates and the tier does not say where; a cluster that cannot train the
        tier's runs. OSError where the results folder cannot be written.
        """
        check_config(config, "configs/config.yaml or --config")
        configs = str(config.get("configs", "configs"))
        plan = load(str(config["tier"]), configs_dir=Path(configs))
        from_records, may_run_code = (_is_on(config, key) for key in ("recorded", "allow_code_execution"))
        results = f"{config['results']}/{plan.tier}{'-recorded' if from_records else ''}"
        elements = check_elements(plan)
        for element in elements.values():
            runs_of(element, plan)  # raises ValueError for a run that no experiment makes
            _check_looked_at(element, plan)
        site_file = config.get("site")
        site = Site.load(site_file) if site_file else None
        if site and not from_records:
            check_fit(plan, site, str(site_file), layouts=Path(configs) / "cluster")
        freeze_all(plan, Path(results))
        jobs = JobResources(plan, site, str(site_file))
        corpora = f" --corpora {shlex.quote(str(config['corpora']))}" if config.get("corpora") else ""
        code = " --allow-code-execution" if may_run_code else ""
        return cls(plan.tier, results, configs, plan, elements, jobs, corpora, code, from_records)

    # The data

    @cached_property
    def data_spec(self) -> DataSpec:
        """The tier's data configuration."""
        return load_data_spec(Path(self.configs) / "data" / f"{self.plan.data_config}.yaml")

    @property
    def data_command(self) -> str:
        """The command of the tier's data jobs, without its step."""
        config = f"{self.configs}/data/{self.plan.data_config}.yaml"
        return f"python -m repro.data {config} --out {self.results}/data"

    @cached_property
    def shards(self) -> dict[str, list[str]]:
        """Source -> names of its shards, where the data is prepared in shards."""
        return {
            source.name: [f"{number:04d}" for number in range(source.hub.shards)]
            for source in self.data_spec.sources
            if self.data_spec.sharded
        }

    def source_files(self, name: str) -> str:
        """What a source's tokens depend on, as text: a change of it makes its shards again."""
        [options] = [source.hub for source in self.data_spec.sources if source.name == name]
        return options.model_dump_json()

    @property
    def records(self) -> list[str]:
        """Recorded results of the tier that lie in the repository; the frozen runs that they have to fit."""
        kept = sorted(str(path) for path in (_RECORDED / self.tier).rglob("*.xz"))
        kept += [str(self._recorded_bench)] if self._recorded_bench.is_file() else []
        return kept + [f"{self.results}/{segment.folder}/run.yaml" for segment in self.plan.segments]

    @property
    def _recorded_bench(self) -> Path:
        """Rates of the tier's GPU; without them this machine's are measured."""
        return _RECORDED / self.tier / BENCH

    # One run

    def folder(self, run: str, segment: int | str) -> str:
        return f"{self.results}/runs/{run}/{segment}"

    def done(self, run: str) -> list[str]:
        """metrics.jsonl and done.json of every segment of the run's lineage, the parents' included."""
        files = []
        for segment in self.plan.lineage(run):
            folder = self.folder(segment.run, segment.index)
            files += [f"{folder}/metrics.jsonl", f"{folder}/done.json"]
        return files

    def parent_done(self, run: str, segment: str) -> list[str]:
        """done.json of the segment that this one starts from; empty for a run's start."""
        parent = self.plan.segment(run, int(segment)).parent
        return [f"{self.folder(*parent)}/done.json"] if parent else []

    def resources(self, run: str, segment: str, name: str) -> Any:
        """One resource (threads, gpus_per_node, nodes, memory_gb, minutes) of a segment's job."""
        return getattr(self.plan.resources(run, int(segment)), name)

    @cached_property
    def trained(self) -> list[str]:
        """done.json of every segment of the tier."""
        if self.recorded:
            return []
        return [f"{self.folder(segment.run, segment.index)}/done.json" for segment in self.plan.segments]

    # A name to ask for

    def refuse(self, word: str, known: Iterable[str]) -> NoReturn:
        """Raises ValueError for a word that is no target: with the nearest of `known`, or a run's file to ask for."""
        if word in self.plan.runs:
            last = self.done(word)[-1]
            raise ValueError(f"{word!r} is a run, not a figure, table or stage; ask for {last}")
        raise ValueError(f"no figure, table or stage is called {word!r}{nearest(word, known)}")

    # One element

    def needs(self, element: str) -> list[str]:
        """Result files that the element's data() reads."""
        needed = self.elements[element]
        bench = [f"{self.results}/bench/gemm.json"] if needed.bench else []
        if self.recorded:
            return [f"{self.results}/recorded.json", *([] if self._recorded_bench.is_file() else bench)]
        files = [file for run in curves_of(needed, self.plan) for file in self.done(run)]
        files += [f"{self.results}/evaluations/{run}.csv" for run in needed.evaluations]
        files += [f"{self.results}/mechanisms/{run}.csv" for run in needed.mechanisms]
        return list(dict.fromkeys([*files, *bench]))

    @property
    def evaluated(self) -> list[str]:
        """Runs whose checkpoints some element wants evaluated."""
        if self.recorded:
            return []
        return list(dict.fromkeys(run for element in self.elements.values() for run in element.evaluations))

    @cached_property
    def evaluation_gpus(self) -> int:
        """GPUs of one evaluation: a node's for published benchmarks (thousands of generated answers), else one."""
        is_local = any(task.template is not None for task in self._eval_tasks)
        return 1 if is_local or self.jobs.site is None else max(1, self.jobs.site.gpus_per_node)

    @cached_property
    def _eval_tasks(self) -> tuple[EvalTask, ...]:
        return load_settings(f"{self.configs}/evals/{self.tier}.yaml").tasks

    @cached_property
    def code_note(self) -> str:
        """What stands behind an evaluation's message when it is going to be refused."""
        names = ", ".join(task.name for task in self._eval_tasks if task.runs_code)
        if not names or self.code:
            return ""
        return f" (refuses: {names} run code that the model wrote; in a sandbox, allow_code_execution=true)"

    def category(self, element: str) -> str:
        """Section of the report."""
        kind = element.rstrip("0123456789")
        return {"fig": "1 Figures", "table": "2 Tables"}.get(kind, "3 More than the paper has")

    def labels(self, element: str) -> dict[str, str]:
        """Columns of the report's list; numbers padded so that fig2 comes before fig10."""
        kind = element.rstrip("0123456789")
        number = element[len(kind) :]
        return {
            "element": f"{kind}{int(number):02d}" if number else element,
            "title": self.elements[element].title,
        }

    def sources(self, element: str) -> list[str]:
        """Source files whose change makes the element stale: its own, and what all figures share."""
        own = sorted(str(path) for path in (DEFAULT_FIGURES / element).iterdir() if path.is_file())
        shared = sorted(str(path) for path in (Path(__file__).parents[1] / "analysis").glob("*.py"))
        style = sorted(str(path) for path in DEFAULT_FIGURES.glob("*.mplstyle"))
        root = Path.cwd()
        relative = [
            str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path for path in shared
        ]
        return own + relative + style


def _check_looked_at(element: Element, plan: Plan) -> None:
    """Raises ValueError for a run that the element evaluates or measures and the tier does not say where.

    By hand such a run is looked at where it ends (`python -m repro.evaluate RUN`); a curve of it would lose all of
    its points but one.
    """
    for key, wanted, needs in (
        ("evaluate_at", element.evaluations, "evaluates"),
        ("measure_at", element.mechanisms, "measures"),
    ):
        for run in wanted:
            if not getattr(plan.spec, key).get(run):
                raise ValueError(
                    f"{plan.configs_dir}/tiers/{plan.tier}.yaml: {key}: says nothing of {run!r}, which "
                    f"paper_figures/{element.name}/paper.yaml {needs}; fractions of its horizon, its end is 1.0"
                )


def _is_on(config: Mapping[str, Any], key: str) -> bool:
    """A switch that is off where nothing is said; of the command line it comes as text."""
    value = str(config.get(key, False)).lower()
    if value not in ("true", "false"):
        raise ValueError(f"{key}: {value!r} is neither true nor false")
    return value == "true"
