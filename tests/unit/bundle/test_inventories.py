"""What a bundle says is in it and how it was made: valid by the standards' own schemas, and about this bundle alone."""

from __future__ import annotations

import json
import shutil

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement

from tests.support import bundles as made
from tests.support.paths import ROOT
from toolchain import bundle, files
from toolchain.bundle import inventories
from toolchain.errors import InputError, VerificationError

BOTH = (bundle.BILL, bundle.PROVENANCE)


@pytest.fixture
def copied(tiny, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_the_bill_is_valid_and_names_what_there_is(tiny):
    text = (tiny.folder / bundle.BILL).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    named = {one["name"]: one for one in found["components"]}
    for name, record in tiny.manifest.files.items():
        assert named[name]["hashes"] == [{"alg": "SHA-256", "content": record.sha256}]
    assert named["apache-tvm"]["version"] == tiny.manifest.versions["tvm"]
    assert (named["apache-tvm"]["scope"], named["onnxruntime"]["scope"]) == ("required", "excluded")
    assert named["requirements.lock"]["hashes"][0]["content"] == files.sha256_file(made_of())
    assert "pytest" not in named  # what developers alone need took no part
    needs = {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"]}
    toolchain = next(one for one in needs if one.startswith("pkg:pypi/edge-toolchain@"))
    assert named["onnxruntime"]["purl"] in needs[toolchain]


def made_of():
    return ROOT / "requirements.lock"


def test_the_statement_is_valid_and_says_how_it_was_made(tiny):
    found = json.loads((tiny.folder / bundle.PROVENANCE).read_text())
    read = json_format.ParseDict(found, statement_pb2.Statement())
    Statement(list(read.subject), read.predicate_type, found["predicate"]).validate()
    provenance = json_format.ParseDict(found["predicate"], provenance_pb2.Provenance())  # refuses what it does not know
    assert {one.name: one.digest["sha256"] for one in read.subject} == {
        "dense": tiny.digest,
        **{name: record.sha256 for name, record in tiny.manifest.files.items()},
    }
    built = provenance.build_definition
    assert built.external_parameters["command"] == tiny.manifest.command
    materials = {one.name: dict(one.digest).get("sha256") for one in built.resolved_dependencies}
    assert materials[tiny.manifest.model["origin"]] == tiny.manifest.model["sha256"]
    assert all(one.uri or one.digest for one in built.resolved_dependencies)


def test_they_are_the_same_bytes_each_time(tiny, tmp_path):
    inventories.save(tmp_path, tiny.manifest)
    assert [(tmp_path / name).read_bytes() for name in BOTH] == [(tiny.folder / name).read_bytes() for name in BOTH]


def test_they_come_back_out_of_a_package_and_leave_its_digest(tiny, copied, tmp_path):
    bundle.pack(tiny, tmp_path / "whole.tar")
    whole = bundle.unpack(tmp_path / "whole.tar", tmp_path / "whole")
    assert all((whole.folder / name).read_bytes() == (tiny.folder / name).read_bytes() for name in BOTH)
    for name in BOTH:
        (copied / name).unlink()
    assert bundle.load(copied).digest == whole.digest == tiny.digest


@pytest.mark.parametrize("name", BOTH)
def test_those_of_another_bundle_are_refused(tiny, copied, tmp_path, name):
    other = made.reweighted(tiny, tmp_path / "other", 5)
    shutil.copy(other.folder / name, copied / name)
    with pytest.raises(VerificationError, match=f"{name} in .* describes another bundle"):
        bundle.load(copied)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "[" * 100_000, '{"subject": []}', '{"metadata": 1, "subject": 1}']
)
def test_another_form_is_refused(copied, name, content):
    (copied / name).write_text(content)
    with pytest.raises(VerificationError, match=f"{name} in .* is not in a valid form"):
        bundle.load(copied)


@pytest.mark.parametrize("name", BOTH)
def test_one_without_an_end_is_not_read(copied, name):
    with (copied / name).open("wb") as file:
        file.truncate(inventories.AT_MOST + 1)
    with pytest.raises(VerificationError, match="has more than 4194304 bytes"):
        bundle.load(copied)


def test_a_bundle_without_them_says_so(copied):
    (copied / bundle.BILL).unlink()
    loaded = bundle.load(copied)
    with pytest.raises(InputError, match=r"the package of dense has no bill\.cdx\.json"):
        inventories.components(loaded.folder, loaded.manifest)
