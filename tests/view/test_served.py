"""The page as its server hands it out: token and policy, variants that are predicted, measured, undone and refused, files to be saved."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright, which drives a browser, is not installed")
pytest.importorskip("starlette", reason="the packages of the extra view are not installed")
pytest.importorskip("uvicorn", reason="the packages of the extra view are not installed")

from dcir.errors import OptionError
from dcir.view.server import serving
from tests.view import browser as driver
from tests.view import synthetic

pytestmark = pytest.mark.skipif(
    driver.BROWSER is None, reason="no Chromium is installed (Debian: chromium-headless-shell)"
)


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with driver.browser() as found:
        yield found


class Workshop:
    """Predicts that every change moves more bytes; refuses level 0; measures for as long as it is not told to go on."""

    predicts = measures = True

    def __init__(self, session: dict[str, Any]) -> None:
        self.variants: list[dict[str, Any]] = session["variants"]
        self.fails = False
        self.go_on = threading.Event()

    def predict(self, parent: Any, delta: Any) -> dict[str, Any]:
        if delta["level"] == 0:
            raise OptionError("level 0 has no passes", where="level", hint="level 1")
        made = self.variants[0] | {"id": len(self.variants), "parent": parent, "delta": delta, "script": "x = <b>1</b>"}
        made["predicted"] = made["predicted"] | {"bytes": 2_400_000}
        self.variants.append(made)
        return made

    def measure(self, number: int, progress: Any = None) -> dict[str, Any]:
        progress("kernels", 3, 10)
        self.go_on.wait(30)
        if self.fails:
            raise OptionError("the compiler stopped", hint="another one")
        self.variants[number]["measured"] = self.variants[1]["measured"] | {"gain": 0.55}
        return self.variants[number]

    def variant(self, number: Any) -> dict[str, Any]:
        return self.variants[number]

    def export(self, form: str) -> bytes | None:
        return b'{"label": "mlp"}' if form == "model-explorer" else None


@contextmanager
def looked_at(started: Any, *, live: bool = True, known: bool = True) -> Iterator[tuple[Any, driver.Seen, Workshop]]:
    """The page of an MLP as the server hands it out: with a workshop or without, with the token or without."""
    record = synthetic.mlp()
    workshop = Workshop(record)
    with serving([record], workshop if live else None) as server:
        address = server.address if known else server.address.partition("#")[0]
        with driver.opened(started, address) as (page, seen):
            yield page, seen, workshop
            workshop.go_on.set()


def test_the_token_leaves_the_address_and_goes_with_every_question(started: Any) -> None:
    with looked_at(started) as (page, seen, _):
        assert "gemm" in page.inner_text("main")
        assert "token" not in page.url and page.url.endswith("#/summary")
        page.reload()
        page.wait_for_selector("main table")
        assert seen.errors == [] and seen.requests == []


def test_without_the_token_the_page_says_what_to_do(started: Any) -> None:
    with looked_at(started, known=False) as (page, _, _):
        text = page.inner_text("main")
        assert "cannot be read" in text and "token" in text and "dcir view" in text


def test_nothing_of_the_page_needs_more_than_the_policy_allows(started: Any) -> None:
    views = ("graph/0?op=9", "graph/0?view=modules", "passes/0?pass=fuse-epilogues", "roofline", "whatif", "memory/1")
    with looked_at(started) as (page, seen, _):
        for view in views:
            driver.go(page, f"#/{view}")
            assert len(page.inner_text("main")) > 150
        assert seen.errors == [] and seen.requests == []


def test_code_is_asked_for_when_it_is_looked_at(started: Any) -> None:
    with looked_at(started) as (page, seen, _):
        driver.go(page, "#/kernel/0/k_gemm_relu")
        page.wait_for_selector(".code")
        assert "void k_gemm_relu" in page.inner_text(".code")
        driver.go(page, "#/kernel/0")
        page.click("text=the driver, which calls them")
        page.wait_for_selector(".code >> text=driver of forward")
        assert seen.errors == []


@pytest.mark.parametrize(
    ("form", "file", "text"),
    [("model-explorer", "mlp.model-explorer.json", '"label": "mlp"'), ("json", "mlp.json", '"dcir-session/1"')],
)
def test_a_session_is_saved_for_other_viewers(started: Any, form: str, file: str, text: str) -> None:
    with looked_at(started) as (page, seen, _):
        with page.expect_download() as found:
            page.click(f"footer button:text-is('{form}')")
        assert found.value.suggested_filename == file
        assert text in Path(found.value.path()).read_text()
        assert seen.errors == []


def test_what_cannot_be_saved_is_said(started: Any) -> None:
    with looked_at(started) as (page, _, _):
        page.click("footer button:text-is('sdfg')")
        page.wait_for_selector("footer >> text=this session has nothing for sdfg")


def test_a_pass_is_switched_off_predicted_measured_and_undone(started: Any) -> None:
    with looked_at(started) as (page, seen, workshop):
        driver.go(page, "#/whatif")
        assert page.is_disabled("button:text-is('Predict')")
        page.uncheck("label:has-text('fuse-epilogues') >> nth=0")
        assert "Not predicted yet: without fuse-epilogues" in page.inner_text("main")
        page.click("button:text-is('Predict')")
        page.wait_for_selector("button[aria-pressed=true]:has-text('2: without fuse-epilogues')")
        assert workshop.variants[2]["parent"] == 0
        assert workshop.variants[2]["delta"] == {
            "disable": ["fuse-epilogues"], "fields": {}, "skip": [], "level": None, "threads": None, "batch": None,
        }  # fmt: skip
        assert "2.29 MiB (▲ 100 %)" in page.inner_text("tr.chosen")
        assert page.inner_text("pre") == "x = <b>1</b>"

        page.click("button:text-is('Measure')")
        page.wait_for_selector("text=variant 2: kernels 3 of 10")
        workshop.go_on.set()
        page.wait_for_selector("tr.chosen:has-text('0.55×')")

        page.click("button:has-text('Undo (back to variant 0)')")
        assert "Variant 0: as the session is" in page.inner_text("main")
        assert page.is_checked("label:has-text('fuse-epilogues') >> nth=0")
        assert seen.errors == []


def test_options_places_level_threads_and_batch_become_a_delta(started: Any) -> None:
    with looked_at(started) as (page, _, workshop):
        driver.go(page, "#/whatif")
        page.click("summary:has-text('2 options')")
        page.fill("label:has-text('most_operands') input", "4")
        page.uncheck("label:has-text('reductions')")
        page.uncheck("label.site >> nth=1")
        page.select_option("label:has-text('level') select", "2")
        page.fill("label:has-text('threads') input", "1")
        page.fill("label:has-text('batch') input", "16")
        page.click("button:text-is('Predict')")
        page.wait_for_selector("tr.chosen:has-text('2: ')")
        assert workshop.variants[2]["delta"] == {
            "disable": [], "fields": {"fuse-epilogues": {"most_operands": 4, "reductions": False}}, "skip": ["fuse-epilogues(op2, op3)"],
            "level": 2, "threads": 1, "batch": 16,
        }  # fmt: skip


def test_a_pass_and_a_place_lead_to_what_if(started: Any) -> None:
    with looked_at(started) as (page, _, _):
        driver.go(page, "#/passes/0?pass=fuse-epilogues")
        page.click("text=What if it did not run?")
        page.wait_for_selector("text=Not predicted yet: without fuse-epilogues")
        driver.go(page, "#/passes/0?pass=fuse-epilogues")
        page.click("text=what if not? >> nth=1")
        page.wait_for_selector("text=Not predicted yet: 1 place off")
        assert not page.is_checked("label.site:has-text('op2, op3') input")


def test_a_refusal_is_shown_with_what_to_try(started: Any) -> None:
    with looked_at(started) as (page, _, workshop):
        driver.go(page, "#/whatif")
        page.select_option("label:has-text('level') select", "0")
        page.click("button:text-is('Predict')")
        page.wait_for_selector("[role=alert]")
        text = page.inner_text("[role=alert]")
        assert "level 0 has no passes" in text and "try: level 1" in text
        page.click("button:text-is('Take changes back')")
        workshop.fails = True
        workshop.go_on.set()
        page.click("button:text-is('Measure')")
        page.wait_for_selector("text=the compiler stopped")
        assert "try: another one" in page.inner_text("[role=alert]")


def test_a_session_that_is_only_read_offers_no_changes(started: Any) -> None:
    with looked_at(started, live=False) as (page, _, _):
        driver.go(page, "#/whatif")
        assert page.is_disabled("label:has-text('fuse-epilogues') input >> nth=0")
        assert "can be read, not changed" in page.inner_text("main")
        assert page.query_selector("button:text-is('Predict')") is None
