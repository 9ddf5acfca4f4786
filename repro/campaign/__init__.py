"""Many frozen runs on the GPUs of one machine within a given time, without the workflow manager.

    python -m repro.campaign plan                              leases: which runs, tokens, minutes
    python -m repro.campaign run LEASE|RUN ... --minutes 25    trains, evaluates and measures what fits, then stops
    python -m repro.campaign start ... ; wait                  the same in a session of its own, watched from outside
    python -m repro.campaign collect --out FOLDER              finished segments and tables as one small archive
    python -m repro.campaign record ARCHIVE ...                keeps them in recorded/<tier> (repro.analysis.recorded)

For a machine that is rented bare and for a short time (docs/campaign.md, step by step): a segment is started only
when it can end in the time left, a fork follows its parent at once because checkpoints stay on that machine, and
several small runs share a GPU. The commands run, start, wait and collect need what repro.portable needs (torch,
numpy, PyYAML, pydantic, safetensors); plan and record need no torch. All but wait read configs/.

Not here: what a segment trains (repro.portable), what is measured (repro.evaluate, repro.mechanisms), verdicts.
"""
