# The whole reproduction: data -> training -> evaluation -> figures -> check.
#
#   snakemake --cores 2                        everything at the tier of configs/config.yaml
#   snakemake --cores 2 fig10                  one element and what it needs
#   snakemake --cores 2 train_all              one stage: data, train_all, evaluate_all, figures, check
#   snakemake --profile slurm all --config tier=paper
#   snakemake --cores 2 all --config tier=proxy recorded=true      figures from the results kept in the repository
#
# Rules live in repro/workflow, one file a stage; what is run is told by configs/ and paper_figures/*/paper.yaml.
from snakemake.utils import min_version

min_version("9.0")


configfile: "configs/config.yaml"


include: "repro/workflow/common.smk"
include: "repro/workflow/data.smk"
include: "repro/workflow/train.smk"
include: "repro/workflow/evaluate.smk"
include: "repro/workflow/recorded.smk"
include: "repro/workflow/figures.smk"
include: "repro/workflow/targets.smk"
