"""Random networks whose sizes change are right at all of them, and most are one program; ``python -m tests.fuzz.sized`` runs more."""

import pytest

from tests.fuzz import sized
from tests.fuzz.sized import check_saved, check_sized, sized_case

CASES = range(16)


@pytest.mark.parametrize("seed", CASES)
def test_random_networks_at_all_sizes(seed):
    check_sized(sized_case(seed), train=seed % 2 == 1)


def test_most_are_one_program():
    """Else the cases would test something else."""
    made = [check_sized(sized_case(seed), train=False) for seed in CASES[:6]]
    assert sum(moving > 0 and not why for moving, _, why in made) >= 4


@pytest.mark.parametrize("seed", CASES[:6])
def test_files_of_random_networks_are_right_at_all_sizes(seed, tmp_path):
    assert not check_saved(sized_case(seed), str(tmp_path))


def test_a_wrong_result_is_found(monkeypatch):
    case = sized_case(4)
    optimize = sized.dcir.optimize

    def wrong(net):
        fast = optimize(net)

        def call(*args):
            results = fast(*args)
            return tuple(r * 1.0001 for r in results) if isinstance(results, tuple) else results * 1.0001

        call.dcir = fast.dcir
        return call

    monkeypatch.setattr(sized.dcir, "optimize", wrong)
    with pytest.raises(AssertionError, match="error"):
        check_sized(case, train=False)
