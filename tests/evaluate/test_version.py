"""Settings are written for one version of lm-eval: scores of two do not compare."""

from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace

import pytest

from repro.evaluate.harness import check_version


def test_another_version_of_lm_eval_is_refused_and_local_tasks_depend_on_none() -> None:
    for fits in (None, version("lm_eval")):
        check_version(SimpleNamespace(name="paper", lm_eval=fits))
    with pytest.raises(ValueError, match=r"the settings of paper are for 0\.0\.1: scores of two versions"):
        check_version(SimpleNamespace(name="paper", lm_eval="0.0.1"))
