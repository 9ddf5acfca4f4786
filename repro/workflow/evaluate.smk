# What is measured on trained checkpoints: downstream tasks, the mechanisms of the four techniques, GEMM rates.
from repro.evaluate.answers import KEPT
from repro.workflow.one_line import in_one_line


rule evaluate:
    input:
        done=in_one_line(lambda wildcards: LAYOUT.done(wildcards.run)),
        manifest=rules.prepare_data.output.manifest,
        tasks=f"{CONFIGS}/evals/{LAYOUT.tier}.yaml",
    output:
        f"{RESULTS}/evaluations/{{run}}.csv",
    log:
        f"{LOGS}/evaluate/{{run}}.log",
    benchmark:
        f"{BENCHMARKS}/evaluate/{{run}}.tsv"
    priority: 20
    threads: 1
    resources:
        **LAYOUT.jobs.checkpoints(minutes=240, keeps=KEPT, gpus=LAYOUT.evaluation_gpus),
        share=f" --gpus {LAYOUT.evaluation_gpus}",
        code=LAYOUT.code,
        code_note=LAYOUT.code_note,
    params:
        results=subpath(output[0], ancestor=2),
    message:
        "evaluating checkpoints of {wildcards.run}{resources.asked}{resources.code_note}"
    shell:
        "{resources.launch}python -m repro.evaluate {wildcards.run} --results {params.results} --evals {input.tasks}"
        "{resources.share}{resources.code} 2>&1 | tee -i {log}"


rule measure_mechanisms:
    input:
        done=in_one_line(lambda wildcards: LAYOUT.done(wildcards.run)),
        manifest=rules.prepare_data.output.manifest,
    output:
        f"{RESULTS}/mechanisms/{{run}}.csv",
    log:
        f"{LOGS}/mechanisms/{{run}}.log",
    benchmark:
        f"{BENCHMARKS}/mechanisms/{{run}}.tsv"
    priority: 20
    threads: 1
    resources:
        **LAYOUT.jobs.checkpoints(minutes=120),
    params:
        results=subpath(output[0], ancestor=2),
    message:
        "measuring the four techniques on {wildcards.run}{resources.asked}"
    shell:
        "{resources.launch}python -m repro.mechanisms {wildcards.run} --results {params.results} 2>&1 | tee -i {log}"


rule gemm_rates:
    output:
        f"{RESULTS}/bench/gemm.json",
    log:
        f"{LOGS}/gemm_rates.log",
    benchmark:
        f"{BENCHMARKS}/gemm_rates.tsv"
    # Every core there is (more are asked for than a laptop has): rates taken beside other jobs would be theirs too.
    threads: 32
    resources:
        **LAYOUT.jobs.rates(),
    message:
        "measuring matrix-product rates of this machine{resources.asked}"
    shell:
        "{resources.launch}python -m repro.bench --rows 'product/*' 'storage/*' --json {output} 2>&1 | tee -i {log}"
