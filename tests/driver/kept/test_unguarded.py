"""What a trace depends on without a guard of Dynamo's: where it is another one in a second process, that gets eager mode's numbers."""

from pathlib import Path
from typing import Any

import pytest

from tests.driver.kept.places import Place

pytestmark = pytest.mark.in_turn(3)

HELPER = """
FACTOR = 2.0


def helped(x, k=2.0):
    return x * k * FACTOR
"""
MODEL = """
import abc, enum, functools, math, os
import torch
from torch import nn
from torch.nn import functional as F
import helper

CONSTANT = 2.0
GRADIENT = 2.0


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 8)


@torch._dynamo.assume_constant_result
def constant():
    return CONSTANT


class Assumed(Base):
    def forward(self, x):
        return self.out(x) * constant()


class AssumedMethod(Base):
    @torch._dynamo.assume_constant_result
    def constant(self):
        return CONSTANT

    def forward(self, x):
        return self.out(x) * self.constant()


@torch._dynamo.allow_in_graph
def allowed(x):
    return x * CONSTANT


class Allowed(Base):
    def forward(self, x):
        return allowed(self.out(x))


@torch._dynamo.nonstrict_trace
def nonstrict(x):
    return x * CONSTANT


class NonStrict(Base):
    def forward(self, x):
        return nonstrict(self.out(x))


library = torch.library.Library("kept_test", "FRAGMENT")
if not hasattr(torch.ops.kept_test, "scaled"):
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", lambda x: x * __import__("model").CONSTANT, "CompositeImplicitAutograd")
    ALIVE = torch._kept_library = library


class Operator(Base):
    def forward(self, x):
        return torch.ops.kept_test.scaled(self.out(x))


class Environment(Base):
    def forward(self, x):
        return self.out(x) * (2.0 if os.environ.get("NET_SCALE", "a") == "a" else 3.0)


class Getenv(Base):
    def forward(self, x):
        return self.out(x) * (2.0 if os.getenv("NET_SCALE", "a") == "a" else 3.0)


class Inside(Base):
    def forward(self, x):
        return F.layer_norm(self.out(x), (8,)) + 1


class Gelu(Base):
    def forward(self, x):
        return F.gelu(self.out(x))


class Mode(enum.Enum):
    A = 2.0
    B = 4.0


class Enumeration(Base):
    def forward(self, x):
        return self.out(x) * Mode.A.value * len(Mode)


class Default(Base):
    def scaled(self, x, k=2.5):
        return x * k

    def forward(self, x):
        return self.scaled(self.out(x))


class Inherited(Default):
    def scaled(self, x):
        return super().scaled(x) + 1


def times(k):
    def decorate(f):
        @functools.wraps(f)
        def inner(self, x):
            return f(self, x) * k

        return inner

    return decorate


class Decorated(Base):
    @times(3.5)
    def forward(self, x):
        return self.out(x)


class Tables(Base):
    table = {"a": (1.5, 2.0), "b": [3.0]}

    def forward(self, x):
        return self.out(x) * self.table["a"][0] + type(self).table["b"][0]


class Marked(abc.ABC):
    pass


class Plain:
    pass


Marked.register(Plain)


class Registered(Base):
    def __init__(self):
        super().__init__()
        self.what = Plain()

    def forward(self, x):
        return self.out(x) * (2.0 if isinstance(self.what, Marked) else 3.0)


class Pi(Base):
    def forward(self, x):
        return self.out(x) * math.pi


class Helped(Base):
    def forward(self, x):
        return helper.helped(self.out(x))


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * GRADIENT


class Derivative(Base):
    def forward(self, x):
        return Function.apply(self.out(x))


@functools.lru_cache
def cached():
    return CONSTANT


class Cached(Base):
    def forward(self, x):
        return self.out(x) * cached()


class Meta(type):
    def __instancecheck__(cls, value):
        return CONSTANT == 2.0


class Asked(metaclass=Meta):
    pass


class Instance(Base):
    def forward(self, x):
        return self.out(x) * (2.0 if isinstance(self.out, Asked) else 3.0)


class Twice(Base):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(8, 8)

    def forward(self, x):
        return self.other(self.out(x))


class Einsum(Base):
    def forward(self, x):
        return torch.einsum("ij,kj,kl->il", x, self.out.weight, self.out.weight)


TABLE = {"there": 1.0}


class Item(Base):
    def forward(self, x):
        try:
            return self.out(x) * TABLE["k"]
        except KeyError:
            return self.out(x)


class Get(Base):
    def forward(self, x):
        return self.out(x) * TABLE.get("k", 2.0)


class Contained(Base):
    def forward(self, x):
        return self.out(x) * (TABLE["k"] if "k" in TABLE else 2.0)


class Attribute(Base):
    def forward(self, x):
        return self.out(x) * getattr(self, "extra", 2.0) * getattr(self.out, "extra", 2.0)


class OfModule(Base):
    def forward(self, x):
        return self.out(x) * getattr(helper, "EXTRA", 2.0)


class Caught(Base):
    def forward(self, x):
        try:
            return self.out(x) * helper.EXTRA
        except AttributeError:
            return self.out(x)


def flagged(x):
    return x


class Flag(Base):
    def forward(self, x):
        return self.out(x) * getattr(flagged, "flag", 2.0)


class Thing:
    __slots__ = ("a", "b")


THING = Thing()


class Slots(Base):
    def forward(self, x):
        return self.out(x) * getattr(THING, "a", 2.0)


class Precision(Base):
    def forward(self, x):
        return self.out(x) * (2.0 if torch.get_float32_matmul_precision() == "highest" else 3.0)


class Filled(Base):
    def forward(self, x):
        return self.out(x) * torch.ones(8, dtype=torch.get_default_dtype()).to(x.dtype) * torch.finfo(torch.get_default_dtype()).bits


def inputs(net, n, g):
    return (torch.randn(n, 8, generator=g, dtype=torch.float32),)
"""
KEPT = (
    "Environment", "Getenv", "Inside", "Gelu", "Enumeration", "Default", "Inherited", "Decorated", "Tables", "Registered", "Pi", "Helped",
    "Twice", "Einsum", "Filled", "Item", "Get", "Contained", "Attribute", "OfModule", "Caught", "Flag", "Slots",
)  # fmt: skip
"""Whose traces a second process uses."""
NOT_KEPT = ("Assumed", "AssumedMethod", "Allowed", "NonStrict", "Operator", "Instance")
OTHERS = ("Cached", "Precision")
"""Those of which only the numbers are to be right."""
STATE: dict[str, dict[str, Any]] = {
    **{name: {"before": "model.CONSTANT = 5.0"} for name in (*NOT_KEPT, "Cached")},
    "Environment": {"before": "import os; os.environ['NET_SCALE'] = 'b'", "after": "del os.environ['NET_SCALE']"},
    "Getenv": {"before": "import os; os.environ['NET_SCALE'] = 'b'", "after": "del os.environ['NET_SCALE']"},
    "Inside": {
        "before": "before = torch.layer_norm; torch.layer_norm = lambda *a, **k: before(*a, **k) * 3",
        "after": "torch.layer_norm = before",
    },
    "Gelu": {
        "before": "library = torch.library.Library('aten', 'IMPL')\n"
        "library.impl('gelu', lambda x, approximate='none': torch.relu(x), 'AutogradCPU', allow_override=True)\n"
        "library.impl('gelu', lambda x, approximate='none': torch.relu(x), 'CPU', allow_override=True)",
        "after": "library._destroy()",
    },
    "Enumeration": {"before": "model.Mode.A._value_ = 3.0"},
    "Tables": {"before": "model.Tables.table['b'][0] = 5.0"},
    "Pi": {"before": "import math; before = math.pi; math.pi = 3.0", "after": "math.pi = before"},
    "Helped": {"before": "model.helper.FACTOR = 7.0", "after": "model.helper.FACTOR = 2.0"},
    "Twice": {"before": "net.other.weight = net.out.weight"},
    "Einsum": {
        "before": "torch.backends.mha.set_fastpath_enabled(False)",
        "after": "torch.backends.mha.set_fastpath_enabled(True)",
    },
    **{name: {"before": "model.TABLE['k'] = 5.0"} for name in ("Item", "Get", "Contained")},
    "Attribute": {"before": "net.out.extra = 3.0"},
    **{
        name: {"before": "model.helper.EXTRA = 3.0", "after": "del model.helper.EXTRA"}
        for name in ("OfModule", "Caught")
    },
    "Flag": {"before": "model.flagged.flag = 3.0"},
    "Slots": {"before": "model.THING.a = 3.0"},
    "Precision": {
        "before": "torch.set_float32_matmul_precision('high')",
        "after": "torch.set_float32_matmul_precision('highest')",
    },
    "Filled": {"before": "torch.set_default_dtype(torch.float64)", "after": "torch.set_default_dtype(torch.float32)"},
}
EDITS = (
    ("B = 4.0", "B = 4.0\n    C = 5.0"),
    ("k=2.5", "k=4.5"),
    ("@times(3.5)", "@times(5.5)"),
    ('"a": (1.5, 2.0)', '"a": (2.5, 2.0)'),
    ("Marked.register(Plain)", ""),
)
EDITED = ("Enumeration", "Default", "Inherited", "Decorated", "Tables", "Registered")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder in which one process has compiled all of the networks."""
    place = Place(tmp_path_factory.mktemp("unguarded"), MODEL)
    place.write(HELPER, "helper")
    first = place.runs([_one(name) for name in (*KEPT, *NOT_KEPT, *OTHERS)])
    assert all(f["traced"] for f in first)
    return place


def _one(name: str, **more: Any) -> dict[str, Any]:
    return {"net": name, "lengths": [6, 6], **more}


def test_a_second_process_uses_what_can_be_kept_and_traces_the_rest(known: Place) -> None:
    found = known.runs([_one(name) for name in (*KEPT, *NOT_KEPT)])
    assert {n: f["traced"] for n, f in zip((*KEPT, *NOT_KEPT), found, strict=True)} == {
        **dict.fromkeys(KEPT, 0),
        **dict.fromkeys(NOT_KEPT, 1),
    }


def test_with_another_state_of_the_program_the_numbers_are_those_of_eager_mode(known: Place) -> None:
    found = known.runs([_one(name, **state) for name, state in STATE.items()])
    assert all(f["traced"] for n, f in zip(STATE, found, strict=True) if n not in OTHERS)


def test_with_edited_classes_the_numbers_are_those_of_eager_mode(known: Place) -> None:
    text = MODEL
    for old, new in EDITS:
        assert old in text
        text = text.replace(old, new)
    known.write(text)
    try:
        found = known.runs([_one(name) for name in EDITED])
    finally:
        known.write(MODEL)
    assert [f["traced"] for f in found] == [1] * len(EDITED)


def test_the_derivative_of_a_function_depends_on_what_it_reads(tmp_path: Path) -> None:
    place = Place(tmp_path, MODEL)
    place.write(HELPER, "helper")
    one = _one("Derivative", train=True)
    assert place.run(**one)["traced"] == 1
    again, other = place.runs([one, {**one, "before": "model.GRADIENT = 7.0"}])
    assert (again["traced"], other["traced"]) == (0, 1)


def test_graphs_that_are_the_same_in_spite_of_it_give_the_numbers_of_eager_mode(known: Place) -> None:
    every = (*KEPT, *NOT_KEPT, *OTHERS)
    first = known.runs([_one(name, keep="graphs") for name in every])
    again = known.runs([_one(name, keep="graphs") for name in every])
    assert all(f["ahead"] for f in first)
    left = {"Allowed", "NonStrict", "Operator"}  # code that no graph shows
    assert {n for n, f in zip(every, again, strict=True) if f["ahead"]} == left
    known.runs([_one(name, keep="graphs", **state) for name, state in STATE.items()])
