"""A package as a stranger's tool reads it: skopeo, from the containers project."""

from __future__ import annotations

import json
import shutil
import subprocess

from tests.support.parts import require
from toolchain import bundle


def skopeo(*arguments):
    completed = subprocess.run(["skopeo", "--insecure-policy", *arguments], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_skopeo_reads_a_package_and_copies_every_blob(tiny, tmp_path):
    require("another reader of OCI archives", "skopeo", shutil.which("skopeo") is not None)
    package = tmp_path / "tiny.oci.tar"
    bundle.pack(tiny, package)
    source = f"oci-archive:{package}:{tiny.manifest.name}"
    report = json.loads(skopeo("inspect", "--raw", source))
    assert report["artifactType"] == bundle.ARTIFACT
    (tmp_path / "copy").mkdir()
    skopeo("copy", source, f"dir:{tmp_path}/copy")
    copied = {path.name for path in (tmp_path / "copy").iterdir()}
    assert {record.sha256 for record in tiny.manifest.files.values()} <= copied
