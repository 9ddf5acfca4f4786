# Results of real runs that are kept in the repository take the place of training: --config recorded=true. What is not
# recorded is named in every figure and verdict; records of another configuration are left out and named too.


rule restore_recorded:
    input:
        LAYOUT.records,
    output:
        f"{RESULTS}/recorded.json",
    log:
        f"{LOGS}/restore_recorded.log",
    benchmark:
        f"{BENCHMARKS}/restore_recorded.tsv"
    localrule: True
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        results=subpath(output[0], parent=True),
        configs=CONFIGS,
        tier=LAYOUT.tier,
    message:
        "reading recorded results"
    shell:
        "python -m repro.analysis.recorded restore --tier {params.tier} --results {params.results}"
        " --configs {params.configs} 2>&1 | tee -i {log}"
