"""A session keeps the records of its graphs and tells of them."""

import logging

from dcir.driver.record import GraphRecord
from dcir.driver.session import Session
from dcir.options import Options


def test_the_first_graph_is_news_and_the_others_are_detail(caplog):
    session = Session(Options.make(), next_step="look()")
    with caplog.at_level(logging.DEBUG, "dcir"):
        for kind in ("forward", "backward"):
            session.add(GraphRecord(kind))
    assert [g.kind for g in session.graphs] == ["forward", "backward"]
    assert [r.levelno for r in caplog.records] == [logging.INFO, logging.DEBUG]
    assert all(r.getMessage().endswith("next: look()") for r in caplog.records)


def test_steps_are_told_by_name():
    told = []
    assert Session(Options.make()).step("passes") is None
    step = Session(Options.make(), progress=lambda *row: told.append(row)).step("passes")
    assert step is not None
    step(1, 3)
    assert told == [("passes", 1, 3)]


def test_what_runs_uncompiled_is_an_error_where_that_is_asked_for():
    for strict in (False, True):
        session = Session(Options.make(strict=strict))
        assert session.coverage is session.coverage and session.options.strict is strict
