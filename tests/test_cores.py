"""Processors this process may use: affinity, and quotas of control groups of both versions, its own and those above."""

import os

import pytest

from dcir import cores


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Writes files of a machine of 64 processors."""
    monkeypatch.setattr(cores, "runnable_threads", lambda: 64)

    def write(**files):
        for name, text in files.pop("more", {}).items() | files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "33 32 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "34 32 0:30 {shown} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
)


def files(membership, mounts, **groups):
    return {"proc/self/cgroup": membership, "proc/self/mountinfo": mounts, **groups}


@pytest.mark.parametrize(
    ("own", "above", "wanted"),
    [
        ("max 100000", "max 100000", 64),
        ("200000 100000", "max 100000", 2),
        ("max 100000", "300000 100000", 3),
        ("400000 100000", "150000 100000", 2),
        ("10000 100000", "max 100000", 1),
        ("9900000 100000", "max 100000", 64),
        ("nonsense", "200000 100000", 2),
    ],
)
def test_groups_of_version_2(system, own, above, wanted):
    groups = {"sys/fs/cgroup/a/b/cpu.max": own, "sys/fs/cgroup/a/cpu.max": above}
    root = system(more=files("0::/a/b\n", V2, **groups))
    assert cores.usable_threads(root) == wanted


def test_a_container_sees_its_own_group_as_the_uppermost(system):
    root = system(more=files("0::/\n", V2, **{"sys/fs/cgroup/cpu.max": "200000 100000\n"}))
    assert cores.usable_threads(root) == 2
    mounts = V2.replace("0:26 /", "0:26 /../../docker")
    assert cores.usable_threads(system(more=files("0::/docker/7\n", mounts))) == 2


@pytest.mark.parametrize(("time", "wanted"), [("-1", 64), ("200000", 2), ("250000", 3)])
@pytest.mark.parametrize("shown", ["/", "/docker/7"])
def test_groups_of_version_1(system, shown, time, wanted):
    folder = "sys/fs/cgroup/cpu,cpuacct" + ("/docker/7" if shown == "/" else "")
    groups = {f"{folder}/cpu.cfs_quota_us": time, f"{folder}/cpu.cfs_period_us": "100000"}
    membership = "5:cpuset:/docker/7\n4:cpu,cpuacct:/docker/7\n0::/system\n"
    root = system(more=files(membership, V1.format(shown=shown), **groups))
    assert cores.usable_threads(root) == wanted


def test_without_groups(system):
    assert cores.usable_threads(system()) == 64
    assert cores.quota(system()) is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_affinity(tmp_path):
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores.usable_threads(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)
    assert cores.usable_threads(tmp_path) == len(before)
