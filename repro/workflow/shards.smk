# Published data sets of the hub: a job lists a source, a job tokenises a shard of it, and one ends with the manifest.
# The configuration is no input: only what a job depends on is (as a parameter), so a changed blend tokenises nothing.


localrules:
    fetch_tokenizer,
    list_source,


wildcard_constraints:
    source="|".join(LAYOUT.shards),
    shard=r"\d{4}",


rule fetch_tokenizer:
    output:
        f"{DATA}/tokenizer/tokenizer.json",
        f"{DATA}/tokenizer/origin.json",
    log:
        f"{LOGS}/data/tokenizer.log",
    resources:
        corpora=LAYOUT.corpora,
    params:
        command=LAYOUT.data_command,
        of=LAYOUT.data_spec.tokenizer.model_dump_json(),
    message:
        "fetching the tokenizer"
    shell:
        "{params.command} --step tokenizer{resources.corpora} 2>&1 | tee -i {log}"


rule list_source:
    output:
        f"{DATA}/shards/{{source}}/listing.json",
    log:
        f"{LOGS}/data/{{source}}.log",
    resources:
        corpora=LAYOUT.corpora,
    params:
        command=LAYOUT.data_command,
        of=lambda wildcards: LAYOUT.source_files(wildcards.source),
    message:
        "listing the files of {wildcards.source}"
    shell:
        "{params.command} --step list:{wildcards.source}{resources.corpora} 2>&1 | tee -i {log}"


rule tokenize_shard:
    input:
        listing=rules.list_source.output[0],
        tokenizer=rules.fetch_tokenizer.output,
    output:
        multiext(
            f"{DATA}/shards/{{source}}/{{shard}}",
            ".json",
            "_train.bin",
            "_train.idx",
            "_validation.bin",
            "_validation.idx",
        ),
    log:
        f"{LOGS}/data/{{source}}.{{shard}}.log",
    benchmark:
        f"{BENCHMARKS}/data/{{source}}.{{shard}}.tsv"
    threads: 16
    resources:
        **LAYOUT.jobs.rule("cpu", memory_gb=32, minutes=240, cpus=16),
        corpora=LAYOUT.corpora,
    params:
        command=LAYOUT.data_command,
        hold_out=LAYOUT.data_spec.hold_out.model_dump_json(),
    message:
        "tokenizing shard {wildcards.shard} of {wildcards.source}{resources.asked}"
    shell:
        "{resources.launch}{params.command} --step shard:{wildcards.source}:{wildcards.shard}"
        "{resources.corpora} 2>&1 | tee -i {log}"


rule prepare_data:
    input:
        [
            f"{DATA}/shards/{source}/{shard}.json"
            for source, shards in LAYOUT.shards.items()
            for shard in shards
        ],
    output:
        manifest=f"{DATA}/manifest.json",
    log:
        f"{LOGS}/prepare_data.log",
    benchmark:
        f"{BENCHMARKS}/prepare_data.tsv"
    resources:
        **LAYOUT.jobs.rule("cpu", memory_gb=16, minutes=240),
    params:
        command=LAYOUT.data_command,
    message:
        "assembling validation text and manifest{resources.asked}"
    shell:
        "{resources.launch}{params.command} --step manifest 2>&1 | tee -i {log}"
