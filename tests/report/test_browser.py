"""The page in a real browser: it opens, draws, works by mouse and keys, fits phone and paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.conftest import best_of, key_of
from tests.report.test_page import contents_of
from tunekit.report import render
from tunekit.report.contents import Entry
from tunekit.report.page import PAGE_ROWS

pytestmark = pytest.mark.usefixtures("drawing")

DRAWN = "document.documentElement.dataset.drawn === 'yes'"


@pytest.fixture
def opened(chromium, tmp_path):
    """Return a function that opens contents as a page, and fails if the page complains or loads."""
    contexts, heard = [], []

    def show(contents, **view):
        file = tmp_path / "report.html"
        file.write_text(render(contents), encoding="utf-8")
        context = chromium.new_context(**view)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("request", lambda request: heard.append(request.url))
        page.goto(file.as_uri())
        if contents.entries:
            page.wait_for_function(DRAWN)
        return page

    yield show
    for context in contexts:
        context.close()
    assert [text for text in heard if not text.startswith(("file:", "data:"))] == []


def many(contents, keys):
    """Give contents of so many keys without storing them: all like the first, but for the key."""
    (first,) = contents.entries
    made = (
        Entry(n + 1, key_of(n), replace(first.best, key=key_of(n)), first.grade, first.findings)
        for n in range(keys)
    )
    return replace(contents, entries=tuple(made))


def test_an_empty_cache_opens(opened, filled):
    page = opened(contents_of(filled(0)))
    assert "empty" in page.inner_text("#empty")


def test_one_key_is_drawn_whole(opened, filled):
    page = opened(contents_of(filled(1)))
    for name in (
        "speedups",
        "roofline-1",
        "learning",
        "tiles",
        "pipeline",
        "importance",
        "failures",
    ):
        assert page.locator(f"#{name} svg").count() == 1, name
    assert page.locator("#detail svg").count() == 6
    best = best_of(0)
    row = page.locator("#numbers tbody tr").first.inner_text()
    assert f"{best.measurement.median_us:.3f}" in row
    assert f"{best.vendor.median_us:.3f}" in row
    assert page.inner_text("#fact-mean") == f"{best.ratio:.3f}"
    facts = page.inner_text("#detail dl")
    assert f"{best.measurement.median_us:.3f} us (95 %: " in facts
    assert str(best.config) in facts
    # the chart itself, as a screen reader is told it
    told = page.locator("#speedups [aria-roledescription='point']").get_attribute("aria-label")
    assert f"{best.ratio:.3f}"[:4] in told


def test_5000_keys_are_drawn_a_page_at_a_time_and_any_is_found(opened, filled):
    page = opened(many(contents_of(filled(1)), 5000))
    visible = page.locator("#numbers tbody tr:visible")
    assert visible.count() == PAGE_ROWS
    assert page.inner_text("#place") == "5000 problems, page 1 of 100"
    assert page.locator("#previous").is_disabled()

    page.click("#next")
    assert str(key_of(PAGE_ROWS).problem) in visible.first.inner_text()

    name = str(key_of(4321).problem)
    page.fill("#find", name)
    assert page.inner_text("#place") == "1 problem"
    assert page.locator("#next").is_hidden()
    page.locator("#numbers a:visible").click()
    page.wait_for_function(f"document.querySelector('#detail h3').textContent === '{name}'")
    assert page.url.endswith("#key-4322")
    assert page.input_value("#which") == "4322"

    page.fill("#find", "")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#numbers tbody tr").count() == 5000
    page.emulate_media(media="print")
    assert page.locator("#numbers tbody tr").last.is_visible()


def test_every_link_of_the_page_leads_somewhere(opened, filled):
    page = opened(contents_of(filled(2)))
    assert page.inner_text("#speedups-shared") == ", all of them bfloat16 nt"
    links = page.eval_on_selector_all("a", "all => all.map(a => a.getAttribute('href'))")
    named = {link[1:] for link in links if not link.startswith("#key-")}
    assert named == {"speedup", "roofline", "problems", "one", "search", "failed", "environment"}
    assert all(page.locator(f"#{name}").count() == 1 for name in named)
    assert {link for link in links if link.startswith("#key-")} == {"#key-1", "#key-2"}


def test_keys_alone_are_enough(opened, filled):
    page = opened(contents_of(filled(2)))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"find", "which", "permalink", "SUMMARY", "DIV"} <= reached


def test_every_chart_has_a_text_in_its_place(opened, filled):
    page = opened(contents_of(filled(1)))
    charts = page.locator(".chart")
    for number in range(charts.count()):
        assert len(charts.nth(number).get_attribute("aria-label")) > 20
    page.locator("#detail summary").first.click()
    assert page.locator("#detail details").first.locator("tbody tr").count() >= 1


def test_a_phone_shows_it_without_scrolling_aside(opened, filled):
    page = opened(contents_of(filled(2)), viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    widths = page.eval_on_selector_all(
        ".chart svg", "all => all.map(svg => svg.getBoundingClientRect().right)"
    )
    assert max(widths) <= 360


def test_ink_and_paper_differ_enough(opened, filled):
    page = opened(contents_of(filled(1)))
    pairs = page.eval_on_selector_all(
        "p, a, th, td, dt, dd, figcaption, button, summary",
        "all => all.map(e => getComputedStyle(e).color)",
    )
    assert pairs
    # WCAG AA asks 4.5 : 1; the page is white, its darkest surface #f3f3f3
    disabled = {"rgb(118, 118, 118)"}
    for colour in set(pairs) - disabled:
        channels = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        ink = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert (0.896 + 0.05) / (ink + 0.05) >= 4.5, colour


def test_on_paper_the_whole_table_is_there(opened, filled):
    page = opened(many(contents_of(filled(1)), PAGE_ROWS + 5))
    page.emulate_media(media="print")
    assert page.locator("#numbers tbody tr:visible").count() == PAGE_ROWS + 5
    assert page.pdf()[:5] == b"%PDF-"


def test_without_scripts_the_numbers_are_there(opened, filled, chromium, tmp_path):
    file = tmp_path / "plain.html"
    file.write_text(render(many(contents_of(filled(1)), PAGE_ROWS + 5)), encoding="utf-8")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator("#numbers tbody tr:visible").count() == PAGE_ROWS + 5
    assert "Charts need JavaScript" in page.inner_text("main")
    context.close()
