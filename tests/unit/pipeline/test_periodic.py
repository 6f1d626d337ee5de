"""Runs at the rate of an application in a report: as JSON, on a terminal, and on a page."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.periodic_reports import RATE, periodic
from tests.unit.pipeline.test_report import made, parsed, table
from toolchain.pipeline import periodic as reported
from toolchain.pipeline.pages import measured


def with_runs(**changes):
    report = made()
    run = dataclasses.replace(report.measurement.run, periodic=periodic(**changes))
    return made(measurement=dataclasses.replace(report.measurement, run=run))


def test_the_document_has_every_figure():
    document = parsed(with_runs())["periodic"]
    assert (document["period_ms"], document["deadline_ms"], document["for_s"]) == (33.0, 40.0, 10.0)
    assert (document["runs"], document["missed"], document["longest_missed"], document["load"]) == (4, 1, 1, None)
    assert document["latency_ms"]["p50"]["value"] == pytest.approx(0.001)
    assert document["latency_ms"]["p99.99"] == {"value": None, "ci95": [pytest.approx(50.0, rel=1e-3), None]}
    assert document["latency_ms"]["max"] == 50.0
    assert document["ratio"] == pytest.approx(0.001 / 10.595)
    assert document["outliers"][0]["throttled"] == ["2 time(s) by the CPUs' own count", "Processor"]
    assert document["outliers"][1]["cpus"] is None
    assert document["histogram"].startswith("#[Histogram log format version 1.3]\n")
    assert [sum(count for _low, _high, count in piece) for piece in document["slices"]["latency_ms"]] == [3, 0, 1]


def test_a_report_without_a_rate_has_none():
    assert parsed(made())["periodic"] is None
    assert "periodic" not in table(made())


def test_the_table_names_the_deadline_and_the_load():
    loaded = dataclasses.replace(RATE, load="cpu", fifo=True)
    text = table(with_runs(rate=loaded, processes=2))
    assert "4 runs, one each 33 ms beside 2 process(es) of load: cpu, real-time" in text
    assert "1 of 4 beyond 40 ms, up to 1 in a row" in text
    assert "warning: 1 of 4 runs missed the deadline of 40 ms" in text


def test_warnings():
    assert reported.warnings(None) == ()
    assert reported.warnings(periodic(missed=0, longest_missed=0)) == ()
    texts = "\n".join(reported.warnings(periodic(not_started=9, missed_last=1, stopped=True)))
    assert "ended early, after 10.0 of 10 s" in texts
    assert "does not keep up: 9 runs" in texts
    assert "10 of 13 runs missed the deadline of 40 ms, up to 10 in a row" in texts
    hot = {"khz": [], "governors": [], "throttles": 9, "cooling": ["1 Processor"]}
    assert "throttled during the periodic runs: 6 time(s)" in reported.warnings(periodic(after=hot))[-1]


def test_the_page_has_a_picture_of_the_latency_over_time():
    page = measured.page(with_runs(), "bench").html()
    assert "Latency over time, darker where more runs are" in page
    assert "4 values (milliseconds) over seconds; the darkest field has 3 of them." in page
    assert "fill-opacity" in page
    assert "Latency over time" not in measured.page(made(), "bench").html()


def test_no_run_at_all_is_no_error():
    """Ctrl-C may come before the first run."""
    nothing = {"runs": 0, "missed": 0, "longest_missed": 0, "latency": [], "run": [], "lateness": [], "slices": [],
               "outliers": [], "max_ns": 0, "max_run_ns": 0, "max_late_ns": 0, "stopped": True}  # fmt: skip
    report = with_runs(**nothing)
    assert parsed(report)["periodic"]["latency_ms"]["p50"]["value"] is None
    assert "0 runs, one each 33 ms" in table(report)
    assert "Nothing to draw" in measured.page(report, "bench").html()
