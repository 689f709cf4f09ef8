"""A step of many processes is predicted from one's: buckets are DistributedDataParallel's, and exchanges run beside the backward."""

import itertools
import json
import random
from dataclasses import replace

import pytest
import torch
from torch import distributed

from dcir.cost.links import Link
from dcir.report.scaling import CAP, MIB, Gradient, Scaling, TrainingStep, buckets_of, predict

FAST = Link("", 1e15, 0.0)


def step(*gradients, **settings):
    return TrainingStep("dcir", 10.0, 20.0, 2.0, gradients, **settings)


def one_megabyte(*times, **settings):
    return tuple(Gradient(10**6, ready_ms=t, **settings) for t in times)


def test_one_node_has_no_communication():
    alone = predict(step(*one_megabyte(1.0, 2.0, in_ms=1.0, out_ms=1.0), buffers=(8,)), Link("", 1.0, 1.0), 1)
    assert alone.step_ms == 32 and alone.exchanges == () and alone.speed_up == alone.efficiency == 1
    assert alone.exchange_ms == alone.exposed_ms == alone.copies_ms == 0


def test_exposed_is_what_a_hand_simulation_gives():
    # Two processes on 1 GB/s: 1 ms a bucket of 1 MB, without latency 4 ms for one of 4 MB.
    link = Link("", 1e9, 0.0)
    gradients = (*one_megabyte(4.0, 5.0), Gradient(4 * 10**6, ready_ms=5.5), *one_megabyte(19.5))
    got = predict(step(*gradients), link, 2, cap=10**6)
    # full 4 5 5.5 19.5; sent 4-5, 5-6, 6-10, 19.5-20.5; the backward ends at 20.
    times = [t for e in got.exchanges for t in (e.full_ms, e.begin_ms, e.end_ms)]
    assert times == pytest.approx([4, 4, 5, 5, 5, 6, 5.5, 6, 10, 19.5, 19.5, 20.5])
    assert got.exchange_ms == pytest.approx(7) and got.exposed_ms == pytest.approx(0.5)
    assert got.step_ms == pytest.approx(32.5)
    assert got.efficiency == pytest.approx(32 / 32.5) and got.speed_up == pytest.approx(64 / 32.5)


def test_a_slow_link_leaves_exchanges_in_a_queue():
    # 1 MB in 10 ms: sent 4-14, 14-24, 24-34, of which 14 ms lie behind the backward.
    got = predict(step(*one_megabyte(4.0, 5.0, 6.0)), Link("", 1e8, 0.0), 2, cap=10**6)
    assert [e.end_ms for e in got.exchanges] == pytest.approx([14, 24, 34])
    assert got.exposed_ms == pytest.approx(14) and got.step_ms == pytest.approx(46)


def test_copies_delay_what_comes_after_them():
    # In: at 4 and 6, each 0.5 ms, so that buckets are full at 4.5 and 7, and the backward ends at 21.
    # Out: 2 ms each; the second exchange (7-29) is waited for from 23 on.
    gradients = (
        Gradient(10**5, ready_ms=4.0, in_ms=0.5, out_ms=2.0),
        Gradient(22 * 10**5, ready_ms=6.0, in_ms=0.5, out_ms=2.0),
    )
    got = predict(step(*gradients), Link("", 1e8, 0.0), 2, cap=10**5)
    assert [t for e in got.exchanges for t in (e.begin_ms, e.end_ms)] == pytest.approx([4.5, 5.5, 7, 29])
    assert got.exposed_ms == pytest.approx(6) and got.copies_ms == pytest.approx(5)
    assert got.step_ms == pytest.approx(10 + 29 + 2 + 2)


def test_exchanges_that_keep_processors_busy_slow_the_backward():
    # 1 ms a MB, of which a processor works half: of the 4 ms under way, 2 are lost to the backward.
    link = Link("", 1e9, 0.0, work=0.5e-9)
    got = predict(step(Gradient(4 * 10**6, ready_ms=4.0)), link, 2, cap=1)
    assert got.exposed_ms == 0 and got.step_ms == pytest.approx(34)
    assert predict(step(Gradient(4 * 10**6, ready_ms=4.0)), link, 2, cap=1, threads=2).step_ms == pytest.approx(33)
    # What a processor feeds is no faster than it: 8 ms in place of 4.
    slow = predict(step(Gradient(4 * 10**6, ready_ms=4.0)), replace(link, work=2e-9), 2, cap=1)
    assert slow.exchange_ms == pytest.approx(8) and slow.step_ms == pytest.approx(40)


