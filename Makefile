# One command each; everything lives in .venv, nothing is installed globally.
#   make reproduce   the whole paper at the tier of configs/config.yaml (tiny: minutes on a laptop)
#   make test        the tests
#   make report      one self-contained HTML page with every figure and table (with JavaScript; check.html is without)
#   make recorded    figures, tables and verdicts of the recorded proxy runs, without a GPU
PYTHON ?= python3
CORES  ?= $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')
TIER   ?= tiny
VENV   := .venv
BIN    := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# --quiet: jobs' own progress lines are the news, not the rules' parameters.
FLAGS := --cores $(CORES) --scheduler greedy --rerun-incomplete --keep-going --quiet rules --config tier=$(TIER)

.PHONY: install reproduce check report recorded unlock test test-slurm test-slurm-quick lint format clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[workflow,test]"
	touch $@

install: $(INSTALLED)

reproduce: $(INSTALLED)
	$(BIN)/snakemake all $(FLAGS)

check: $(INSTALLED)
	$(BIN)/snakemake check $(FLAGS)

report: $(INSTALLED)
	$(BIN)/snakemake all $(FLAGS)
	$(BIN)/snakemake all --quiet all --report results/$(TIER)/report.html --config tier=$(TIER)

recorded: $(INSTALLED)
	$(BIN)/snakemake all --cores $(CORES) --scheduler greedy --quiet rules --config tier=proxy recorded=true
	$(BIN)/snakemake all --quiet all --report results/proxy-recorded/report.html --config tier=proxy recorded=true
	$(BIN)/python -m repro.analysis.recorded publish --tier proxy --results results/proxy-recorded

test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(CORES) -m "not slurm"

# After a crash of Snakemake itself.
unlock: $(INSTALLED)
	$(BIN)/snakemake --unlock --config tier=$(TIER)

# Needs slurmctld, slurmd and munge on the machine (Debian: slurmctld slurmd slurm-client munge) and root.
test-slurm: $(INSTALLED)
	$(BIN)/python -m pytest -m slurm tests/slurm

# Every rule of the tiny tier, a fork and a chain of jobs through the Slurm profile, and the faults that take seconds.
test-slurm-quick: $(INSTALLED)
	$(BIN)/python -m pytest -m "slurm and not slow" -rs tests/slurm

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile repro/workflow
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile repro/workflow

# Results only; trained states are the expensive part and go with `rm -r results`.
clean:
	rm -rf results/$(TIER)/elements results/$(TIER)/check.*
