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
def bundle_copy(tiny, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_the_bill_is_valid_and_names_what_there_is(tiny):
    text = (tiny.folder / bundle.BILL).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    components = {component["name"]: component for component in bill["components"]}
    for name, record in tiny.manifest.files.items():
        assert components[name]["hashes"] == [{"alg": "SHA-256", "content": record.sha256}]
    assert components["apache-tvm"]["version"] == tiny.manifest.versions["tvm"]
    assert (components["apache-tvm"]["scope"], components["onnxruntime"]["scope"]) == ("required", "excluded")
    assert components["requirements.lock"]["hashes"][0]["content"] == files.sha256_file(made_of())
    assert "pytest" not in components  # what developers alone need took no part
    needs = {dependency["ref"]: dependency.get("dependsOn", []) for dependency in bill["dependencies"]}
    toolchain = next(reference for reference in needs if reference.startswith("pkg:pypi/edge-toolchain@"))
    assert components["onnxruntime"]["purl"] in needs[toolchain]


def made_of():
    return ROOT / "requirements.lock"


def test_the_statement_is_valid_and_says_how_it_was_made(tiny):
    document = json.loads((tiny.folder / bundle.PROVENANCE).read_text())
    read = json_format.ParseDict(document, statement_pb2.Statement())
    Statement(list(read.subject), read.predicate_type, document["predicate"]).validate()
    # ParseDict refuses fields that it does not know.
    provenance = json_format.ParseDict(document["predicate"], provenance_pb2.Provenance())
    assert {subject.name: subject.digest["sha256"] for subject in read.subject} == {
        "dense": tiny.digest,
        **{name: record.sha256 for name, record in tiny.manifest.files.items()},
    }
    built = provenance.build_definition
    assert built.external_parameters["command"] == tiny.manifest.command
    materials = {material.name: dict(material.digest).get("sha256") for material in built.resolved_dependencies}
    assert materials[tiny.manifest.model["origin"]] == tiny.manifest.model["sha256"]
    assert all(material.uri or material.digest for material in built.resolved_dependencies)


def test_they_are_the_same_bytes_each_time(tiny, tmp_path):
    inventories.save(tmp_path, tiny.manifest)
    assert [(tmp_path / name).read_bytes() for name in BOTH] == [(tiny.folder / name).read_bytes() for name in BOTH]


def test_they_come_back_out_of_a_package_and_leave_its_digest(tiny, bundle_copy, tmp_path):
    bundle.pack(tiny, tmp_path / "whole.tar")
    unpacked = bundle.unpack(tmp_path / "whole.tar", tmp_path / "whole")
    assert all((unpacked.folder / name).read_bytes() == (tiny.folder / name).read_bytes() for name in BOTH)
    for name in BOTH:
        (bundle_copy / name).unlink()
    assert bundle.load(bundle_copy).digest == unpacked.digest == tiny.digest


@pytest.mark.parametrize("name", BOTH)
def test_those_of_another_bundle_are_refused(tiny, bundle_copy, tmp_path, name):
    other = made.reweighted(tiny, tmp_path / "other", 5)
    shutil.copy(other.folder / name, bundle_copy / name)
    with pytest.raises(VerificationError, match=f"{name} in .* describes another bundle"):
        bundle.load(bundle_copy)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "[" * 100_000, '{"subject": []}', '{"metadata": 1, "subject": 1}']
)
def test_another_form_is_refused(bundle_copy, name, content):
    (bundle_copy / name).write_text(content)
    with pytest.raises(VerificationError, match=f"{name} in .* is not in a valid form"):
        bundle.load(bundle_copy)


@pytest.mark.parametrize("name", BOTH)
def test_one_without_an_end_is_not_read(bundle_copy, name):
    with (bundle_copy / name).open("wb") as file:
        file.truncate(inventories.AT_MOST + 1)
    with pytest.raises(VerificationError, match="has more than 4194304 bytes"):
        bundle.load(bundle_copy)


def test_a_bundle_without_them_says_so(bundle_copy):
    (bundle_copy / bundle.BILL).unlink()
    loaded = bundle.load(bundle_copy)
    with pytest.raises(InputError, match=r"the package of dense has no bill\.cdx\.json"):
        inventories.components(loaded.folder, loaded.manifest)
