"""Artifacts of Mender as their format says; tests/integration/test_ota.py gives them to Mender."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest

from tests.support import bundles, updates
from toolchain.errors import InputError


@pytest.fixture
def artifact(tiny, program, tmp_path):
    artifact = updates.written(tiny, program, tmp_path / "one.mender", kind="mender", compatible="raspberrypi4-64")
    with tarfile.open(artifact.path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def test_its_parts_are_in_order_and_summed(artifact):
    assert list(artifact) == ["version", "manifest", "header.tar", "data/0000.tar"]
    assert json.loads(artifact["version"]) == {"format": "mender", "version": 3}
    (payload,) = members(artifact["data/0000.tar"]).values()
    sums = dict(reversed(line.split("  ")) for line in artifact["manifest"].decode().splitlines())
    assert sums == {
        "data/0000/update.run": hashlib.sha256(payload).hexdigest(),
        "header.tar": hashlib.sha256(artifact["header.tar"]).hexdigest(),
        "version": hashlib.sha256(artifact["version"]).hexdigest(),
    }


def test_its_header_names_the_release_and_the_device(artifact, tiny):
    header = members(artifact["header.tar"])
    assert list(header) == ["header-info", "headers/0000/type-info"]
    info, kind = (json.loads(text) for text in header.values())
    assert info["artifact_depends"] == {"device_type": ["raspberrypi4-64"]}
    assert info["artifact_provides"]["artifact_name"] == f"dense-{tiny.digest[:16]}"
    assert info["payloads"] == [{"type": kind["type"]}] == [{"type": "edge-toolchain"}]


def test_its_name_has_no_spaces(tiny, program, tmp_path):
    package = bundles.renamed(tiny, "a net\n(of mine)")
    artifact = updates.written(package, program, tmp_path / "one.mender", kind="mender")
    assert f'"artifact_name":"a-net--of-mine--{package.digest[:16]}"'.encode() in artifact.path.read_bytes()


@pytest.mark.parametrize("folder", [False, True])
def test_only_an_older_artifact_gives_way(tiny, program, tmp_path, folder):
    target = tmp_path / "target"
    first = updates.written(tiny, program, target, folder=folder, kind="mender")
    assert updates.written(tiny, program, target, folder=folder, kind="mender") == first
    if folder:
        (target / "notes.txt").touch()
    else:
        target.write_text("something else")
    with pytest.raises(InputError, match="is not replaced"):
        updates.written(tiny, program, target, folder=folder, kind="mender")
