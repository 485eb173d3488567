"""The page: the same bytes each time, nothing in it that could act, and charts that any screen can show."""

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from harness.compare.remarks import Remark
from harness.report import charts
from harness.report.canvas import ARM_COLOURS, COLOUR_NAMES
from harness.report.charts import Panel
from harness.report.document import Chart, Document, Rollouts, Section, Table
from harness.report.files import page
from harness.report.svg import page_svg
from harness.results import RolloutRow
from tests.report.html_reader import Page

EVIL = "</pre><script>alert(1)</script> $x$ _a \u202e \"'><img src=x onerror=alert(1)> https://evil.example"


def _curves(name="k1"):
    rows = [(name, seed, x, x / 10 + seed, "A") for seed in (0, 1) for x in range(4)]
    frame = pd.DataFrame([*rows, ("b", 0, 1, 0.5, "A")], columns=["arm", "seed", "x", "value", "panel"])
    return Chart("reward", "Reward.", f"It rose: {name}.", lambda: charts.curves(frame, [Panel("A", name)], title=name))


def _bars(name="k1"):
    parts = ("generate", "weight_verify", "wait_for_batch", "unattributed", name)
    rows = [charts.Bar(name, "busy", dict.fromkeys(parts, 1.0))]
    table = Table(name, ("stage", name), (("generate", "1.0"), (name, " 2.0")), ("3.1 s in all",))
    return Chart("stages", "Seconds.", "By stage.", lambda: charts.bars(rows, x_label=name), table)


def _timeline():
    spans, changes = [("a", "learner", "update", 0.0, 1.0)], [("a", "learner", 0.5, 2)]
    return Chart("timeline", "Timeline.", "One step.", lambda: charts.timeline(spans, changes, {"a": (1.0, "step 3")}))


def _document(name="k1"):
    rollout = RolloutRow("evaluate", 0, name, f"one\n{name}", "2", 0.5, 3, "stop")
    table, command = Table(name, (name, "n"), ((name, "1"),)), Remark("z", name, "next", f"run {name}")
    sections = (
        Section("findings", "Findings", (Remark("x", name, "time"), Remark("y", name, "cautions"), _bars(name))),
        Section("learned", "What was learned", (_curves(name), _timeline(), Rollouts(name, ((rollout, rollout),)))),
        Section("again", "Run it again", (command, table), True),
    )
    return Document(name, f"From {name}.", name, (Remark("v", f"40% faster than {name}: 3.1 s.", "answer"),), sections)


def test_what_is_drawn_has_words_and_numbers_beside_it():
    found = Page(page([_document()]))
    images = [attributes["aria-label"] for _, attributes in found.tags if attributes.get("role") == "img"]
    assert images == ["Seconds.. By stage.", "Reward.. It rose: k1.", "Timeline.. One step."]
    assert found.text("td")[:2] == ["1.0", "2.0"]
    assert "3.1\u00a0s in all" in found.text("p")
    assert found.text("code") == ["run k1"]


def test_several_experiments_have_one_page():
    overview = Section("all", "All experiments", (Table("Experiments", ("name", "s"), (("a", "1"),)),))
    text = page([_document("a"), _document("b")], overview)
    found = Page(text)
    assert (found.text("h1"), found.text("h2")) == (["2 experiments"], ["All experiments", "a", "b"])
    assert (found.text("nav"), found.text("a")[1:]) == ([], ["All experiments", "a", "b"])
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', text.partition("</style>")[2])
    assert {*used} <= {*ids}
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch(r"h\d", tag)]
    assert all(later - level <= 1 for level, later in pairwise(levels))


def test_a_figure_is_drawn_once_for_the_file_and_the_page(tmp_path):
    drawn, inner = [], _curves()
    chart = Chart("reward", "Reward.", "x", lambda: drawn.append(1) or inner.draw())
    first = page_svg(chart.figure, "a")
    chart.figure.savefig(tmp_path / "reward.png")
    assert (page_svg(chart.figure, "a"), drawn) == (first, [1])


