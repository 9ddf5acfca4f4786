# Names to ask for: everything, a stage, an element.
from repro.workflow.one_line import in_one_line


# Seconds each: beside Snakemake, also where the others are a cluster's jobs.
localrules:
    element_data,
    element_draw,
    element_claims,
    check,
    all,
    data,
    train_all,
    evaluate_all,
    figures,


rule all:
    default_target: True
    input:
        rules.check.output,
        LAYOUT.trained,


rule data:
    input:
        rules.prepare_data.output,


rule train_all:
    input:
        LAYOUT.trained,


rule evaluate_all:
    input:
        expand(f"{RESULTS}/evaluations/{{run}}.csv", run=LAYOUT.evaluated),


rule figures:
    input:
        expand(f"{RESULTS}/elements/{{element}}/figure.pdf", element=LAYOUT.elements),


for element in LAYOUT.elements:

    rule:
        name:
            element
        input:
            f"{RESULTS}/elements/{element}/figure.png",
            f"{RESULTS}/elements/{element}/figure.pdf",
            f"{RESULTS}/elements/{element}/claims.json",
        localrule: True


# Any other word: Snakemake alone says that no rule makes it, and no nearest name.
rule unknown_name:
    input:
        in_one_line(
            lambda wildcards: LAYOUT.refuse(
                wildcards.word,
                [rule.name for rule in workflow.rules if not rule.has_wildcards()],
            )
        ),
    output:
        "{word}",
    wildcard_constraints:
        word=r"[\w-]+",
    localrule: True
