"""A driver that records is run by hand: each step begins and ends one event, also when it is run part by part."""

import ctypes

import pytest

from dcir.cache import Cache
from dcir.codegen.cpp.driver_marks import Laps, Marks, Records
from dcir.codegen.cpp.print_driver import driver_text
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, default_flags, link_shared
from dcir.codegen.steps import Call
from dcir.isa import host_isa

BEGIN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong, ctypes.POINTER(ctypes.c_void_p)
)
END = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
CALL_BACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
CALLS = [Call(None, number, (), False, False) for number in (4, 5, 6)]


class Recorder(ctypes.Structure):
    _fields_ = (("begin", BEGIN), ("end", END), ("names", ctypes.c_void_p))


@pytest.fixture(params=[(), (2,)], ids=["at once", "in parts"])
def ran(request, tmp_path):
    """A function of the number of the step that fails: what the driver returned, and what it told."""
    cache = Cache(tmp_path)
    toolchain = Toolchain.find(cache)
    text = driver_text(CALLS, stops=request.param, recorded=True)
    objects = compile_objects([Unit("", text)], toolchain, default_flags(host_isa()), cache)
    library = ctypes.CDLL(link_shared(objects, "", toolchain, cache))

    def run(fails=None):
        told = []

        def begin(name, kwargs, inputs, count, event):
            assert not kwargs and not inputs and count == 0
            told.append(("begin", name.decode()))
            event[0] = len(told)
            return 0

        def end(event):
            told.append(("end", told[event - 1][1]))
            return 0

        def call_back(number):
            told.append(("run", number))
            return number == fails

        names = (ctypes.c_char_p * 3)(b"a", b"b", b"c")
        recorder = Recorder(BEGIN(begin), END(end), ctypes.cast(names, ctypes.c_void_p))
        code = library.dcir_run_recorded((ctypes.c_void_p * 2)(), CALL_BACK(call_back), ctypes.byref(recorder))
        recorded, plain = list(told), []
        told.clear()
        assert library.dcir_run((ctypes.c_void_p * 2)(), CALL_BACK(call_back)) == code
        plain = list(told)
        assert plain == [row for row in recorded if row[0] == "run"]
        return code, recorded

    return run


def test_every_step_has_an_event_around_it(ran):
    code, told = ran()
    assert code == 0
    rows = zip("abc", (4, 5, 6), strict=True)
    assert told == [row for name, n in rows for row in (("begin", name), ("run", n), ("end", name))]


def test_a_step_that_fails_ends_its_event(ran):
    code, told = ran(fails=5)
    assert code == -1 - 5
    assert told[-3:] == [("begin", "b"), ("run", 5), ("end", "b")]


def test_a_driver_that_is_not_asked_has_no_marks():
    text = driver_text(CALLS)
    assert "record" not in text and "lap" not in text and "omp" not in text
    assert "dcir_run_recorded" in driver_text(CALLS, recorded=True)
    assert [m.before(3) + m.after(3) + m.team() for m in (Marks(), Laps(7))] == [[], ["  lap(3);", "  lap(7);"]]
    assert "event3" in "".join(Records().before(3)) and Records().team() == []
