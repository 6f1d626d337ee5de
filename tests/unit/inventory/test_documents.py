"""Bills of materials in CycloneDX."""

from __future__ import annotations

import json

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from toolchain.inventory import Component, bill

WHOLE = Component("container", "image", "1", sha256="ab" * 32, notes={"arch": "arm64"})
LIBC = Component("library", "libc6", "2.36-9+deb12u10", "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10")
GCC = Component("library", "g++", "12", "pkg:deb/debian/g%2B%2B@12", needs=(LIBC.reference, "pkg:deb/debian/none@1"))


def test_any_parts_make_a_valid_bill():
    made = bill(WHOLE, [GCC, LIBC, Component("file", "README")])
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(made.decode()) is None
    found = json.loads(made)
    assert [one["purl"] for one in found["components"] if "purl" in one] == [GCC.purl, LIBC.purl]
    needs = {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"]}
    assert needs[GCC.reference] == [LIBC.reference]
    assert found["metadata"]["component"]["properties"] == [{"name": "edge-toolchain:arch", "value": "arm64"}]


def test_it_says_nothing_of_the_time_nor_of_the_order():
    made = bill(WHOLE, [GCC, LIBC])
    assert made == bill(WHOLE, [LIBC, GCC])
    assert "timestamp" not in json.loads(made)["metadata"]


def test_other_contents_have_another_serial_number():
    numbers = {json.loads(bill(Component("file", "x", sha256=one * 64), []))["serialNumber"] for one in "abc"}
    assert len(numbers) == 3
