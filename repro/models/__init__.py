"""The paper's models, small and readable, without any precision inside.

hybrid.py           Tables 3 and 4: Mamba-2, attention and feed-forward blocks after a pattern
transformer.py      Table 5: rotary attention + feed-forward
language_model.py   body + output head; `build_model`
loss.py  init.py    cross-entropy in chunks; initial weights by seed and name
export.py           a folder that transformers' `from_pretrained` loads
"""

from repro.models.language_model import LanguageModel, build_model

__all__ = ["LanguageModel", "build_model"]
