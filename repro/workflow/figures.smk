# One element = data (a tidy CSV), drawing (reads only that CSV), claims (verdicts). Source files are inputs: a changed
# label redraws that figure and nothing else.

# The report's first page, read when the report is made; until `check` has written it there is none.
LANDING = f"{RESULTS}/landing.rst"
if Path(LANDING).is_file():

    report: str(Path(LANDING).resolve())


rule element_data:
    input:
        results=lambda wildcards: LAYOUT.needs(wildcards.element),
        sources=lambda wildcards: LAYOUT.sources(wildcards.element),
    output:
        f"{RESULTS}/elements/{{element}}/data.csv",
    log:
        f"{LOGS}/elements/{{element}}.data.log",
    benchmark:
        f"{BENCHMARKS}/elements/{{element}}.data.tsv"
    priority: 10
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        results=subpath(output[0], ancestor=3),
    message:
        "collecting the data of {wildcards.element}"
    shell:
        "python -m paper_figures {wildcards.element} data --results {params.results} > {log} 2>&1 || (cat {log}; exit 1)"


rule element_draw:
    input:
        table=rules.element_data.output[0],
        sources=lambda wildcards: LAYOUT.sources(wildcards.element),
    output:
        png=report(
            f"{RESULTS}/elements/{{element}}/figure.png",
            caption="report/caption.rst",
            category=lambda wildcards: LAYOUT.category(wildcards.element),
            labels=lambda wildcards: LAYOUT.labels(wildcards.element),
        ),
        pdf=f"{RESULTS}/elements/{{element}}/figure.pdf",
    log:
        f"{LOGS}/elements/{{element}}.draw.log",
    benchmark:
        f"{BENCHMARKS}/elements/{{element}}.draw.tsv"
    priority: 10
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        results=subpath(output[0], ancestor=3),
        caption=lambda wildcards: LAYOUT.elements[wildcards.element].caption,
    message:
        "drawing {wildcards.element}"
    shell:
        "python -m paper_figures {wildcards.element} draw --results {params.results} > {log} 2>&1 || (cat {log}; exit 1)"


rule element_claims:
    input:
        table=rules.element_data.output[0],
        sources=lambda wildcards: LAYOUT.sources(wildcards.element),
        claims=f"{CONFIGS}/claims.yaml",
    output:
        f"{RESULTS}/elements/{{element}}/claims.json",
    log:
        f"{LOGS}/elements/{{element}}.claims.log",
    benchmark:
        f"{BENCHMARKS}/elements/{{element}}.claims.tsv"
    priority: 10
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        results=subpath(output[0], ancestor=3),
    message:
        "judging the claims of {wildcards.element}"
    shell:
        "python -m paper_figures {wildcards.element} claims --results {params.results} > {log} 2>&1 || (cat {log}; exit 1)"


rule check:
    input:
        claims=expand(
            f"{RESULTS}/elements/{{element}}/claims.json", element=LAYOUT.elements
        ),
        figures=expand(
            f"{RESULTS}/elements/{{element}}/figure.png", element=LAYOUT.elements
        ),
        statements=f"{CONFIGS}/claims.yaml",
    output:
        json=f"{RESULTS}/check.json",
        markdown=f"{RESULTS}/check.md",
        page=report(
            f"{RESULTS}/check.html", caption="report/check.rst", category="0 Claims"
        ),
        landing=LANDING,
    log:
        f"{LOGS}/check.log",
    benchmark:
        f"{BENCHMARKS}/check.tsv"
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        results=subpath(output.json, parent=True),
    message:
        "comparing with the paper"
    shell:
        "python -m repro.analysis.check --results {params.results} 2>&1 | tee -i {log}"
