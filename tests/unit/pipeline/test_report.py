"""Reports as JSON, as a table and as JUnit XML."""

from __future__ import annotations

import dataclasses
import json
import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tests.support import junit
from toolchain import files, tensors
from toolchain.bundle.manifest import HalfOutput, InHalf, Modelled
from toolchain.device import bench
from toolchain.device.application import Started
from toolchain.device.bench import Conditions, Measurement
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.runner import Copies, Processor, Run
from toolchain.device.shipment import Transfer
from toolchain.device.verification import Fidelity
from toolchain.device.waiting import Waited
from toolchain.models.inputs import Guess
from toolchain.pipeline.pages import measured
from toolchain.pipeline.report import Report
from toolchain.report import plain
from toolchain.tensors import ROUNDING, Difference, Limit

FACTS = DeviceFacts(
    machine="aarch64", kernel="Linux 6.1.0", glibc="2.36", cpu="Cortex-A53", cpu_features=("fp",), cpus=4,
    memory_kib=1 << 20, free_kib=1 << 20, lacks=(),
)  # fmt: skip
CONDITIONS = Conditions(load=0.1, busy=0.0, governors=("performance",), mhz=1200.0, celsius=None)
LATENCY_KEYS = {"mean", "median", "min", "max", "std", "p90", "p99", "median_ci95", "samples"}


def made(samples=tuple(10.0 + 0.01 * index for index in range(120)), warnings=(), **values) -> Report:
    run = Run(
        outputs={"y": np.zeros(1)}, samples_ns=tuple(round(value * 1e6) for value in samples),
        warmup_ns=(20_000_000, 11_000_000), load_ms=3.5, threads=2, peak_rss_kib=40_000,
    )  # fmt: skip
    sent = Transfer(2048, 100, 3, 4, 0.25)
    measurement = Measurement(bench.statistics(samples), run, CONDITIONS, CONDITIONS, warnings, sent)
    changes = {
        "board": "pi3", "host": "pi@10.0.0.5:22", "model": "mlp", "bundle_digest": "ab" * 32, "emulated": False,
        "facts": FACTS, "stages": {"import": 0.123456, "deploy": 1.5}, "measurement": measurement,
        "reference": "onnxruntime 1.22", "difference": Difference(1e-6, 2e-6, 1e-4, ok=True),
        "transfer": sent,
    }  # fmt: skip
    return Report(**{**changes, **values})


def table(made_report: Report) -> str:
    return plain(measured.page(made_report).printed())


