"""Corpora to token files, and token files to samples.

`python -m repro.data CONFIG.yaml --out FOLDER` prepares a folder (`prepare`); `TrainingData` and `ValidationData`
read it. Reading needs numpy alone; preparing needs the extra `workflow`.
"""

from repro.data.manifest import read_manifest, verify_data
from repro.data.training_data import TrainingData, ValidationData

__all__ = ["TrainingData", "ValidationData", "read_manifest", "verify_data"]
