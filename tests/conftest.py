"""What tests of several floors need."""

import pytest

#: What transformers' NemotronH takes from mamba_ssm and causal_conv1d where these are installed: kernels that refuse
#: tensors of a CPU and know no float64.
KERNELS = (
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "mamba2_split_conv1d_scan_combined",
    "mamba2_selective_state_update",
    "mamba2_chunk_scan",
)


@pytest.fixture
def transformers_in_pytorch(monkeypatch):
    """transformers' own PyTorch functions, which its choice of kernels wraps, whatever is installed.

    Its module stays the one object that other tests have patched and that its Auto classes keep.
    """
    from transformers.models.nemotron_h import modeling_nemotron_h

    for name in KERNELS:
        monkeypatch.setattr(modeling_nemotron_h, name, getattr(modeling_nemotron_h, name).__wrapped__)
