"""Pages: the same records give the same bytes, and nothing that anybody says is more than text."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest

from toolchain import report
from toolchain.report import histogram, plot, scale, style

EVIL = "</p><script>alert(1)</script>\" onload='x' \x1b[31m\u202e&amp;"


def html(*parts: report.Part, **values) -> str:
    defaults = {"title": "a title", "command": "tune", "verdict": None, "sections": [report.Section("parts", parts)]}
    return report.Page(**{**defaults, **values}).html()


def picture(part: report.Part) -> ET.Element:
    return ET.fromstring(re.search("<svg.*?</svg>", part.html(), re.DOTALL)[0])  # noqa: S314 - our own page


def strokes(values: list[float], name: str = "a") -> report.Strokes:
    return report.Strokes(report.samples(values), name)


def kind(part: report.Part) -> str:
    """Name a part, a plot by its layers."""
    return type(part.layers[0] if isinstance(part, report.Plot) else part).__name__


ALL = [
    report.Text(EVIL),
    report.Notes([EVIL]),
    report.Facts([(EVIL, EVIL)]),
    report.Table([(EVIL, report.Cell(EVIL, 0.5, "bad"))], (EVIL, "b"), [1], name=EVIL),
    report.Plot(EVIL, EVIL, EVIL, [report.Steps([report.Value(1.0, 2.0, EVIL)])], [report.Level(EVIL, 1.0)], 3.0),
    report.Plot(
        EVIL, EVIL, EVIL, [report.Dots([report.Value(1, 2.0, EVIL, 1.0, 3.0)], EVIL)] * 2, [report.Level(EVIL, 1.0)]
    ),
    report.Plot(EVIL, EVIL, EVIL, [strokes([1.0], EVIL), strokes([2.0], EVIL)], [report.Level(EVIL, 1.0)]),
    report.Histogram(EVIL, EVIL, [report.Group(EVIL, [1.0, 2.0])]),
    report.Bars(EVIL, EVIL, [report.Bar(EVIL, 1.0, EVIL, EVIL)], [EVIL, EVIL]),
]


@pytest.mark.parametrize("part", ALL, ids=kind)
def test_what_others_say_is_text(part):
    page = html(part, title=EVIL, command=EVIL, verdict=report.Headline(EVIL), marks=[report.Mark(EVIL)])
    assert "<script" not in page
    assert not {"\x1b", "\u202e"} & set(page)
    assert not re.search(r"https?:|src=|href=|url\(|@import", page)
    tree = ET.fromstring(re.sub(r"<!DOCTYPE html>|<meta[^>]*>", "", page))  # noqa: S314 - our own page
    assert not [element for element in tree.iter() if {name for name in element.attrib if name.startswith("on")}]
    assert page == html(part, title=EVIL, command=EVIL, verdict=report.Headline(EVIL), marks=[report.Mark(EVIL)])


def test_a_page_forbids_itself_everything():
    page = html()
    assert "content=\"default-src 'none'; style-src 'unsafe-inline';" in page
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_only_a_page_with_pictures_allows_them():
    small = report.Picture(b"\x89PNG", EVIL)
    page = html(report.Pictures([small, small]))
    assert page.count('<img alt="" src="data:image/png;base64,iVBORw=="/>') == 2
    assert "form-action 'none'; img-src data:\">" in page
    assert "<script" not in page
    assert "img-src" not in html(report.Pictures([]), report.Text('src="data:image/png;base64,'))


def test_whose_page_it_is():
    assert report.is_ours(html().encode()[: report.HEAD])
    assert not report.is_ours(b'<!DOCTYPE html><meta name="generator" content="other">')


def test_what_says_nothing_takes_no_room():
    assert "<section>" not in html(report.Notes([]), report.Facts([("a", "")]), report.Text(""))


@pytest.mark.parametrize(
    "plot",
    [
        report.Plot("none", "x", "y", [report.Steps([report.Value(0.0, 0.0), report.Value(1.0, math.nan)])], end=1.0),
        report.Plot("none", "x", "y", [report.Dots([report.Value(1, math.inf)])]),
        report.Plot("none", "x", "y", [strokes([math.nan], "a"), strokes([], "b")]),
        report.Histogram("none", "x", [report.Group("a", [])]),
        report.Bars("none", "x", [report.Bar("a", math.inf)]),
    ],
    ids=kind,
)
def test_nothing_to_draw_is_said(plot):
    assert "Nothing to draw" in plot.html()
    assert "<svg" not in plot.html()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0"), (948304, "948304"), (0.0, "0.000"), (12.3, "12.30"), (1234.56, "1235"),
        (0.01234, "0.01234"), (1.23e-7, "1.230e-07"), (-2.5, "-2.500"),
    ],
)  # fmt: skip
def test_numbers(value, text):
    assert report.number(value) == text


@pytest.mark.parametrize(("share", "text"), [(0.792, "79.2%"), (0.00135, "0.14%"), (None, "-"), (-0.02, "-2.0%")])
def test_shares(share, text):
    assert report.percent(share) == text


# --- plots ---


def test_bars_are_as_long_as_their_values():
    svg = picture(report.Bars("b", "ms", [report.Bar("a", 1.0), report.Bar("b", 4.0)]))
    short, long = (float(rect.get("width")) for rect in svg.findall(".//rect[@class='fill one']"))
    assert 4 * short == pytest.approx(long, abs=0.4)


def test_bars_below_zero_go_to_the_left():
    svg = picture(report.Bars("b", "ms", [report.Bar("a", -1.0, low=-1.5, high=-0.5), report.Bar("b", 1.0)]))
    left, right = svg.findall(".//rect[@class='fill one']")
    assert float(left.get("x")) + float(left.get("width")) == pytest.approx(float(right.get("x")), abs=0.2)
    error = svg.find(".//line[@class='error']")
    assert float(error.get("x1")) < float(left.get("x")) < float(error.get("x2"))


def test_a_bar_tells_its_whole_name():
    svg = picture(report.Bars("b", "ms", [report.Bar("long" * 40, 1.0, "1 ms", "what it is")]))
    assert "long" * 40 not in [element.text for element in svg.iter("text")]
    assert [element.text for element in svg.iter("title")] == ["long" * 40 + ": what it is"]


def test_dots_beyond_the_picture_are_told():
    dots = [report.Value(index, 1.0 + 0.001 * (index % 7)) for index in range(40)]
    chart = report.Plot(
        "d", "round", "ratio", [report.Dots([*dots, report.Value(40, 50.0)])], [report.Level("limit", 1.05)]
    )
    assert len(picture(chart).findall(".//circle[@class='hollow one']")) == 1
    assert "1 outside the plot" in chart.html()
    assert "limit" in [element.text for element in picture(chart).iter("text")]


def test_limits_that_lie_close_have_names_apart():
    levels = [report.Level("a", 1), report.Level("b", 1.1)]
    svg = picture(report.Plot("d", "round", "%", [report.Dots([report.Value(1, 0.0), report.Value(2, 90.0)])], levels))
    first, second = (float(label.get("y")) for label in svg.iter("text") if label.text in {"a", "b"})
    assert abs(first - second) >= 16


def test_a_long_series_keeps_what_is_smallest_and_greatest_in_a_column():
    values = [1.0 + 0.001 * (index % 10) for index in range(20_000)]
    values[777], values[15_000] = 3.0, 0.4
    chart = report.Plot("s", "run", "ms", [strokes(values)])
    path = picture(chart).find(".//path").get("d")
    assert path.count("M") <= 720
    assert len(chart.html()) < 40_000
    tops = [float(top) for top in re.findall(r"V([\d.]+)", path)]
    assert min(tops) < sorted(tops)[1] - 50, "the outlier is seen"


def test_a_series_that_is_not_long_keeps_every_value():
    svg = picture(report.Plot("s", "run", "ms", [strokes([1.0] * plot.MOST_POINTS)]))
    assert svg.find(".//path").get("d").count("M") == plot.MOST_POINTS


def test_series_in_turns_lie_where_they_were():
    runs = [report.Strokes(report.samples([1.0, 1.0], turns)) for turns in ([1, 3], [2, 4])]
    paths = picture(report.Plot("s", "run", "ms", runs)).findall(".//path")
    xs = [[float(x) for x in re.findall(r"M([\d.]+)", path.get("d"))] for path in paths]
    assert xs[0][0] < xs[1][0] < xs[0][1] < xs[1][1]


def test_extremes():
    assert plot.extremes([(2, 5.0), (1, 1.0), (2, 3.0), (2, 4.0)]) == [(1, 1.0, 1.0), (2, 3.0, 5.0)]


def test_a_histogram_counts_all_but_what_is_beyond():
    values = [10.0 + 0.01 * (index % 50) for index in range(500)]
    chart = report.Histogram("h", "ms", [report.Group("a", [*values, 900.0])])
    assert "1 of 501 outside the plot: 900 to 900 (ms)." in chart.html()
    assert "a, 501 values, median 10.2" in chart.html()


def test_counts():
    assert histogram.counts([0.0, 1.0, 1.0, 2.0, 5.0], 0.0, 2.0, 2) == [1, 3]


@pytest.mark.parametrize(
    ("values", "span", "number"), [([1.0] * 9, 1.0, 8), ([1.0, 2.0], 1e9, 100), (list(range(1000)), 999.0, 10)]
)
def test_bins(values, span, number):
    assert histogram.bins(values, span) == number


# --- how it looks ---


def test_letters_stay_large_enough_where_a_picture_is_narrowest():
    min_width = float(re.search(r"figure svg \{[^}]*min-width: (\d+)px", style.STYLE)[1])
    letters = float(re.search(r"svg text \{[^}]*font: (\d+)px", style.STYLE)[1])
    assert letters * min_width / 720 >= 10


def test_far_values_are_fenced_off_only_where_there_are_enough():
    near = [1.0, 1.01, 1.02, 0.99, 1.0, 1.0, 1.01, 0.98]
    assert 50.0 not in scale.fenced([*near, 50.0])
    assert scale.fenced([1.0, 50.0]) == [1.0, 50.0]