def test_beside_the_backward_exchanges_are_slower_than_behind_it():
    # 4 MB take 4 ms, and 20 beside computing, which loses a tenth meanwhile: of 16 ms of backward 17.8 are under way.
    link = Link("", 1e9, 0.0, work=0.5e-9, computing=(2e8, 0.0))
    got = predict(step(Gradient(4 * 10**6, ready_ms=4.0)), link, 2, cap=1)
    under_way = 16 / 0.9
    left = 4 * (1 - under_way / 20)
    assert got.exposed_ms == pytest.approx(left) and got.step_ms == pytest.approx(12 + 4 + under_way + left)
    # Two of them, the second one behind the backward alone.
    two = predict(step(*(Gradient(4 * 10**6, ready_ms=4.0),) * 2), link, 2, cap=1)
    assert two.exposed_ms == pytest.approx(left + 4)
    assert [two.exchanges[1].begin_ms, two.exchanges[0].end_ms] == pytest.approx([4 + under_way + left] * 2)


def test_buffers_come_before_the_forward():
    got = predict(step(buffers=(1000, 8)), Link("", 1e6, 1e-3), 4)
    assert got.step_ms == pytest.approx(32 + 2 * (1 + 1) + 2 * (1 + 0.008))


def random_step(seed):
    draw = random.Random(seed)
    gradients = [
        Gradient(draw.randrange(1, 4 * MIB), ready_ms=draw.uniform(0, 20), in_ms=draw.uniform(0, 0.1), out_ms=draw.uniform(0, 0.1))
        for _ in range(draw.randrange(1, 40))
    ]  # fmt: skip
    return step(*gradients, buffers=(draw.randrange(1, 1000),))


@pytest.mark.parametrize("work", [0.0, 0.3e-9, 3e-9])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_more_bandwidth_is_never_slower(work, algorithm):
    for seed in range(30):
        for nodes in (2, 3, 12):
            times = [
                predict(random_step(seed), Link("", rate, 1e-5, work), nodes, cap=MIB, algorithm=algorithm).step_ms
                for rate in (1e7, 1e8, 3e8, 1e9, 1e10, 1e12)
            ]
            assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(times))
            assert times[-1] >= random_step(seed).alone_ms


@pytest.mark.parametrize("cap", [CAP, MIB, 100_000])
def test_buckets_are_those_of_distributed_data_parallel(cap):
    for seed in range(20):
        gradients = random_step(seed).gradients
        order = sorted(range(len(gradients)), key=lambda i: gradients[i].ready_ms)
        tensors = [torch.empty(gradients[i].nbytes, dtype=torch.uint8) for i in order]
        limits = [distributed._DEFAULT_FIRST_BUCKET_BYTES, cap] if cap == CAP else [cap]
        theirs, _ = distributed._compute_bucket_assignment_by_size(tensors, limits, [False] * len(order), order)
        assert [list(b) for b in theirs] == buckets_of(gradients, cap)


def test_each_type_has_buckets_of_its_own():
    gradients = [Gradient(MIB, "float32", 1.0), Gradient(10, "bfloat16", 2.0), Gradient(10, "float32", 3.0)]
    gradients += [Gradient(MIB, "bfloat16", 4.0)]
    assert buckets_of(gradients) == [[0], [1, 3], [2]]


def scaling(link=None):
    steps = [random_step(1), replace(random_step(2), name="eager", backward_ms=40.0)]
    return Scaling("net.py:make", 2, link or Link("1GB", 1e9, 1e-5), steps, (1, 2, 64), MIB, "tree", ["alone"])


def test_json_gives_the_same_again():
    data = json.loads(json.dumps(scaling().to_json()))
    assert Scaling.from_json(data) == scaling()
    link = Link("1GB", 1e9, 1e-5, computing=(1e8, 1e-4))
    assert Scaling.from_json(json.loads(json.dumps(scaling(link).to_json()))) == scaling(link)
    assert len(data["predictions"]) == 6 and data["predictions"][0]["efficiency"] == 1
    assert data["predictions"][3]["exposed_ms"] == scaling().predictions()[1][1].exposed_ms


def test_the_table_has_a_row_for_each_number_of_processes():
    lines = scaling().to_text().splitlines()
    assert lines[0] == "net.py:make, 2 threads a process; 1GB (1 GB/s, 10 us a message), tree"
    assert [line.split()[0] for line in lines[4:7]] == ["1", "2", "64"] and lines[3].split()[0] == "nodes"
    assert len({len(line) for line in lines[3:7]}) == 1
    assert lines[-1] == "note: alone"
    (alone,) = [replace(scaling(), steps=scaling().steps[:1])]
    assert "gain" not in alone.to_text()
