# What every stage uses: the tier's frozen runs, the elements, and where things lie.
import sys
from pathlib import Path

from repro.experiments.errors import read_mapping
from repro.workflow.layout import Layout
from repro.workflow.one_line import end

try:
    for file in workflow.configfiles:
        read_mapping(Path(file))  # Snakemake itself takes the last of two equal keys
    LAYOUT = Layout.load(config)
except (ValueError, OSError) as error:
    end(error)

if LAYOUT.jobs.site:
    import snakemake_executor_plugin_slurm
    from repro.workflow.plugin_repairs import repair

    repair(snakemake_executor_plugin_slurm)

RESULTS = LAYOUT.results
CONFIGS = LAYOUT.configs
DATA = f"{RESULTS}/data"
STATE = f"{RESULTS}/state"
LOGS = f"{RESULTS}/logs"
BENCHMARKS = f"{RESULTS}/benchmarks"

# Jobs run the interpreter that runs Snakemake, also where its environment is not activated.
shell.prefix(f"set -euo pipefail; export PATH={Path(sys.executable).parent}:$PATH; ")


wildcard_constraints:
    run="[a-z0-9_]+",
    segment=r"\d+",
    element="|".join(LAYOUT.elements),
