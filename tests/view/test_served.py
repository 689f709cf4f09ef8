"""The page with a server: the token, the policy of the real one, and variants that are predicted, measured, undone and refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.view import browser as driver
from tests.view import synthetic

pytest.importorskip("playwright.sync_api", reason="playwright, which drives a browser, is not installed")
pytestmark = pytest.mark.skipif(
    driver.BROWSER is None, reason="no Chromium is installed (Debian: chromium-headless-shell)"
)


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with driver.browser() as found:
        yield found


def live() -> dict[str, Any]:
    """A session whose server predicts and measures, and that has no texts."""
    return synthetic.mlp() | {"live": {"predict": True, "measure": True}, "texts": {}}


class Variants(driver.Server):
    """Predicts that fewer passes move more bytes; refuses level 0; measures when it is told to."""

    def __init__(self) -> None:
        super().__init__(live(), self.answered)
        self.bodies: list[Any] = []

    def answered(self, path: str, body: Any) -> tuple[int, Any]:
        self.bodies.append((path, body))
        if path.endswith("/measure"):
            return 202, {"job": 1}
        if body["delta"]["level"] == 0:
            details = {"kind": "OptionError", "message": "level 0 has no passes", "where": "level", "try": "level 1"}
            return 400, {"error": "level 0 has no passes", "details": details}
        made = self.variants[0] | {
            "id": len(self.variants),
            "parent": body["parent"],
            "delta": body["delta"],
            "script": "x = <b>1</b>",
        }
        made["predicted"] = made["predicted"] | {"bytes": 2_400_000}
        self.variants.append(made)
        return 200, made


def test_the_token_leaves_the_address_and_goes_with_every_question(started: Any) -> None:
    server = driver.Server(live())
    with server.running() as address, driver.opened(started, address) as (page, seen):
        assert "gemm" in page.inner_text("main")
        assert driver.TOKEN not in page.url and page.url.endswith("#/summary")
        assert ("GET", "/api/session") in server.asked
        page.reload()
        page.wait_for_selector("main table")
        assert seen.errors == [] and seen.requests == []


def test_without_the_token_the_page_says_what_to_do(started: Any) -> None:
    with driver.Server(live()).running() as address, driver.opened(started, address.partition("#")[0]) as (page, _):
        text = page.inner_text("main")
        assert "the token is missing" in text and "dcir view" in text


def test_nothing_of_the_page_needs_more_than_the_policy_allows(started: Any) -> None:
    with driver.Server(live()).running() as address, driver.opened(started, address) as (page, seen):
        for view in (
            "graph/0?op=9",
            "graph/0?view=modules",
            "passes/0?pass=fuse-epilogues",
            "roofline",
            "whatif",
            "memory/1",
            "compare",
        ):
            driver.go(page, f"#/{view}")
            assert len(page.inner_text("main")) > 50
        assert seen.errors == [] and seen.requests == []


def test_a_text_that_the_server_does_not_have_is_said(started: Any) -> None:
    with driver.Server(live()).running() as address, driver.opened(started, address) as (page, _):
        driver.go(page, "#/kernel/0/k_gemm_relu")
        page.wait_for_selector("text=there is nothing here")


def test_a_pass_is_switched_off_predicted_measured_and_undone(started: Any) -> None:
    server = Variants()
    with server.running() as address, driver.opened(started, address) as (page, seen):
        driver.go(page, "#/whatif")
        assert page.is_disabled("button:text-is('Predict')")
        page.uncheck("label:has-text('fuse-epilogues') >> nth=0")
        assert "Not predicted yet: without fuse-epilogues" in page.inner_text("main")
        page.click("button:text-is('Predict')")
        page.wait_for_selector("button[aria-pressed=true]:has-text('2: without fuse-epilogues')")
        assert server.bodies[0] == ("/api/variants", {"parent": 0, "delta": server.variants[2]["delta"]})
        assert server.variants[2]["delta"] == {
            "disable": ["fuse-epilogues"], "fields": {}, "skip": [], "level": None, "threads": None, "batch": None,
        }  # fmt: skip
        assert "2.29 MiB (▲ 100 %)" in page.inner_text("tr.chosen")
        assert page.inner_text("pre") == "x = <b>1</b>"

        page.click("button:text-is('Measure')")
        page.wait_for_selector("text=measuring")
        server.tell({"kind": "progress", "job": 1, "variant": 2, "step": "kernels", "done": 3, "total": 10})
        page.wait_for_selector("text=variant 2: kernels 3 of 10")
        server.variants[2]["measured"] = server.variants[1]["measured"] | {"gain": 0.55}
        server.tell({"kind": "done", "job": 1, "variant": 2})
        page.wait_for_selector("tr.chosen:has-text('0.55×')")

        page.click("button:has-text('Undo (back to variant 0)')")
        assert "Variant 0: as the session is" in page.inner_text("main")
        assert page.is_checked("label:has-text('fuse-epilogues') >> nth=0")
        assert seen.errors == []


def test_options_places_level_threads_and_batch_become_a_delta(started: Any) -> None:
    server = Variants()
    with server.running() as address, driver.opened(started, address) as (page, _):
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
        assert server.bodies[0][1]["delta"] == {
            "disable": [], "fields": {"fuse-epilogues": {"most_operands": 4, "reductions": False}}, "skip": ["fuse-epilogues(op2, op3)"],
            "level": 2, "threads": 1, "batch": 16,
        }  # fmt: skip


def test_a_refusal_is_shown_with_what_to_try(started: Any) -> None:
    server = Variants()
    with server.running() as address, driver.opened(started, address) as (page, _):
        driver.go(page, "#/whatif")
        page.select_option("label:has-text('level') select", "0")
        page.click("button:text-is('Predict')")
        page.wait_for_selector("[role=alert]")
        text = page.inner_text("[role=alert]")
        assert "level 0 has no passes" in text and "try: level 1" in text
        server.tell(
            {
                "kind": "failed",
                "job": 1,
                "variant": 1,
                "error": "the compiler stopped",
                "details": {"try": "another one"},
            }
        )
        page.wait_for_selector("text=the compiler stopped")


def test_a_session_that_is_only_read_offers_no_changes(started: Any) -> None:
    record = synthetic.mlp()
    with driver.Server(record).running() as address, driver.opened(started, address) as (page, _):
        driver.go(page, "#/whatif")
        assert page.is_disabled("label:has-text('fuse-epilogues') input >> nth=0")
        assert "can be read, not changed" in page.inner_text("main")
        assert page.query_selector("button:text-is('Predict')") is None
