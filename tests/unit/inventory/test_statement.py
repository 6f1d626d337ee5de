"""Statements of in-toto about how something was made."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2

from toolchain.inventory import Build, Component, statement


@pytest.mark.parametrize(
    "component", [Component("file", "a"), Component("library", "a", purl="pkg:generic/a", sha256="0" * 64)]
)
def test_a_statement_names_what_can_be_named(component):
    document = json.loads(statement({"x": "0" * 64}, Build("image", {}, {}, [component])))
    dependencies = document["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert [dependency["name"] for dependency in dependencies] == (["a"] if component.purl else [])


def test_it_has_the_form_of_slsa():
    build = Build(
        "image", {"asked": 1}, {"chosen": [True]}, [Component("file", "a", "1", sha256="0" * 64, notes={"b": "c"})]
    )
    document = json.loads(statement({"y": "1" * 64, "x": "0" * 64}, build))
    assert [subject["name"] for subject in document["subject"]] == ["x", "y"]
    read = json_format.ParseDict(document["predicate"], provenance_pb2.Provenance())
    assert read.build_definition.build_type == "pkg:pypi/edge-toolchain#image/v1"
    (material,) = read.build_definition.resolved_dependencies
    assert dict(material.annotations) == {"version": "1", "b": "c"}
