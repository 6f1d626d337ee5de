"""VEX documents for the releases that an advisory concerns."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.unit.inventory.test_affected import bill, package
from toolchain.errors import InputError
from toolchain.inventory import vex
from toolchain.inventory.affected import examine, parse_advisory

ONNX = parse_advisory("pkg:pypi/onnx")


def product(*components):
    return examine(ONNX, bill(*components), "bill")


def test_each_use_of_a_component_has_its_state():
    releases = {
        "a.tar": product(package("onnx", "1.16.0")),
        "b.tar": product(package("onnx", "1.15.0", required=False)),
    }
    document = vex.document("CVE-2026-1", releases)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document.decode()) is None
    entries = {entry["analysis"]["state"]: entry for entry in json.loads(document)["vulnerabilities"]}
    assert set(entries) == {"in_triage", "not_affected"}
    assert entries["not_affected"]["analysis"]["justification"] == "code_not_present"
    serial = releases["a.tar"].serial.removeprefix("urn:uuid:")
    assert entries["in_triage"]["affects"] == [{"ref": f"urn:cdx:{serial}#pkg%3Apypi%2Fonnx%401.16.0"}]
    assert {entry["id"] for entry in entries.values()} == {"CVE-2026-1"}


def test_it_depends_on_nothing_but_the_releases():
    releases = {"a.tar": product(package("onnx", "1.16.0"))}
    assert vex.document("CVE-2026-1", releases) == vex.document("CVE-2026-1", {"copy": releases["a.tar"]})
    assert "timestamp" not in json.loads(vex.document("CVE-2026-1", releases))["metadata"]


def test_an_advisory_without_releases_is_an_empty_document():
    assert "vulnerabilities" not in json.loads(vex.document("CVE-2026-1", {}))


def test_a_bill_without_a_serial_number_is_refused():
    without = replace(product(package("onnx", "1.16.0")), serial="")
    with pytest.raises(InputError, match=r"the bill of a\.tar cannot be referred to"):
        vex.document("CVE-2026-1", {"a.tar": without})