def parsed(made_report: Report) -> dict:
    """The document as a strict JSON parser reads it."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(files.canonical_json(made_report.document()), parse_constant=refuse)


# --- many samples ---


def test_many_samples():
    difference = Difference(0.5, 2e-3, 1e-2, ok=True)
    made_report = made(fidelity=Fidelity(256, 0, 17, difference, beyond=0, flips=3, rows=256))
    assert parsed(made_report)["fidelity"] == {
        "samples": 256, "seed": 0, "worst": 17, "beyond": 0, "flips": 3, "rows": 256,
        "max_abs_diff": 0.5, "max_rel_diff": 2e-3, "tolerance": 1e-2, "ok": True, "reordered": [],
    }  # fmt: skip
    assert "256 random inputs match, largest relative difference 2.0e-03 (sample 17" in table(made_report)
    assert "a different class in 3 of 256" in table(made_report)


def test_what_computed_is_told():
    run = dataclasses.replace(made().measurement.run, processor=Processor("Mali-T860", "r14p0", "OpenCL 1.2 v1", 4))
    made_report = made(measurement=dataclasses.replace(made().measurement, run=run))
    assert parsed(made_report)["processor"] == {
        "name": "Mali-T860",
        "driver": "r14p0",
        "version": "OpenCL 1.2 v1",
        "units": 4,
    }
    assert "computed on  Mali-T860, 4 compute unit(s), OpenCL 1.2 v1, driver r14p0" in table(made_report)
    assert parsed(made())["processor"] is None
    assert "computed on" not in table(made())


def test_copies_are_told():
    run = dataclasses.replace(made().measurement.run, copies=Copies(1_500_000, 1_204_224, 12_000_000))
    made_report = made(measurement=dataclasses.replace(made().measurement, run=run))
    assert parsed(made_report)["copies"] == {"to_device": 1_500_000, "from_device": 1_204_224, "resident": 12_000_000}
    sentence = "each run copies 1.50 MB to the accelerator's memory and 1.20 MB back; 12.00 MB stay there"
    assert sentence in table(made_report)
    assert parsed(made())["copies"] is None
    assert "copied" not in table(made())


def test_without_classes_there_are_no_flips():
    made_report = made(fidelity=Fidelity(2, 0, 1, Difference(0.0, 0.0, 1e-4, ok=True), beyond=0, flips=None, rows=0))
    assert parsed(made_report)["fidelity"]["flips"] is None
    assert "a different class" not in table(made_report)


# --- JSON ---


@pytest.mark.parametrize(
    ("restarted", "text"), [(True, "running 2.2 s after the switch"), (False, "already running this release")]
)
def test_an_application(restarted, text):
    made_report = made(application=Started("detector.service", restarted=restarted, seconds=2.25))
    assert parsed(made_report)["application"] == {"name": "detector.service", "restarted": restarted, "seconds": 2.25}
    assert f"application  detector.service, {text}" in table(made_report)


def test_each_output_has_its_limit_and_the_reason_for_it():
    outputs = {"boxes": np.ones(4, np.float32), "scores": np.ones(4, np.float32)}
    got = {"boxes": outputs["boxes"] + np.float32(2e-3), "scores": outputs["scores"]}
    made_report = made(difference=tensors.compare(got, outputs, {"boxes": Limit(1e-2, ROUNDING)}))
    each = {output.pop("name"): output for output in parsed(made_report)["outputs"]["each"]}
    assert (each["boxes"]["tolerance"], each["boxes"]["reason"], each["boxes"]["ok"]) == (1e-2, "rounding", True)
    assert each["boxes"]["max_rel_diff"] == pytest.approx(2e-3, rel=1e-3)
    assert (each["scores"]["tolerance"], each["scores"]["reason"]) == (1e-4, "type")
    assert "limit of boxes 1e-02: these inputs amplify rounding" in table(made_report)
    assert "limit of scores" not in table(made_report)


def test_document():
    document = parsed(made(warnings=("hot",), top=(Guess(7, "cat", 0.5),)))
    assert document["schema_version"] == 1
    assert (document["board"], document["model"], document["emulated"]) == ("pi3", "mlp", False)
    assert document["bundle_digest"] == "sha256:" + "ab" * 32
    assert document["host"] == {
        "name": "pi@10.0.0.5:22", "machine": "aarch64", "kernel": "Linux 6.1.0", "glibc": "2.36",
        "musl_version": "", "cpu": "Cortex-A53", "cpus": 4, "memory_kib": 1 << 20,
    }  # fmt: skip
    assert document["outputs"] == {
        "reference": "onnxruntime 1.22", "max_abs_diff": 1e-6, "max_rel_diff": 2e-6, "tolerance": 1e-4, "ok": True,
        "reordered": [], "each": [],
    }  # fmt: skip
    assert document["transfer"] == {
        "bytes_sent": 2048, "bytes_received": 100, "blobs_sent": 3, "blobs_skipped": 4, "seconds": 0.25,
    }  # fmt: skip
    assert document["stages_s"] == {"import": 0.1235, "deploy": 1.5}
    assert document["application"] is None
    assert document["warnings"] == ["hot"]
    assert document["top"] == [{"index": 7, "label": "cat", "score": 0.5}]
    assert (document["threads"], document["load_ms"], document["peak_rss_kib"]) == (2, 3.5, 40_000)
    assert document["warmup_ms"] == [20.0, 11.0]
    assert document["conditions"]["before"] == {
        "load": 0.1, "busy": 0.0, "governors": ["performance"], "mhz": 1200.0, "celsius": None,
    }  # fmt: skip


def test_latency_of_the_document():
    latency = parsed(made())["latency_ms"]
    samples = latency["samples"]
    assert set(latency) == LATENCY_KEYS
    assert len(samples) == 120
    assert (latency["min"], latency["max"]) == (min(samples), max(samples))
    assert latency["median"] == pytest.approx(np.median(samples))
    assert latency["p90"] == pytest.approx(np.percentile(samples, 90))


def test_few_samples_have_no_tails():
    latency = parsed(made(samples=(1.0,)))["latency_ms"]
    assert (latency["p90"], latency["p99"], latency["std"]) == (None, None, 0.0)


def test_mere_benchmark():
    document = parsed(made(difference=None, reference=""))
    assert set(document["outputs"].values()) == {None}


def test_what_is_not_finite_is_null():
    document = parsed(
        made(difference=Difference(math.inf, math.inf, math.inf, ok=False), top=(Guess(0, "cat", math.nan),))
    )
    assert (
        document["outputs"]["max_abs_diff"]
        is document["outputs"]["max_rel_diff"]
        is document["outputs"]["tolerance"]
        is None
    )
    assert document["outputs"]["ok"] is False
    assert document["top"][0]["score"] is None


def test_report_s_own_warnings_come_first():
    assert parsed(made(warnings=("hot",), emulated=True))["emulated"] is True
    assert dataclasses.replace(made(warnings=("hot",)), warnings=("old",)).document()["warnings"] == ["old", "hot"]


# --- the table ---


def test_table():
    text = table(made(warnings=("hot",)))
    for phrase in (
        "mlp", "abab", "pi3 at pi@10.0.0.5:22", "Cortex-A53, 4 CPUs", "match onnxruntime 1.22", "10.59 ms median",
        "10.00 ms min", "120 timed on 2 thread(s), p90", "p99", "0.002 MB sent in 0.2500 s, 3 blob(s) new, 4 already",
        "import 0.1 s, deploy 1.5 s", "warning: hot",
    ):  # fmt: skip
        assert phrase in text
    assert "emulated" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_table_of_an_emulated_board():
    """Nobody copies a time out of the table without the word beside it."""
    lines = table(made(emulated=True)).splitlines()
    timed = [line for line in lines if " ms" in line]
    assert len(timed) == 3
    assert all(line.endswith("(emulated)") or " median (emulated)" in line for line in timed)
    assert any("pi3 at" in line and "(emulated)" in line for line in lines)


def test_table_without_a_reference():
    assert "not compared" in table(made(difference=None))


def test_table_of_wrong_outputs():
    assert "DIFFER FROM onnxruntime" in table(made(difference=Difference(1.0, 1.0, 1e-4, ok=False)))


def test_table_with_the_best_guesses():
    lines = table(made(top=(Guess(7, "cat", 0.51234), Guess(1, "dog", 0.25)))).splitlines()
    assert lines[-3:] == ["CLASS  INDEX   SCORE", "cat        7  0.5123", "dog        1    0.25"]


def test_short_times_have_three_digits():
    assert "0.0123 ms median" in table(made(samples=(0.01234,) * 10))


# --- JUnit ---


def test_junit():
    stages = {"smoke": 0.5, "samples": 0.25, "bench": 10.25}
    waited = (Waited(12.34, "ann@desk: tune mlp"),)
    suite = ET.fromstring(measured.junit(made(emulated=True, stages=stages, waited=waited)))  # noqa: S314 - our own text
    assert (suite.tag, suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("testsuite", "2", "0", "0")
    outputs, latency = suite.findall("testcase")
    assert (outputs.get("classname"), outputs.get("name"), list(outputs)) == ("pi3.mlp", "outputs", [])
    assert (outputs.get("time"), latency.get("time")) == ("0.750", "10.250")
    assert junit.faults(suite) == []
    assert junit.properties(suite) == {
        "board": ["pi3"],
        "device": ["pi@10.0.0.5:22"],
        "release": [f"sha256:{'ab' * 32}"],
        "emulated": ["true"],
        "median_ms": ["10.595"],
        "waited": ["12.3 s: ann@desk: tune mlp"],
    }
    assert "(emulated)" in latency.find("system-out").text


def test_junit_without_a_reference():
    suite = ET.fromstring(measured.junit(made(difference=None)))  # noqa: S314
    assert suite.get("skipped") == "1"
    assert "no reference" in suite.find("testcase/skipped").get("message")


# --- what a model of an accelerator says ---

ARRAY = Modelled("hls-pynq", 100.0, kernels=19, cycles=8_000_000, macs=1_600_000_000, macs_per_cycle=256)


def test_modelled_numbers_are_derived_from_cycles():
    made_report = parsed(made(modelled=ARRAY))["modelled"]
    assert made_report == {
        "model": "hls-pynq", "clock_mhz": 100.0, "kernels": 19, "cycles": 8_000_000, "macs": 1_600_000_000,
        "macs_per_cycle": 256, "calibration": "", "ms": 80.0, "gops": 40.0, "utilisation": 0.7812,
    }  # fmt: skip


def test_modelled_numbers_are_told_to_be_none_of_the_device():
    line = next(line for line in table(made(modelled=ARRAY)).splitlines() if line.startswith("modelled"))
    assert "80.00 ms at 100 MHz in 19 kernels" in line
    assert line.endswith("(model hls-pynq, not measured)")
    calibrated = dataclasses.replace(ARRAY, calibration="calibrated on what was published: 3 % above")
    assert table(made(modelled=calibrated)).count("(model hls-pynq, calibrated on what was published: 3 % above)") == 1


def test_a_board_without_an_accelerator_has_no_modelled_numbers():
    assert parsed(made())["modelled"] is None
    assert "modelled" not in table(made())


# --- half precision ---

HALF = InHalf("onnxruntime 1", "random numbers of seed 0", (HalfOutput("y", 3.1e-3, 2e-2, ok=True),))


def test_what_a_build_found_of_half_precision_is_in_all_forms():
    made_report = made(half=HALF)
    assert parsed(made_report)["half_precision"]["outputs"] == [
        {"name": "y", "max_rel": 3.1e-3, "limit": 2e-2, "ok": True}
    ]
    assert "in half precision, y 3.1e-03 of the largest value off (limit 2e-02) from onnxruntime 1" in table(
        made_report
    )
    assert "Half precision when it was built, emulated" in measured.page(made_report).html()


def test_single_precision_has_no_such_figures():
    assert parsed(made())["half_precision"] is None
    assert "half precision" not in table(made())
    assert "Half precision" not in measured.page(made()).html()
