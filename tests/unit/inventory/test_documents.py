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
    text = bill(WHOLE, [GCC, LIBC, Component("file", "README")])
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.decode()) is None
    document = json.loads(text)
    assert [component["purl"] for component in document["components"] if "purl" in component] == [GCC.purl, LIBC.purl]
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in document["dependencies"]}
    assert needs[GCC.reference] == [LIBC.reference]
    assert document["metadata"]["component"]["properties"] == [{"name": "edge-toolchain:arch", "value": "arm64"}]


def test_it_says_nothing_of_the_time_nor_of_the_order():
    text = bill(WHOLE, [GCC, LIBC])
    assert text == bill(WHOLE, [LIBC, GCC])
    assert "timestamp" not in json.loads(text)["metadata"]


def test_other_contents_have_another_serial_number():
    numbers = {json.loads(bill(Component("file", "x", sha256=digit * 64), []))["serialNumber"] for digit in "abc"}
    assert len(numbers) == 3
