# One job a segment. Its inputs are the frozen run and the data; checkpoints live in an undeclared state folder, so
# that a failed or killed job loses nothing. Source files are no inputs: what ran is in done.json.
from repro.workflow.one_line import in_one_line


rule train:
    input:
        frozen=f"{RESULTS}/runs/{{run}}/{{segment}}/run.yaml",
        manifest=rules.prepare_data.output.manifest,
        parent=in_one_line(
            lambda wildcards: LAYOUT.parent_done(wildcards.run, wildcards.segment)
        ),
    output:
        metrics=f"{RESULTS}/runs/{{run}}/{{segment}}/metrics.jsonl",
        done=f"{RESULTS}/runs/{{run}}/{{segment}}/done.json",
    log:
        f"{LOGS}/train/{{run}}.{{segment}}.log",
    benchmark:
        f"{BENCHMARKS}/train/{{run}}.{{segment}}.tsv"
    threads: lambda wildcards: LAYOUT.resources(wildcards.run, wildcards.segment, "threads")
    resources:
        **LAYOUT.jobs.train(),
    params:
        data=subpath(input.manifest, parent=True),
        state=STATE,
        backend=LAYOUT.plan.backend,
    message:
        "training {wildcards.run}, segment {wildcards.segment}{resources.asked}"
    shell:
        # glibc otherwise hands every step's tensors back to the kernel: a tenth of a small model's time.
        "export MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=1000000000; "
        "{resources.launch}python -m repro.{params.backend} {input.frozen} --data {params.data} --state {params.state}"
        " --threads {threads} 2>&1 | tee -i {log}"
