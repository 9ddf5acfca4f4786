# Corpora -> tokenizer -> token files -> evaluation items. The manifest is written last and names every file.

if LAYOUT.data_spec.sharded:

    include: "shards.smk"

else:

    rule prepare_data:
        input:
            config=f"{CONFIGS}/data/{LAYOUT.plan.data_config}.yaml",
        output:
            manifest=f"{DATA}/manifest.json",
        log:
            f"{LOGS}/prepare_data.log",
        benchmark:
            f"{BENCHMARKS}/prepare_data.tsv"
        threads: 2
        resources:
            **LAYOUT.jobs.prepare(memory_gb=8),
        params:
            folder=subpath(output.manifest, parent=True),
        message:
            "preparing text, tokenizer and token files{resources.asked}"
        shell:
            "{resources.launch}python -m repro.data {input.config} --out {params.folder} 2>&1 | tee -i {log}"
