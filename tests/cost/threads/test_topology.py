"""Cores: of a text, of this process by affinity, quota, siblings, sockets, and neighbours of the same job."""

import pytest

from dcir.cost.threads import topology
from dcir.cost.threads.topology import Cores, cores_here, parse_cores
from dcir.errors import OptionError


@pytest.mark.parametrize(
    ("text", "total", "sockets"), [("1", 1, 1), ("16", 16, 1), ("2x64", 128, 2), (" 4 X 8 ", 32, 4), ("1024", 1024, 1)]
)
def test_cores_of_a_text(text, total, sockets):
    cores = parse_cores(text)
    assert (cores.total, cores.sockets) == (total, sockets)


@pytest.mark.parametrize("text", ["", "0", "x8", "2x", "0x8", "2x0", "-2", "2x2x2", "1025", "2x999", "many", "1e3"])
def test_texts_that_are_none(text):
    with pytest.raises(OptionError, match="sockets times cores"):
        parse_cores(text)


def test_teams_fill_one_socket_after_the_other():
    cores = Cores(128, 64)
    assert [cores.sockets_of(n) for n in (1, 64, 65, 128)] == [1, 1, 2, 2]
    assert (cores.limited(65).total, cores.limited(65).sockets, cores.limited(3).sockets) == (65, 2, 1)
    assert cores.limited(500) == cores and cores.limited(0).total == 1
    assert str(cores) == "128 cores in 2 sockets" and str(Cores(1, 1)) == "1 core"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of processors given as (socket, core), of which the process may run on some."""

    def make(places, mask=None, usable=1 << 20):
        for number, (socket, core) in enumerate(places):
            folder = tmp_path / f"cpu{number}" / "topology"
            folder.mkdir(parents=True)
            (folder / "physical_package_id").write_text(f"{socket}\n")
            (folder / "core_id").write_text(f"{core}\n")
        allowed = set(range(len(places))) if mask is None else mask
        monkeypatch.setattr(topology.os, "sched_getaffinity", lambda pid: allowed, raising=False)
        monkeypatch.setattr(topology.os, "cpu_count", lambda: len(places))
        monkeypatch.setattr(topology, "usable_threads", lambda: min(len(allowed), usable))
        return tmp_path

    return make


SERVER = [(socket, core) for _ in range(2) for socket in range(2) for core in range(8)]  # two hardware threads a core


def test_siblings_are_one_core(machine):
    assert cores_here(machine(SERVER), {}) == Cores(16, 8)


def test_a_mask_leaves_its_cores(machine):
    # Two cores of the first socket, one of them twice, and one of the second.
    assert cores_here(machine(SERVER, {0, 1, 17, 8}), {}) == Cores(3, 2)


def test_a_quota_leaves_its_time(machine):
    assert cores_here(machine(SERVER, usable=3), {}) == Cores(3, 8)


def test_processes_of_a_job_share_a_machine(machine):
    system = machine(SERVER)
    assert cores_here(system, {"LOCAL_WORLD_SIZE": "4"}).total == 4
    assert cores_here(system, {"LOCAL_WORLD_SIZE": "100"}).total == 1
    assert cores_here(system, {"LOCAL_WORLD_SIZE": "many"}).total == 16


def test_processes_with_cores_of_their_own_share_nothing(machine):
    assert cores_here(machine(SERVER, {0, 1, 2, 3}), {"LOCAL_WORLD_SIZE": "4"}).total == 4


def test_a_system_that_tells_nothing_has_a_core_for_each_processor(machine, tmp_path):
    machine(SERVER)
    assert cores_here(tmp_path / "nothing", {}) == Cores(32, 32)


def test_here():
    cores = cores_here()
    assert cores.per_socket >= 1 and 1 <= cores.total <= topology.runnable_threads()
