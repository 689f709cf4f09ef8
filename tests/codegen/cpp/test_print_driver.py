"""The driver's digest of static inputs covers the words it says, whatever their number of bytes."""

import ctypes

import numpy as np
import pytest

from dcir.cache import Cache
from dcir.codegen.cpp.print_driver import driver_text
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, default_flags, link_shared
from dcir.codegen.steps import Call
from dcir.isa import host_isa

SIZES = (1, 2, 3, 5, 7, 8, 9, 12, 15, 16, 17, 33, 64, 1000, 1001)


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    """A function of a list of arrays of bytes, one for each of `SIZES`."""
    cache = Cache(tmp_path_factory.mktemp("driver"))
    toolchain = Toolchain.find(cache)
    text = driver_text([], [], [(2 + number, size) for number, size in enumerate(SIZES)])
    objects = compile_objects([Unit("", text)], toolchain, default_flags(host_isa()), cache)
    run = ctypes.CDLL(link_shared(objects, "", toolchain, cache)).dcir_fingerprint
    run.restype = ctypes.c_ulonglong
    return lambda blocks: run((ctypes.c_void_p * (2 + len(blocks)))(None, None, *(b.ctypes.data for b in blocks)))


def expected(blocks):
    h = 0
    for block in blocks:
        width = min(len(block), 8)
        for place in sorted({(len(block) - width) * i // 3 // width * width for i in range(4)}):
            h = (h ^ int.from_bytes(block[place : place + width].tobytes(), "little")) * 0x9E3779B97F4A7C15 % 2**64
            h ^= h >> 29
    return h


def test_digest(digest):
    numbers = np.random.default_rng(0)
    blocks = [numbers.integers(0, 256, size, dtype=np.uint8) for size in SIZES]
    first = digest(blocks)
    assert first == expected(blocks)
    for block in blocks:
        block[0] ^= 1
        assert digest(blocks) == expected(blocks) != first
        block[0] ^= 1
        if len(block) > 8:
            last = (len(block) - 8) // 8 * 8  # the last whole word is always probed
            block[last] ^= 128
            assert digest(blocks) == expected(blocks) != first
            block[last] ^= 128
    assert digest(blocks) == first


def test_nothing_static_has_a_digest(tmp_path):
    cache = Cache(tmp_path / "cache")
    toolchain = Toolchain.find(cache)
    objects = compile_objects([Unit("", driver_text([]))], toolchain, default_flags(host_isa()), cache)
    assert ctypes.CDLL(link_shared(objects, "", toolchain, cache)).dcir_fingerprint(None) == 0


def test_nothing_is_overwritten_after_a_bad_index():
    checked, other, writer = (Call(name, number, (), True, name == "f") for number, name in enumerate("fgh"))
    text = driver_text([checked, other, writer, writer], overwriting={2})
    assert text.count("if (!bad) {") == 1
    assert text.index("__program_g(0") < text.index("if (!bad) {") < text.index("__program_h(0")
    for calls in ([writer, checked], [other, writer]):
        assert driver_text(calls, overwriting={2}) == driver_text(calls)
