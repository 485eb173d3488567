"""Markup, axes and charts: what is escaped, which numbers stand where."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest

from harness.compare.tables import Table
from harness.report.html.charts import (
    HEIGHT,
    MOST_MARKERS,
    Bar,
    Chart,
    Line,
    Scale,
    Segment,
    draw_bars,
    draw_chart,
    linear,
    logarithmic,
    tick_text,
    whole,
)
from harness.report.html.markup import Markup, element, join, lines, prose, share, short, table, text


def test_text_is_escaped_and_markup_is_not_escaped_twice() -> None:
    bad = "<script>alert('1')</script> & \"x\"\x1b[31m\u202e"
    escaped = "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt; &amp; &quot;x&quot;\\x1b[31m\\u202e"
    assert text(bad) == escaped
    assert element("p", bad) == f"<p>{escaped}</p>"
    assert element("p", element("b", bad), None, ["x", Markup("<br>")]) == f"<p><b>{escaped}</b>x<br></p>"
    assert element("p", title='" onmouseover="x') == '<p title="&quot; onmouseover=&quot;x"></p>'
    assert join("<", Markup("<i>")) == "&lt;<i>"


def test_attributes_and_numbers() -> None:
    drawn = element("rect", class_="a", x=1.0, y=0.12345, width=None, hidden=False, data_x=True)
    assert drawn == '<rect class="a" x="1" y="0.123" data-x/>'
    assert element("rect", element("title", "t"), x=1) == '<rect x="1"><title>t</title></rect>'
    assert element("meta", name="a", charset="utf-8") == '<meta name="a" charset="utf-8">'
    assert [short(value) for value in (1.0, -0.0001, 0.1234, 1200.0)] == ["1", "0", "0.123", "1200"]
    assert share(0.12345) == "12.345%"


def test_generated_lines_keep_their_breaks_and_are_cut() -> None:
    assert lines("a\n<b>\x07", 100) == "a\n&lt;b&gt;\\x07"
    assert lines("a" * 50, 10) == "aaaaaaa..."


def test_units_stay_with_their_numbers() -> None:
    assert prose("12.6 s and 3 ms, 5 samples") == "12.6\u00a0s and 3\u00a0ms, 5 samples"


@pytest.mark.parametrize(
    ("values", "from_zero", "ticks"),
    [
        ([0.336, 0.676], False, (0.3, 0.4, 0.5, 0.6, 0.7)),  # a fifth of 0.34 is 0.068, the next round step 0.1
        ([0.0, 2.06], True, (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)),
        ([3.0, 3.0], True, (0.0, 1.0, 2.0, 3.0)),
        ([0.0, 0.0], True, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),  # a constant gets room
        ([2.0, 2.0], False, (1.8, 1.9, 2.0, 2.1, 2.2)),  # a tenth of it on both sides
        ([-0.1, 0.3], False, (-0.1, 0.0, 0.1, 0.2, 0.3)),
        ([float("nan")], False, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
    ],
)
def test_a_linear_axis_has_round_ends(values: list[float], from_zero: bool, ticks: tuple[float, ...]) -> None:
    axis = linear(values, from_zero=from_zero)
    assert axis.ticks == pytest.approx(ticks)
    assert (axis.low, axis.high) == (axis.ticks[0], axis.ticks[-1])


def test_steps_and_powers() -> None:
    assert whole(0, 39) == Scale(0, 39, (0.0, 10.0, 20.0, 30.0, 39))  # 39 / 5 rounds up to 10
    assert whole(0, 33) == Scale(0, 33, (0.0, 10.0, 20.0, 33))  # the end has a tick, and room
    assert whole(5, 5) == Scale(5, 6.0, (5,))
    assert whole(0, 12).ticks == (0.0, 2.5, 5.0, 7.5, 10.0, 12)  # of seconds
    assert whole(0, 12, steps=True).ticks == (0.0, 5.0, 12)
    assert whole(1, 4, steps=True).ticks == (1.0, 2.0, 3.0, 4.0)
    assert whole(0, 250, steps=True).ticks == (0.0, 50.0, 100.0, 150.0, 200.0, 250.0)
    assert whole(0, 1, steps=True).ticks == (0.0, 1.0)
    powers = logarithmic([3.0, 4000.0])
    assert (powers.low, powers.high, powers.ticks) == (1.0, 10_000.0, (1.0, 10.0, 100.0, 1000.0, 10_000.0))
    assert powers.place(100.0) == pytest.approx(0.5)
    assert powers.place(0.0) == 0.0
    assert logarithmic([2.0, 8.0]).ticks == pytest.approx((1.0, 2.0, 5.0, 10.0))


@pytest.mark.parametrize("base", [0.0, 1e-6, -0.00012341, 0.2, 5.0, -999.5, 12345678.1, 1e9])
@pytest.mark.parametrize("span", [1e-9, 3e-7, 0.002, 1.0, 17.0, 4e4, 1e9])
def test_no_two_ticks_are_written_alike(base: float, span: float) -> None:
    span = max(span, 1e-9 * abs(base))
    for axis in (linear([base, base + span]), whole(base, base + span), logarithmic([abs(base) + 1e-9, 1.0 + span])):
        written = [tick_text(tick, axis) for tick in axis.ticks]
        assert len(set(written)) == len(written) <= 12
        apart = min((later - tick for tick, later in pairwise(axis.ticks)), default=1.0)
        read = [float(text.replace(",", "")) for text in written]
        assert read == pytest.approx(axis.ticks, abs=0.01 * apart)


def test_a_line_has_gaps_where_there_is_no_number() -> None:
    nan = math.nan
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, nan), (3.0, 4.0)]
    band = [(x, y - 0.5, y + 0.5) for x, y in points]
    drawn = draw_chart(Chart("a", "step", "b", [Line(0, points, band)], "says"))
    assert "nan" not in drawn
    (path,) = re.findall(r'<path d="([^"]*)" class="line', drawn)
    assert path.count("M") == 2
    assert drawn.count("<use ") == 3


def test_ticks_are_written_with_the_decimals_they_need() -> None:
    axis = linear([0.0, 1.0])
    assert [tick_text(tick, axis) for tick in axis.ticks] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    axis = linear([10.2, 12.1])
    assert tick_text(axis.ticks[1], axis) == "10.5"
    axis = whole(0, 4000)
    assert tick_text(1000.0, axis) == "1,000"
    axis = whole(0, 12)  # the last gap, 2.0, needs no decimals; 2.5 was written as 2 and 7.5 as 8
    assert [tick_text(tick, axis) for tick in axis.ticks] == ["0.0", "2.5", "5.0", "7.5", "10.0", "12.0"]
    axis = linear([0.0, 0.0003])
    assert tick_text(axis.ticks[1], axis) == "0.0001"
    axis = linear([0.0, 0.00003])
    assert tick_text(axis.ticks[1], axis) == "1e-5"


def test_a_step_axis_has_whole_steps() -> None:
    """The ticks of twelve steps stood at 2.5 and 7.5 and said 2 and 8."""
    drawn = str(
        draw_chart(Chart("Reward", "training step", "reward", [Line(0, [(0.0, 0.1), (12.0, 0.5)])], "It rises."))
    )
    ticks = re.findall(r'<text x="([\d.]+)%"[^>]*class="tick-text">([^<]*)</text>', drawn)
    assert [text for _, text in ticks] == ["0", "5", "12"]
    assert [float(x) / 100 * 12 for x, _ in ticks] == pytest.approx([0.0, 5.0, 12.0], abs=0.01)


def test_a_chart_puts_points_where_its_axes_say() -> None:
    chart = Chart("Reward", "step", "reward", [Line(0, [(0.0, 0.0), (10.0, 1.0)])], "It rises.", levels=[("goal", 0.5)])
    drawn = draw_chart(chart)
    assert 'd="M0 220L1000 0"' in drawn  # y downwards from the top, x over 1000 units of the stretched drawing
    assert '<use href="#m0" x="100%" y="0" class="mark v0"/>' in drawn
    assert f'y1="{HEIGHT / 2:g}" y2="{HEIGHT / 2:g}" class="level"' in drawn  # 0.5 of 0..1
    assert 'aria-label="Reward. It rises."' in drawn
    empty = draw_chart(Chart("Reward", "step", "reward", [], "Nothing."))
    assert "not logged" in empty
    assert "<svg" not in empty


def test_a_variant_without_the_metric_leaves_no_trace() -> None:
    logged = Line(0, [(0.0, 0.0), (10.0, 1.0)])
    alone = draw_chart(Chart("Clip", "step", "share", [logged], "It rises."))
    assert draw_chart(Chart("Clip", "step", "share", [logged, Line(1, [])], "It rises.")) == alone


def test_a_band_goes_there_and_back_and_markers_are_few() -> None:
    points = [(float(x), 1.0) for x in range(100)]
    band = [(0.0, 0.0, 2.0), (99.0, 0.0, 1.0)]
    drawn = draw_chart(Chart("K", "step", "y", [Line(3, points, band)], "It stays.", from_zero=True))
    assert 'd="M0 0L1000 110L1000 220L0 220Z" class="band v3"' in drawn
    assert drawn.count("<use") == 100 // 9 + 1 <= MOST_MARKERS  # every 9th of 100: ceil(100 / 12) = 9


def test_bars_are_shares_of_the_axis() -> None:
    axis = Scale(0.0, 2.0, (0.0, 1.0, 2.0))
    bars = [Bar("k1", [Segment("st-update", 1.0, "update"), Segment("wait", 0.5, "<i>")], "1.5 s", whisker=(1.0, 2.0))]
    drawn = draw_bars(bars, axis, "seconds", "One bar.")
    assert re.findall(r'<rect x="([^"]+)" width="([^"]+)"', drawn) == [("0%", "50%"), ("50%", "25%")]
    assert "<title>&lt;i&gt;</title>" in drawn
    assert '<line x1="50%" x2="100%" y1="10" y2="10" class="whisker"/>' in drawn
    assert '<div class="rows short" role="img" aria-label="One bar.">' in drawn


def test_a_table_names_its_rows_and_columns() -> None:
    drawn = table(Table("T", ("stage", "s"), (("  <b>", " 1.0 "),), ("Note 1 s.",)))
    assert '<th scope="col" class="n">s</th>' in drawn
    assert '<th scope="row">  &lt;b&gt;</th><td class="n">1.0</td>' in drawn
    assert drawn.startswith('<div class="scroll" tabindex="0" role="region" aria-label="T">')
    assert drawn.endswith('<p class="note">Note 1\u00a0s.</p>')
