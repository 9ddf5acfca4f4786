"""Downstream accuracy of a run's checkpoints (Table 2 and Figure 3 of arXiv 2509.25149).

Command: ``python -m repro.evaluate RUN --results results/tiny --evals configs/evals/tiny.yaml``. In: the frozen
segments of a trained run, its checkpoints and the tier's evaluation settings. Out: ``evaluations/RUN.csv``.

A checkpoint becomes a Hugging Face folder (repro.models.export) and lm-eval judges that folder as anyone could,
offline. The paper: "Evaluations are done in BF16". Not here: training (a failed evaluation never re-trains),
choosing the text of the local tasks (repro.data), drawing (paper_figures).
"""
