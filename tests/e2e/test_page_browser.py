"""The page's charts in headless Chromium: no refused style, readable at 390 pixels, colours of the reader's ground."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.report import charts
from harness.report.document import Chart, Document, Remark, Section, Table
from harness.report.page import page
from tests.e2e.browser import Browser, find_chromium
from tests.report import reference_frames as reference

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_chromium() is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
    ),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with curves, bars, lanes and a timeline of a reference run."""
    results = reference.results("sync_k")
    table = Table("Numbers", ("arm", *"abcdefghijkl"), (("k1", *["1.234 [1.2, 1.3]"] * 12),))
    stages, lanes = reference.stage_frame(results), reference.lane_frame(results)
    rewards, spans = reference.reward_frame(results), reference.timeline_frames(results, range(10, 16))
    shown = (
        Remark("x", "k8 is slower.", "finding", "time"),
        Chart("stages", "Stages.", "By stage.", lambda: charts.bars(*stages, x_label="seconds per step"), table),
        Chart("lanes", "Lanes.", "By lane.", lambda: charts.bars(lanes, x_label="percent", limit=100)),
        Chart("reward", "Reward.", "It rose.", lambda: charts.curves(rewards, reference.REWARD)),
        Chart("timeline", "Timeline.", "Six steps.", lambda: charts.timeline(*spans)),
    )
    answer = (Remark("verdict", "k1 is faster than k8.", "answer", "answer"),)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page([Document("sync_k", "Reference runs.", None, answer, (Section("all", "All", shown),))]))
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    executable = find_chromium()
    assert executable is not None
    with Browser(executable, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_nothing_is_refused_nothing_is_asked_for_and_nothing_scrolls_sideways(
    browser: Browser, written: Path, width: int
) -> None:
    browser.screen(width)
    browser.open(written)
    assert browser.value("document.documentElement.scrollWidth") <= width
    sent = [event for event in browser.events if event.get("method") == "Network.requestWillBeSent"]
    assert [event["params"]["request"]["url"] for event in sent] == [written.resolve().as_uri()]
    assert [
        event for event in browser.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")
    ] == []


def test_a_refused_style_would_be_seen(browser: Browser, written: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(written.read_text().replace("<text ", '<text style="fill:red" ', 1))
    browser.open(broken)
    refused = [event for event in browser.events if event.get("method") == "Log.entryAdded"]
    assert "Content Security Policy" in str(refused)


def test_texts_of_charts_are_large_enough_at_390_pixels_and_do_not_overlap(browser: Browser, written: Path) -> None:
    for width in (390, 1280):
        browser.screen(width)
        browser.open(written)
        assert browser.value("document.querySelectorAll('svg text').length") > 100
        assert min(browser.value(_HEIGHTS)) >= 9.0
        assert browser.value(_OVERLAPS) == []


def test_charts_follow_the_readers_colours(browser: Browser, written: Path) -> None:
    colours = []
    for dark in (False, True):
        browser.screen(1280, dark=dark)
        browser.open(written)
        of = "getComputedStyle(document.querySelector('{}')).{}"
        colours.append((
            browser.value(of.format("svg text", "fill")),
            browser.value(of.format('svg path[fill^="var(--update"]', "fill")),
            browser.value(of.format('svg path[stroke^="var(--grid"]', "stroke")),
            browser.value(of.format('svg path[stroke^="var(--arm-1"]', "stroke")),
        ))  # fmt: skip
    assert colours == [
        ("rgb(28, 33, 38)", "rgb(213, 94, 0)", "rgb(228, 231, 234)", "rgb(0, 130, 250)"),
        ("rgb(229, 232, 235)", "rgb(228, 112, 42)", "rgb(46, 52, 58)", "rgb(40, 130, 250)"),
    ]


def test_the_page_can_be_printed(browser: Browser, written: Path) -> None:
    browser.screen(1280, dark=True)
    browser.open(written)
    assert browser.printed().startswith(b"%PDF-")


_HEIGHTS = """Array.from(document.querySelectorAll('svg text')).map(text => {
  const svg = text.ownerSVGElement;
  return parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
})"""
_OVERLAPS = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    const boxes = Array.from(svg.querySelectorAll('text')).map(t => [t.textContent, t.getBoundingClientRect()]);
    boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
      const [w, h] = [Math.min(p.right, q.right) - Math.max(p.left, q.left),
                      Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top)];
      if (w > 1 && h > 3) found.push([a, b]);
    }));
  }
  return found;
})()"""
"""Texts of one drawing whose boxes meet by more than a pixel of width and the empty rim of their lines."""
