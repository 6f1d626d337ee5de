"""What an image says is in it."""

from __future__ import annotations

import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2

from toolchain.containers import images
from toolchain.errors import VerificationError

LABELS = {
    "edge-toolchain.triple": "aarch64-linux-gnu",
    "edge-toolchain.compiler": "g++",
    "edge-toolchain.arguments": '{"BASE_IMAGE": "debian"}',
    "edge-toolchain.sources": "ab" * 32,
}
LIBC = "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=arm64"
LIST = {
    "packages": [
        {"name": "edge-toolchain/mali", "downloadLocation": "NOASSERTION"},
        {
            "name": "libc6",
            "versionInfo": "2.36-9+deb12u10",
            "externalRefs": [
                {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": LIBC}
            ],
        },
    ]
}


def described(listed: str = json.dumps(LIST)) -> images.ImageInventory:
    return images.inventory_of("edge-toolchain/mali:latest", "cd" * 32, LABELS, listed)


def test_both_documents_are_valid_and_name_the_image():
    inventory = described()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(inventory.bill.decode()) is None
    bill, statement = json.loads(inventory.bill), json.loads(inventory.provenance)
    assert bill["metadata"]["component"]["hashes"][0]["content"] == "cd" * 32
    assert [(component["name"], component["version"]) for component in bill["components"]] == [
        ("libc6", "2.36-9+deb12u10")
    ]
    assert statement["subject"] == [{"name": "edge-toolchain/mali:latest", "digest": {"sha256": "cd" * 32}}]
    read = json_format.ParseDict(statement["predicate"], provenance_pb2.Provenance()).build_definition
    assert read.external_parameters["arguments"]["BASE_IMAGE"] == "debian"
    assert [dependency.name for dependency in read.resolved_dependencies] == ["sources", "libc6"]
    assert described() == inventory


@pytest.mark.parametrize("listed", ["", "[]", '{"packages": 1}', "[" * 100_000, '{"packages": [{"versionInfo": "1"}]}'])
def test_another_list_is_refused(listed):
    with pytest.raises(VerificationError, match="has no valid list of its contents"):
        described(listed)