def test_the_page_is_the_same_each_time_and_shows_no_more_than_a_screen_of_a_text():
    documents = [_document(EVIL), _document(EVIL * 200)]
    text = page(documents)
    assert page(documents) == text
    assert max(map(len, Page(text).text("pre"))) < 2200


@pytest.mark.parametrize("chart", [_curves(EVIL), _bars(EVIL), _timeline()], ids=["curves", "bars", "timeline"])
def test_an_svg_has_no_style_no_clip_and_ids_of_its_own(chart):
    one, two = (page_svg(chart.figure, prefix) for prefix in ("a-", "b-"))
    assert one == page_svg(chart.draw(), "a-")
    root = ElementTree.fromstring(f"<div>{one}{two}</div>")
    items = list(root.iter())
    assert not {name for item in items for name in item.attrib} & {"style", "clip-path", "class_", "font-family"}
    ids = [item.attrib["id"] for item in items if "id" in item.attrib]
    assert len(set(ids)) == len(ids)
    assert all(name[:2] in ("a-", "b-") for name in ids)
    assert {item.tag for item in items} <= {"div", "svg", "g", "defs", "pattern", "rect", "path", "use", "text"}
    used = {match for item in items for match in re.findall(r"url\(#([^)]+)\)", " ".join(item.attrib.values()))}
    assert used == {item.attrib["id"] for item in items if item.tag == "pattern"}
    patterns = [len(list(svg.iter("pattern"))) for svg in root]
    cells = len(patterns) // 2
    assert not any([*patterns[1:cells], *patterns[cells + 1 :]])  # the first cell of a figure has them for all
    for svg in root:
        width = float(svg.attrib["viewBox"].split()[2])
        sizes = [float(item.get("font-size", "10px").removesuffix("px")) for item in svg.iter("text")]
        screen = 672 if "long" in svg.attrib["class"] else 350  # CSS pixels, on a screen of 390
        assert all(size * screen / width >= 9.0 for size in sizes)


def test_the_points_of_an_svg_are_those_of_the_frame():
    rows = [(arm, 0, x, place + x * x / 7, "A") for place, arm in enumerate(("k1", "k2")) for x in range(40)]
    frame = pd.DataFrame(rows, columns=["arm", "seed", "x", "value", "panel"])
    figure = charts.curves(frame, [Panel("A", "reward")])
    text = page_svg(figure, "a-")
    assert len(text) < 12_000
    (axes,) = figure.subfigs[1].axes
    height = 72 * figure.get_figheight()
    for index, arm in enumerate(frame["arm"].unique()):
        own = frame[frame["arm"] == arm]
        places = axes.transData.transform(own[["x", "value"]].to_numpy()) * 72 / figure.dpi
        name = COLOUR_NAMES[ARM_COLOURS[index]]
        found = re.findall(rf'<path d="(M[^"]*)" fill="none" stroke="var\(--{name},[^"]*" stroke-width="1.8"', text)
        drawn = [[float(number) for number in point.split()] for point in re.split("[ML]", found[-1])[1:]]
        assert np.allclose(drawn, np.column_stack([places[:, 0], height - places[:, 1]]), atol=0.06)


def test_every_colour_of_a_chart_can_be_seen_on_a_dark_ground():
    """WCAG 2.2, success criterion 1.4.11: at least 3 to 1 for lines; bars have the numbers beside them."""

    def luminance(colour):
        values = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    sheet = (Path(charts.__file__).parent / "page.css").read_text()
    dark = dict(re.findall(r"--([\w-]+): (#\w{6});", sheet.partition("prefers-color-scheme: dark")[2]))
    for colour, name in COLOUR_NAMES.items():
        if name in ("ink", "muted") or name.startswith("arm-") or name in ("faster", "slower", "same", "cannot-tell"):
            for one, ground in ((dark.get(name, colour), dark["surface"]), (colour, "#ffffff")):
                low, high = sorted(map(luminance, (one, ground)))
                assert (high + 0.05) / (low + 0.05) >= 3, name
