"""Reports of tuning runs: the live table, the table at the end, JSON, and the page with its plot.

Two are compared with files in tests/data/reports; where a change of them is wanted, run this with
TOOLCHAIN_WRITE_GOLDEN=1, and look at them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import xml.etree.ElementTree as ET

import pytest

from tests.support.paths import DATA
from toolchain import files
from toolchain.device.roofline import Peak
from toolchain.report import plain
from toolchain.report.figure import BOTTOM, RIGHT, TOP, WIDTH
from toolchain.tuning import report as tune_report
from toolchain.tuning.report import BoardRow, BuilderRow, Point, TaskRow, Totals, TuneReport

GOLDEN = DATA / "reports"

ROWS = (
    TaskRow(0, "fused_conv2d_add_relu", "conv2d_nchw", "1x3x8x8 -> 1x4x8x8", 1, 0.0426, 64, 3, 0.00123, done=False),
    TaskRow(1, "fused_" + "matmul_" * 6, "matmul", "8x8, 8x8 -> 8x8", 2, 0.0063, 32, 30, 0.00016, done=True),
    TaskRow(7, "softmax<&>", "softmax", "1x10 -> 1x10", 1, 4e-6, 0, 0, None, done=False),
)  # fmt: skip
WHOLE = (*ROWS[:2], dataclasses.replace(ROWS[2], trials=4, best_s=0.0000021))
POINTS = (Point(30.0, 16, 0.0093), Point(90.0, 48, 0.0042), Point(240.0, 80, 0.0015521))


def report_of(**values) -> TuneReport:
    fields = {
        "model": "squeezenet", "board": "rpi4", "emulated": True,
        "target": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+fp16", "+aes"]},
        "tuner": "evolutionary-xgb", "seed": 3, "options": {"number": 3, "timeout_s": 10.0},
        "trials": 100, "resumed": 16, "causes": {"ok": 67, "timeout": 32, "build": 1, "crash": 0},
        "seconds": 600.0, "shares": {"search": 200.0, "build": 100.0, "run": 270.0}, "tasks": WHOLE,
        "points": POINTS, "boards": (BoardRow("rpi4-1", 60, 20, 1), BoardRow("rpi4-2", 40, 13, 0)),
    }  # fmt: skip
    return TuneReport(**{**fields, **values})


def golden(name: str, text: str) -> str:
    path = GOLDEN / name
    if os.environ.get("TOOLCHAIN_WRITE_GOLDEN") == "1":
        path.write_text(text + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8")[:-1]


# --- tables ---


def test_live_table():
    text = plain(tune_report.live(ROWS, Totals(None, 96, 500, 312.4)))
    assert text == golden("tune_live.txt", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12.30 ms"), (1.5, "1500 ms"), (0.9999, "999.9 ms"), (12.3456, "12346 ms"), (2.1e-6, "2.100 µs")],
)
def test_last_line_of_the_live_table(seconds, text):
    last = tune_report.live(WHOLE, Totals(seconds, 320, 500, 312, 180, 7))[-1]
    assert last == (f"Estimate: {text}  Trials: 320/500  Time: 312 s  ETA: 180 s  Next task: 7")


def test_a_live_table_without_tasks():
    assert "Trials: 0/500" in plain(tune_report.live([], Totals(None, 0, 500, 0.0)))


def test_table_at_the_end():
    lines = plain(tune_report.page(report_of()).printed()).splitlines()
    assert lines[:8] == [
        "model      squeezenet",
        "board      rpi4 (emulated)",
        "target     kind llvm, mtriple aarch64-linux-gnu, mattr +fp16 +aes",
        "tuner      evolutionary-xgb, seed 3",
        "options    number 3, timeout_s 10.0",
        "latency    1.552 ms estimated (emulated)",
        "trials     100, 16 of them from an earlier part of the run: 67 ok, failed: 1 build, 32 timeout",
        "used time  600.0 s: search 200.0 s (33%), build 100.0 s (17%), run 270.0 s (45%)",
    ]
    assert lines[-3:] == [
        "BOARD   TRIALS  FAILED  QUARANTINES",
        "rpi4-1      60      20            1",
        "rpi4-2      40      13            0",
    ]


def test_a_run_that_found_nothing():
    """It is told in every form, and divides by nothing."""
    report = report_of(
        tasks=ROWS, points=(), boards=(), seconds=0.0, causes={}, emulated=False, resumed=0, planned=96, first_batch=16
    )
    text = plain(tune_report.page(report).printed())
    assert "latency    no estimate: 1 of 3 kernels were not measured; use --trials 112 or more" in text
    assert "trials     100: 0 ok" in plain(tune_report.page(report).printed())
    assert "emulated" not in plain(tune_report.page(report).printed())
    assert "There is no estimate" in tune_report.page(report).html()
    assert report.document()["estimated_s"] is None


def test_kernels_that_failed_are_not_called_unmeasured():
    failed = dataclasses.replace(ROWS[2], trials=16, failed=16, done=True)
    text = plain(tune_report.page(report_of(tasks=(*ROWS[:2], failed), planned=500, first_batch=16)).printed())
    assert "no estimate: no candidate of 1 of 3 kernels worked" in text
    assert "--trials" not in text


def test_a_run_that_ends_early_says_why():
    text = plain(tune_report.page(report_of(planned=500, ended="no candidates left for 3 kernels")).printed())
    assert "32 timeout; ended before 500 trials: no candidates left for 3 kernels" in text
    assert "ended" not in plain(tune_report.page(report_of(planned=100)).printed())


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        (("untuned", "untuned", "untuned"), "no kernel became faster; all 3 keep the untuned version"),
        (("faster", "untuned", "untuned"), "1 of 3 kernels became faster; 2 keep the untuned version"),
        (("faster", "faster", "faster"), "3 of 3 kernels became faster"),
    ],
)
def test_finals_are_summed_up(verdicts, text):
    rows = tuple(dataclasses.replace(row, verdict=verdict) for row, verdict in zip(WHOLE, verdicts, strict=True))
    lines = plain(tune_report.page(report_of(tasks=rows)).printed()).splitlines()
    assert f"finals     {text}" in lines


PEAK = Peak("NEON", 4, gflops=40.0, gbytes_s=5.0, array_kib=65536)


def test_how_near_kernels_are_to_the_limit_is_shown():
    """What a kernel could not reach explains why nothing became faster."""
    near, far, other = WHOLE
    rows = (dataclasses.replace(near, gbytes=0.0001), dataclasses.replace(far, gbytes=0.0001), other)
    report = report_of(tasks=rows, peak=PEAK)
    lines = plain(tune_report.page(report).printed()).splitlines()
    # 0.0426 GFLOP take 1.065 ms at 40 GFLOP/s, and 1.23 ms here; 0.0063 take 0.1575 ms, and 0.16 ms here, twice.
    assert (
        "limit      89% of the roofline: 1.550 ms, and the peak allows 1.380 ms; 1 of 2 kernels are at 90% of their"
        " limit or above" in lines
    )
    assert any(line.startswith("peak       40.0 GFLOP/s and 5.0 GB/s, measured: independent chains") for line in lines)
    (head,) = [line for line in lines if line.startswith("ID ")]
    assert head.endswith("LIMIT  OF LIMIT  BOUND BY")
    first, second, third = report.document()["tasks"]
    assert (first["limit_s"], first["of_limit"]) == (pytest.approx(1.065e-3), pytest.approx(1.065 / 1.23))
    assert (first["bound"], second["of_limit"]) == ("compute", pytest.approx(0.1575 / 0.16))
    assert (third["limit_s"], third["of_limit"], third["bound"]) == (None, None, "")
    assert report.document()["peak"] == {**dataclasses.asdict(PEAK), "method": PEAK.method}


def test_a_kernel_that_beats_the_limit_does_not_make_up_for_others():
    """Winograd's algorithm needs fewer operations than a kernel counts."""
    fast = dataclasses.replace(WHOLE[0], gflop=0.4, gbytes=0.0001)
    slow = dataclasses.replace(WHOLE[1], gflop=0.0, gbytes=0.0)
    report = report_of(tasks=(fast, slow), peak=PEAK)
    assert report.document()["tasks"][0]["of_limit"] > 8
    assert report.document()["tasks"][1]["of_limit"] == 0
    assert "limit      79% of the roofline" in plain(tune_report.page(report).printed())


