"""The names of targets: dcir's own, and none that is not there."""

import pytest

from dcir.errors import OptionError
from dcir.options import Options
from dcir.targets import DEFAULT, known_targets, target_class


def test_own_targets():
    assert list(known_targets())[:2] == ["cpp", "dace"] and DEFAULT == "cpp"
    for name in ("cpp", "dace"):
        assert target_class(name).name == name


def test_an_unknown_name():
    with pytest.raises(OptionError, match="there is no target 'gpu'") as refused:
        target_class("gpu")
    assert "cpp, dace" in refused.value.hint
    with pytest.raises(OptionError, match="option target cannot be 'cp'") as refused:
        Options(target="cp")
    assert refused.value.hint == "target='cpp'"


@pytest.mark.parametrize("option", [{"tune": 1.0}, {"memory_limit": 1 << 30}])
def test_what_a_target_cannot_do_is_refused_by_its_own_answer(option):
    Options(target="cpp", **option)
    with pytest.raises(OptionError, match="not implemented yet") as refused:
        Options(target="dace", **option)
    assert "dace" in refused.value.hint
