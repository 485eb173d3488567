"""The report in headless Chromium: it shows itself on every screen, obeys nothing, and can be used by keyboard."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli import main as harness
from harness.core.types import ExampleRollout, Metric
from tests.e2e.browser import Browser, find_chromium, main
from tests.run_folders import RunPlan, write_run

REFERENCE = Path(__file__).parents[2] / "results/reference"
EVIL = '<script>document.title="owned";window.owned=1</script><img src=x onerror="window.owned=1;document.title=1">'
PATHS = (("fill", "update"), ("stroke", "grid"), ("stroke", "arm-1"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_chromium() is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
    ),
]


def _write_arm(root: Path, arm: str) -> None:
    """Write a run every text of which is an attack."""
    texts = [ExampleRollout(f"Say {EVIL}", f"</pre>{EVIL}", EVIL, float(v > 0), 5, "stop", v) for v in (0, 2)]
    plan = RunPlan(
        scenario="attack", arm=arm, steps=3, rollouts=texts, machine={"cpu": EVIL}, versions={"python": EVIL},
        settings="steps: 3\ndescription: '</title>" + EVIL.replace("'", "") + "'\n",
        evaluations={step: (0.2 + 0.1 * step, 5.0) for step in range(3)},
        metrics=lambda step: {"grad_norm": Metric(1.0 + step)},
    )  # fmt: skip
    manifest = write_run(root, plan).folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"scenario": EVIL, "arm": f"{arm} {EVIL}"}))


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of an experiment of two arms whose every text is an attack."""
    root = tmp_path_factory.mktemp("results")
    for arm in ("sync", "lag"):
        _write_arm(root, arm)
    out = tmp_path_factory.mktemp("report") / "report.html"
    assert harness(["report", str(root), "-o", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of four arms, with all their sections open."""
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert harness(["report", str(REFERENCE / "sync_k"), "-o", str(out)]) == 0
    out.write_text(out.read_text().replace("<details>", "<details open>"))
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    executable = find_chromium()
    assert executable is not None
    with Browser(executable, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def _requests(browser: Browser) -> list[str]:
    sent = [event for event in browser.events if event.get("method") == "Network.requestWillBeSent"]
    return [event["params"]["request"]["url"] for event in sent]


def _complaints(browser: Browser) -> list[object]:
    return [event for event in browser.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]


def test_an_injected_script_does_nothing(browser: Browser, attack: Path) -> None:
    browser.screen(1280)
    browser.open(attack)
    assert browser.value("window.owned") is None
    assert browser.value("document.title").startswith("Report: <script>document.title=")  # shown as text
    assert browser.value("document.querySelectorAll('script, img').length") == 0
    assert EVIL in browser.value("document.querySelector('.exchange pre').textContent")
    assert EVIL in browser.value("document.querySelector('h1').textContent")
    assert _requests(browser) == [attack.resolve().as_uri()]  # nothing else was asked for
    assert _complaints(browser) == []


def test_the_policy_stops_what_would_get_past_the_escaping(browser: Browser, attack: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    styled = "<p id=styled style='color: rgb(1, 2, 3)'>x</p>"
    broken.write_text(attack.read_text().replace("</main>", f"{EVIL}{styled}</main>"))
    browser.open(broken)
    assert browser.value("document.querySelectorAll('main script, main img').length") == 2
    assert browser.value("window.owned") is None
    assert browser.value("document.title").startswith("Report: ")
    assert browser.value("getComputedStyle(document.getElementById('styled')).color") != "rgb(1, 2, 3)"
    failed = [event["params"] for event in browser.events if event.get("method") == "Network.loadingFailed"]
    assert len(_requests(browser)) - 1 == len(failed)  # all but the page itself
    assert {item.get("blockedReason") for item in failed} == {"csp"}


def test_nothing_is_refused_nothing_is_asked_for_and_nothing_scrolls_sideways(browser: Browser, written: Path) -> None:
    for width in (320, 390, 768, 1280, 1920):
        browser.screen(width)
        browser.open(written)
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert (_requests(browser), _complaints(browser)) == ([written.resolve().as_uri()], []), width


def test_the_keyboard_reaches_the_content_and_every_table(browser: Browser, written: Path) -> None:
    browser.screen(390)
    browser.open(written)
    browser.press("Tab", 9)
    assert browser.value("document.activeElement.className") == "skip"
    assert browser.value("document.activeElement.getBoundingClientRect().left") >= 0
    names = "Array.from(document.querySelectorAll('.scroll')).every(box => box.tabIndex === 0 && box.ariaLabel)"
    assert browser.value(names) is True
    labels = "Array.from(document.querySelectorAll('[role=img]')).every(item => item.ariaLabel.length > 10)"
    assert browser.value(labels) is True
    links = "Array.from(document.querySelectorAll('nav a')).every(a => document.querySelector(a.getAttribute('href')))"
    assert browser.value(links) is True


def test_texts_of_charts_are_large_enough_at_390_pixels_and_do_not_overlap(browser: Browser, written: Path) -> None:
    for width in (390, 1280):
        browser.screen(width)
        browser.open(written)
        assert browser.value("document.querySelectorAll('svg text').length") > 100
        assert min(browser.value(_HEIGHTS)) >= 9.0
        assert browser.value(_OVERLAPS) == []


def test_page_and_charts_follow_the_readers_colours_with_enough_contrast(browser: Browser, written: Path) -> None:
    places = [("svg text", "fill"), *((f'svg path[{name}^="var(--{colour}"]', name) for name, colour in PATHS)]
    colours = []
    for dark in (False, True):
        browser.screen(1280, dark=dark)
        browser.open(written)
        contrasts = browser.value(_CONTRASTS)
        assert len(contrasts) > 50
        # WCAG 2.2, success criterion 1.4.3: at least 4.5 for text below 24 px
        assert [item for item in contrasts if item["ratio"] < 4.5] == []
        of = "getComputedStyle(document.querySelector('{}')).{}"
        colours.append([browser.value(of.format(*place)) for place in [("body", "backgroundColor"), *places]])
    assert [light for light, dark in zip(*colours, strict=True) if light == dark] == []


def test_pictures(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(written), "-o", str(tmp_path), "--height", "700"])
    names = ["report_light.png", "report_dark.png", "report_narrow.png"]
    assert capsys.readouterr().out.splitlines() == [f"picture: {tmp_path / name}" for name in names]
    sizes = [struct.unpack(">II", (tmp_path / name).read_bytes()[16:24]) for name in names]
    assert sizes == [(1280, 700), (1280, 700), (390, 700)]
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "nowhere.html"), "-o", str(tmp_path)])
    assert "nowhere.html' is no file" in capsys.readouterr().err


_CONTRASTS = """(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = item => {
    for (; item; item = item.parentElement) {
      const found = parse(getComputedStyle(item).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const item of document.querySelectorAll('p,li,a,h1,h2,h3,td,th,summary,strong,span,text,.name,.value,pre')) {
    if (!item.textContent.trim() || !item.checkVisibility()) continue;
    const style = getComputedStyle(item);
    const ink = parse(item instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(item))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push({tag: item.tagName, text: item.textContent.slice(0, 30), ratio});
  }
  return found;
})()"""
"""Contrast of every text with the nearest opaque background: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""

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
