"""Exchanges along a ring and a tree take what their messages take; texts name links, and nonsense is refused."""

import json

import pytest

from dcir.cost.links import NAMED, Link, parse_link
from dcir.errors import OptionError


def test_a_ring_sends_each_part_twice_round():
    # Four processes, 8 MB, 1 GB/s, 10 us: six messages of 2 MB.
    link = Link("", 1e9, 10e-6)
    assert link.reduction_seconds(8e6, 4) == pytest.approx(6 * (10e-6 + 2e-3))
    assert link.sent_bytes(8e6, 4) == 12e6
    # Two: as many bytes as there are.
    assert link.reduction_seconds(8e6, 2) == pytest.approx(2 * 10e-6 + 8e-3)


def test_a_tree_goes_up_and_down():
    link = Link("", 1e9, 10e-6)
    assert link.reduction_seconds(8e6, 8, "tree") == pytest.approx(6 * 10e-6 + 16e-3)
    assert link.reduction_seconds(8e6, 5, "tree") == link.reduction_seconds(8e6, 8, "tree")
    # Many messages along the ring, few along the tree.
    assert link.reduction_seconds(1e3, 64, "tree") < link.reduction_seconds(1e3, 64, "ring")


def test_beside_computing_messages_take_longer():
    link = Link("", 1e9, 10e-6, computing=(1e8, 1e-3))
    assert link.reduction_seconds(8e6, 2) == pytest.approx(2 * 10e-6 + 8e-3)
    assert link.reduction_seconds(8e6, 2, computing=True) == pytest.approx(2 * 1e-3 + 80e-3)
    # Where nothing is known of it, they do not.
    plain = Link("", 1e9, 10e-6)
    assert plain.reduction_seconds(8e6, 2, computing=True) == plain.reduction_seconds(8e6, 2)


def test_a_broadcast_goes_down_a_tree():
    assert Link("", 1e6, 1e-3).broadcast_seconds(500, 5) == pytest.approx(3 * (1e-3 + 5e-4))


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_one_process_exchanges_nothing(algorithm):
    link = Link("", 1.0, 1.0)
    assert link.reduction_seconds(1e9, 1, algorithm) == link.sent_bytes(1e9, 1, algorithm) == 0
    assert link.broadcast_seconds(1e9, 1) == 0


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency", "work"),
    [
        ("10Gbit", 1.25e9, 20e-6, 0),
        (" nvLink ", 300e9, 3e-6, 0),
        ("25Gbit", 3.125e9, 20e-6, 0),
        ("10Gbit,50us", 1.25e9, 50e-6, 0),
        ("400MB, 1ms, 0.5ns", 4e8, 1e-3, 0.5e-9),
        ("1.5GB/s,0s", 1.5e9, 0, 0),
        ("2e3kbit,10ns", 2.5e5, 1e-8, 0),
    ],
)
def test_texts(text, bandwidth, latency, work):
    link = parse_link(text)
    assert (link.bandwidth, link.latency, link.work) == pytest.approx((bandwidth, latency, work))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "10",
        "Gbit",
        "0Gbit",
        "-1Gbit",
        "10Gbit,",
        "10Gbit,fast",
        "10us,10Gbit",
        "10Gbit,1us,1ns,1ns",
        "1e999GB",
        "nanGbit",
    ],
)
def test_nonsense_is_refused_with_what_there_is(text):
    with pytest.raises(OptionError) as caught:
        parse_link(text)
    assert "nvlink" in str(caught.value) and "local" in str(caught.value)


def test_a_link_tells_its_figures():
    assert str(NAMED["10gbit"]) == "10Gbit (1.25 GB/s, 20 us a message)"
    assert str(parse_link("1GB,1us,2ns")).endswith("(1 GB/s, 1 us a message, 2 ns of a processor per byte)")
    assert str(Link("x", 1e9, 1e-6, computing=(2e8, 3e-4))).endswith("a message; beside computing 0.2 GB/s, 300 us)")


@pytest.mark.parametrize("link", [Link("x", 1e9, 1e-6, 2e-9), Link("x", 1e9, 1e-6, computing=(2e8, 3e-4))])
def test_json_gives_the_same_link_again(link):
    assert Link.from_json(json.loads(json.dumps(link.to_json()))) == link
    with pytest.raises((TypeError, ValueError)):
        Link.from_json(link.to_json() | {"computing": 3.0})