def test_an_unknown_limit_is_not_invented():
    report = report_of(no_peak="an emulator has no peak")
    text = plain(tune_report.page(report).printed())
    assert "peak       unknown: an emulator has no peak" in text
    assert "limit  " not in text
    assert "LIMIT" not in text
    assert (report.document()["peak"], report.document()["no_peak"]) == (None, "an emulator has no peak")


def test_the_last_line_fits_into_80_columns():
    last = tune_report.live(WHOLE, Totals(0.0012345, 9999, 9999, 9999, 9999, 99))[-1]
    assert len(last) <= 80


# --- JSON ---


def test_document():
    report = report_of()
    document = json.loads(files.canonical_json(report.document()))
    assert document["schema_version"] == 1
    assert document["emulated"] is True
    assert document["target"]["mattr"] == ["+fp16", "+aes"]
    counted = {"total": 100, "resumed": 16, "ok": 67, "failed": {"build": 1, "timeout": 32}}
    assert document["trials"] == {**counted, "planned": 0, "ended": "", "pruned": {}, "pruned_by": ""}
    assert document["estimated_s"] == pytest.approx(0.0015521)
    assert document["points"][2] == {"seconds": 240.0, "trials": 80, "estimated_s": 0.0015521}
    assert document["boards"][0] == {"name": "rpi4-1", "trials": 60, "failed": 20, "quarantines": 1}
    assert document["tasks"][0]["gflops"] == pytest.approx(34.634, abs=0.001)
    assert sum(row["share"] for row in document["tasks"]) == pytest.approx(1.0)
    assert sorted({field.name for field in dataclasses.fields(TuneReport)} - document.keys()) == [
        "causes",
        "ended",
        "first_batch",
        "planned",
        "pruned_by",
        "resumed",
        "shares",
        "winners",
    ]


