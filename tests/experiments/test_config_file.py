"""configs/config.yaml and --config: what is not a key, a name or a path is told with file and key."""

from __future__ import annotations

import pytest

from repro.experiments.config_file import check_config

FINE = {"tier": "tiny", "results": "results"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"teir": "proxy"}, "unknown key 'teir'; did you mean 'tier'"),
        ({"tier": None}, "tier: say a name, e.g. `tier: tiny`; found None"),
        ({"tier": ""}, "tier: say a name"),
        ({"results": None}, "results: say a name, e.g. `results: results`; found None"),
        ({"results": {"a": "b"}}, "results: say a name"),
        ({"results": True}, "results: say a name"),
        ({"results": "my results"}, "results: 'my results' is no path of letters, digits and"),
        ({"results": "a;b"}, "results: 'a;b' is no path"),
        ({"configs": "{a}"}, "configs: '{a}' is no path"),
    ],
)
def test_what_does_not_fit_is_named(change, words):
    with pytest.raises(ValueError, match=r"^config\.yaml: ") as caught:
        check_config(FINE | change, "config.yaml")
    assert words in str(caught.value)


@pytest.mark.parametrize("key", ["tier", "results"])
def test_a_missing_key_is_named(key):
    with pytest.raises(ValueError, match=rf"{key}: say a name, e\.g\."):
        check_config({k: v for k, v in FINE.items() if k != key}, "config.yaml")


@pytest.mark.parametrize("path", ["/data/run-1/é", "a.b_c", "../x", 7])
def test_paths_that_a_shell_takes_as_one_word_are_fine(path):
    check_config(FINE | {"results": path}, "config.yaml")
