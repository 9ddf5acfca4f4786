"""The portable trainer: trains one frozen segment on any CPU or GPU with emulated 4-bit numerics.

Command: ``python -m repro.portable RUN_YAML --data DIR --state DIR``. In: a frozen run.yaml and prepared token
files. Out: metrics.jsonl and done.json beside run.yaml; checkpoints in the state folder, keyed by the run's hash.

Needs torch, numpy, PyYAML, pydantic and safetensors only: no workflow manager, no megatron-core, no transformers.
"""