def test_builders_are_shown_where_there_are_some():
    row = BuilderRow("tls://10.0.0.7:4000", 4, 90, "refused: tvm 0.26 there, 0.27 here")
    with_builders, without = report_of(builders=(row,)), report_of()
    assert with_builders.document()["builders"] == [dataclasses.asdict(row)]
    table = tune_report.page(with_builders).printed()[-1]
    assert table.rows == [["tls://10.0.0.7:4000", "4", "90", row.note]]
    assert row.note in tune_report.page(with_builders).html()
    assert without.document()["builders"] == []
    assert len(tune_report.page(without).printed()) == len(tune_report.page(with_builders).printed()) - 2
    assert "Builder" not in tune_report.page(without).html()


# --- the page ---


def test_page():
    html = tune_report.page(report_of()).html()
    style = re.search("<style>.*?</style>", html, re.DOTALL)[0]  # which is that of every page
    html = html.replace(style, "<style></style>")
    assert html == golden("tune.html", html)


def test_the_page_needs_no_other_file_and_is_well_formed():
    html = tune_report.page(report_of()).html()
    assert not re.search(r"https?:|src=|href=|url\(|@import|<script", html)
    ET.fromstring(re.sub(r"<!DOCTYPE html>|<meta[^>]*>", "", html))  # noqa: S314 - our own page
    assert "prefers-color-scheme: dark" in html


def test_what_others_named_is_text_on_the_page():
    html = tune_report.page(report_of(model="<script>alert(1)</script>")).html()
    assert "<script>" not in html
    assert "softmax&lt;&amp;&gt;" in html


def test_the_mark_of_an_emulator():
    assert '<span class="mark doubt">emulated</span>' in tune_report.page(report_of()).html()
    assert "emulated" not in tune_report.page(report_of(emulated=False)).html().partition("<body>")[2]


def test_what_takes_most_of_the_time_comes_first():
    html = tune_report.page(report_of(tasks=(WHOLE[2], WHOLE[1], WHOLE[0]))).html()
    assert re.findall(r'data-name="Share"><span.*?</svg>([^<]*)', html) == ["79.2%", "20.6%", "0.14%"]


def test_the_gain_over_what_is_not_tuned():
    tasks = tuple(dataclasses.replace(row, untuned_s=2.5 * row.best_s, verdict="faster") for row in WHOLE)
    report = report_of(tasks=tasks)
    assert report.untuned_s == pytest.approx(2.5 * report.estimated_s)
    assert report.document()["untuned_s"] == report.untuned_s
    assert "1.552 ms estimated, 2.50 times as fast as untuned (3.880 ms)" in plain(tune_report.page(report).printed())
    page = tune_report.page(report).html()
    assert re.findall(r'data-name="Gain">([^<]*)', page) == ["2.50x"] * 3
    assert "untuned, 3.88" in page
    assert report_of().untuned_s is None, "where a task lacks its own"


# --- the plot ---


def chart(report: TuneReport) -> ET.Element:
    return ET.fromstring(re.search(r"<svg.*?</svg>", tune_report.page(report).html(), re.DOTALL)[0])  # noqa: S314 - as above


def test_the_line_steps_at_its_points_and_never_leaves_the_picture():
    picture = chart(report_of())
    path = picture.find("path").get("d")
    steps = re.findall(r"([MHV]) ?([\d.]+)(?: ([\d.]+))?", path)
    assert [command for command, *_ in steps] == ["M", "H", "V", "H", "V", "H"]
    across = [float(steps[0][1])] + [float(value) for command, value, _ in steps[1:] if command == "H"]
    down = [float(steps[0][2])] + [float(value) for command, value, _ in steps if command == "V"]
    assert across == sorted(across)
    assert down == sorted(down)  # the estimate falls
    axis = float(picture.find("line[@class='axis']").get("x1"))
    assert across[0] == pytest.approx(axis + (across[-1] - axis) * 0.5 / 10, abs=0.1)
    assert across[-1] == WIDTH - RIGHT  # there are no levels, whose names would need room
    assert TOP <= down[0] < down[-1] <= 320 - BOTTOM
    assert [title.text for title in picture.iter("title")][-1] == "1.552 ms after 4.0 min, 80 trials"


def test_the_finals_stand_in_the_plot_beside_the_trials():
    """The line falls below what the headline says, since trials are lucky; the page says so, and shows the finals."""
    tasks = tuple(dataclasses.replace(row, untuned_s=row.best_s, verdict="untuned") for row in WHOLE)
    lucky = (*POINTS, Point(300.0, 90, 0.0011))
    page = tune_report.page(report_of(tasks=tasks, points=lucky)).html()
    assert "tuned, by the finals, 1.552 ms" in page
    assert "dashed lines and the headline are by the finals" in page
    assert "by the finals" not in tune_report.page(report_of(points=lucky)).html(), "no final was held"


def test_a_single_point():
    assert chart(report_of(points=(Point(0.0, 1, 0.001),), seconds=0.0)).find("path") is not None
