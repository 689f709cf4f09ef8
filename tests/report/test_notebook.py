"""Notebooks show tables: well-formed, without scripts, and names from models are text whatever they say."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import dcir
from dcir.driver.record import GraphRecord
from dcir.report.advice import Advice
from dcir.report.explain import Report
from dcir.report.markup import folded, line, lines, picture, shown, table
from dcir.report.roofline_axes import escaped
from dcir.report.tuning import Tuning, TuningRow
from tests.report import test_advice, test_roofline, test_scaling, test_scaling_check, test_thread_plan
from tests.report.test_roofline import NASTY

ALLOWED = {
    "div": {"style"}, "p": set(), "strong": set(), "ul": set(), "li": set(), "table": {"style"}, "thead": set(), "tbody": set(),
    "tr": set(), "th": {"style"}, "td": {"style"}, "details": set(), "summary": set(), "pre": {"style"},
    "img": {"alt", "style", "src"},
}  # fmt: skip


def read(html):
    """A fragment as a tree of the elements that may be in it, and its text."""
    tree = ElementTree.fromstring(html)
    for element in tree.iter():
        assert set(element.attrib) <= ALLOWED[element.tag], ElementTree.tostring(element)[:200]
        assert element.get("src", "data:image/svg+xml;base64,").startswith("data:image/svg+xml;base64,")
        assert "url(" not in element.get("style", "") and "color:#" not in element.get("style", "")
    return tree, "\n".join(tree.itertext())


def tuned():
    row = TuningRow(NASTY, 2, 2e-3, 1e-3, 0.01, 4, "rows 8")
    return Tuning([row, replace(row, what="other", seconds=2e-3, note=NASTY)], 0, 1.0, 2)


def report():
    record = GraphRecord(
        "inference", operators=7, kernels=3, calls=4, fallbacks=[(NASTY, NASTY)], seconds={"passes": 0.5}
    )
    return Report([record], [(NASTY, "net.py:1")])


def advised():
    piece = replace(test_advice.BATCH, what=NASTY, evidence=NASTY, python=NASTY)
    return Advice(test_roofline.roofline(NASTY, NASTY), test_advice.NOW, test_advice.EAGER, (piece,), test_advice.ALL)


def planned():
    found = test_thread_plan.report(0.0)
    found.model, found.notes = NASTY, [NASTY]
    return found


SHOWN = {
    "report": report, "profile": lambda: test_roofline.profile(origin=NASTY), "tuning": tuned,
    "roofline": lambda: test_roofline.roofline(NASTY, NASTY), "advice": advised, "plan": planned,
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_names_are_text(name):
    _, text = read(SHOWN[name]()._repr_html_())
    # What XML cannot say is replaced; all else is there as it was written.
    assert "<img src=x onerror=alert(1)>&\"'" in text


def test_the_parts_of_a_page():
    html = shown(
        NASTY, line(NASTY), lines([NASTY]), lines([]), table([NASTY, "n"], [(None, NASTY)]), folded(NASTY, NASTY)
    )
    tree, text = read(html)
    assert text.count("<img src=x") == 7 and "\n-\n" in text
    assert [c.get("style").rpartition(":")[2] for c in tree.iter("td")] == ["right", "left"]
    img = ElementTree.fromstring(picture("<svg xmlns='http://www.w3.org/2000/svg'/>", NASTY))
    assert img.get("alt").startswith("<img src=x") and escaped(NASTY).startswith("&lt;img")


def test_a_report_has_a_row_for_every_graph():
    tree, text = read(report()._repr_html_())
    assert [c.text for c in tree.find(".//tbody/tr")][:4] == ["inference", "7", "3", "4"]
    assert f"through torch: {NASTY[:20]}" in text and "graph break" in text and "graph 0 (inference)" in text
    assert "nothing compiled yet" in read(Report([])._repr_html_())[1]


def test_a_tuning_without_rows_says_why():
    assert "nothing to tune" in read(Tuning()._repr_html_())[1]
    tree, text = read(tuned()._repr_html_())
    assert len(tree.findall(".//tbody/tr")) == 2 and "+100.0%" in text


def test_predictions_have_a_column_for_each_way():
    found = test_scaling.scaling()
    tree, _ = read(found._repr_html_())
    assert len(tree.findall(".//tbody/tr")) == len(found.nodes)


def test_checked_predictions_have_a_row_for_each_way():
    found = test_scaling_check.check(((10.0,), (40.0,)), notes=[NASTY])
    tree, text = read(found._repr_html_())
    assert len(tree.findall(".//tbody/tr")) == 1 and "0.80" in text and "<img src=x" in text


def test_a_module_and_its_profile_are_shown():
    class Odd(nn.Module):
        def forward(self, x):
            return x.relu() * 2

    Odd.__name__ = Odd.__qualname__ = "<script>alert(1)</script>"
    torch._dynamo.reset()
    fast = dcir.optimize(Odd())
    assert "nothing compiled yet" in read(fast.dcir._repr_html_())[1]
    with torch.no_grad():
        fast(torch.randn(4, 4))
        _, text = read(fast.dcir._repr_html_())
        assert "<script>alert(1)</script>, compiled by dcir at level 4" in text
        tree, text = read(fast.dcir.profile(torch.randn(4, 4), seconds=0.01)._repr_html_())
    assert "Profile of inference" in text and tree.findall(".//tbody/tr")
