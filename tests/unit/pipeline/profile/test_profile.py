"""What a profile says of itself: its document, its warnings, and its trace."""

import json
from dataclasses import replace

import pytest

from toolchain.pipeline import profile as profiling


def test_the_document_is_json_and_says_what_the_peak_was_measured_with(profile):
    document = json.loads(json.dumps(profile.document()))
    assert document["bundle_digest"] == "sha256:" + "ab" * 32
    assert (document["hook_share"], document["sum_share"]) == (pytest.approx(0.005), pytest.approx(0.95))
    assert "NEON" in document["peak"]["method"]
    assert [row["kernel"] for row in document["rows"]] == ["conv", "odd<b>", ""]
    assert "typical" not in document


def test_the_trace_is_a_run_in_microseconds(profile):
    events = json.loads(profile.trace())["traceEvents"]
    assert [(event["cat"], event["ts"], event["dur"]) for event in events] == [
        ("machine", 0, 1.0),
        ("kernel", 1.0, 600.0),
        ("kernel", 601.0, 300.0),
    ]
    assert events[1]["args"]["operator"] == "conv2d"


def test_a_calm_profile_has_no_warning(profile):
    assert profiling._warnings(profile) == ()


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"emulated": True}, "emulated"),
        ({"waits": True}, "could not overlap"),
        ({"runs": 3}, "only 3 runs"),
        ({"other_runs": 2}, "call other kernels"),
        ({"watched_ms": 1.03}, "3.0% longer"),
        ({"sum_ms": 0.9}, "90.0%"),
        ({"sum_ms": 1.02}, "102.0%"),
    ],
)
def test_what_is_doubtful_is_told(profile, change, phrase):
    (warning,) = profiling._warnings(replace(profile, **change))
    assert phrase in warning


def test_a_busy_device_and_a_modelled_accelerator_are_told(profile, doubtful):
    busy = replace(profile, before=replace(profile.before, busy=0.5))
    assert "50%" in profiling._warnings(busy)[0]
    assert any("modelled" in text for text in profiling._warnings(doubtful))
