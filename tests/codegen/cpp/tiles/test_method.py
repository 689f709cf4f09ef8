"""Tables of methods: what is offered and in which order, what order decides, and that every table covers every problem."""

import pytest

from dcir.codegen.choices import Choice, deciding
from dcir.codegen.cpp.tiles.conv.methods import DATA, DENSE_WEIGHTS, FORWARD, WEIGHTS
from dcir.codegen.cpp.tiles.emit import Draft
from dcir.codegen.cpp.tiles.gemm.form import normal_form
from dcir.codegen.cpp.tiles.gemm.gemm import PRODUCTS, _turns
from dcir.codegen.cpp.tiles.gemm.packing import PANELS
from dcir.codegen.cpp.tiles.method import Asked, Method, Methods, choose
from dcir.ir.refusal import Refusal
from dcir.isa import ISAS
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike

ISA = ISAS["avx512"]
UNIT = Asked("unit", "yes", "no")


def draft(name, problem, isa, threads):
    return Draft(name, "f32", "", ())


def at_least(least):
    """Refuses numbers below ``least``."""
    return lambda problem, isa, threads: Refusal(f"below {least}") if problem < least else None


RANKED = Methods(
    (
        Method("far", draft, estimate=lambda p, isa: 3.0),
        Method("large", draft, refusal=at_least(10), estimate=lambda p, isa: 1.0),
        Method("near", draft, estimate=lambda p, isa: 2.0),
        Method("odd", draft, estimate=lambda p, isa: 0.0 if p % 2 else 4.0, offered=lambda p: p > 5),
    ),
    decision="way",
)
ORDERED = Methods(
    (
        Method("first", draft, refusal=at_least(20), asked=UNIT),
        Method("second", draft, refusal=at_least(10), asked=UNIT),
        Method("third", draft, refusal=at_least(5), asked=Asked("other", "yes", "no")),
        Method("rest", draft),
    )
)


def taken(table, problem, *values, turns=None):
    with deciding(Choice(values)) as made:
        method, form = choose(table, turns or [("", problem)], ISA, 1)
    return method.name, form, made.offered


@pytest.mark.parametrize(
    ("problem", "offered"),
    [
        (2, ("near", "far")),  # the least estimate, then the table's order
        (3, ("odd", "far", "near")),  # one that is not offered is still the model's choice
        (8, ("near", "far", "odd")),
        (12, ("large", "far", "near", "odd")),
    ],
)
def test_ranked(problem, offered):
    assert taken(RANKED, problem) == (offered[0], problem, {"way": offered})
    assert taken(RANKED, problem, ("way", offered[-1]))[0] == offered[-1]
    assert taken(RANKED, problem, ("way", "unheard of"))[0] == offered[0]


def test_forms_of_a_problem_are_offered_in_turn():
    turns = [(" turned", 12), ("", 2)]
    names = ("large turned", "far turned", "near turned", "odd turned", "near", "far")
    assert taken(RANKED, 2, turns=turns) == ("large", 12, {"way": names})
    assert taken(RANKED, 2, ("way", "far"), turns=turns)[:2] == ("far", 2)


@pytest.mark.parametrize(
    ("problem", "values", "name", "asked"),
    [
        (30, (), "first", ["unit"]),
        (15, (), "second", ["unit"]),
        (30, (("unit", "no"),), "third", ["unit", "other"]),  # and no to the second, which is not asked again
        (30, (("unit", "no"), ("other", "no")), "rest", ["unit", "other"]),
        (7, (), "third", ["other"]),
        (1, (), "rest", []),
    ],
)
def test_order_decides(problem, values, name, asked):
    got, _, offered = taken(ORDERED, problem, *values)
    assert got == name
    assert list(offered) == asked
    assert all(v == ("yes", "no") for v in offered.values())


@pytest.mark.parametrize("table", [PANELS, FORWARD, DATA, WEIGHTS, DENSE_WEIGHTS])
def test_the_last_method_refuses_nothing(table):
    last = table.entries[-1]
    assert table.decision == ""
    assert last.asked is None
    assert last.refusal(None, ISA, 1) is None


@pytest.mark.parametrize("table", [PRODUCTS, PANELS, FORWARD, DATA, WEIGHTS, DENSE_WEIGHTS])
def test_names_and_questions(table):
    if table.decision:
        assert len({m.name for m in table.entries}) == len(table.entries)  # they are what a tuner's database holds
    assert len(set(table.entries)) == len(table.entries)


def product(m, n, k, **more):
    return normal_form(ContractionSpec(alike("f32"), (), m, n, k, (k, 1), (n, 1), (n, 1), **more))


@pytest.mark.parametrize(
    ("form", "isa", "refused"),
    [
        (product(64, 64, 64), "avx512", {"matrix": "the processor has no matrix unit", "dot": "more than 16 rows"}),
        (product(8, 64, 60), "avx512", {"matrix": "the processor has no matrix unit", "dot": "too few steps"}),
        (product(2, 64, 64), "amx", {"matrix": "multiply-adds are faster", "dot": "B is not contiguous along k"}),
        (product(64, 64, 64, rounds="bf16"), "amx", dict.fromkeys(("matrix", "dot", "tiles"), "numbers are rounded")),
    ],
)
def test_reasons(form, isa, refused):
    found = {m.name: m.refusal(form, ISAS[isa], 1) for m in PRODUCTS.entries}
    assert {name for name, reason in found.items() if reason} == set(refused)
    for name, start in refused.items():
        assert found[name].reason.startswith(start), name


def test_a_rounded_operand_is_not_swapped():
    assert [behind for behind, _ in _turns(product(64, 64, 64, rounds="bf16"), ISA)] == [""]
    assert [behind for behind, _ in _turns(product(64, 64, 64), ISA)] == ["", " swapped"]
    assert [behind for behind, _ in _turns(product(64, 2, 64), ISA)] == [" swapped", ""]
