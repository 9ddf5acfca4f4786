"""The cluster backend: a frozen run through megatron-core, Transformer Engine and mamba-ssm on many GPUs.

Command: ``python -m repro.cluster RUN_YAML --data DIR --state DIR``, one process a GPU; and
``python -m repro.cluster explain RUN_YAML``, which needs none of the three packages nor a GPU: it prints which path
the run's precision takes and why, and the complete arguments and environment.

Sections 3 to 5 and Appendix A of arXiv 2509.25149. The same files go in and come out as with repro.portable. This is
the only package that imports megatron (its data files aside), transformer_engine or mamba_ssm, and it does so inside
functions, so that everything here imports without them.
"""
