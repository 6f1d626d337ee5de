"""A user whose mask keeps nothing back: what the toolchain leaves, here and on a device, is nobody else's to write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support import bundles, deploy_client, nets
from tests.support.commands import done
from tests.support.tunings import record, workload
from toolchain import files
from toolchain.records import RecordFile


@pytest.fixture(autouse=True)
def open_to_all(tmp_path, monkeypatch):
    """As some init systems start what they start; and folders of this test's own."""
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(files.cache_root()))
    monkeypatch.setenv("HOME", str(tmp_path))
    before = os.umask(0)
    yield
    os.umask(before)


def writable(folder):
    """List what everybody may write."""
    paths = [path for path in folder.rglob("*") if not path.is_symlink()]
    return [path for path in paths if path.stat().st_mode & stat.S_IWOTH]


def test_the_files_of_commands(tmp_path, native):
    model, out, root = Path(nets.save(nets.relu((2, 3)), tmp_path)), tmp_path / "out", tmp_path / "device"
    out.mkdir(mode=0o755)
    model.chmod(0o644)
    done("build", model, "-o", out / "bundle")
    done("package", out / "bundle", "-o", out / "net.oci.tar")
    reports = ("--json", out / "report.json", "--junit", out / "report.xml")
    done("deploy", out / "net.oci.tar", "--root", root, "--budget", 0, "-o", out / "kept", *reports)
    done("package", out / "net.oci.tar", "--as", "offline", "-o", f"{out}/update/")
    done("bench", "--root", root, "--budget", 0)
    RecordFile(out / "records" / "local.jsonl").append([workload(), record()])
    assert len(list(out.rglob("*"))) > 10
    assert not writable(tmp_path)


def test_the_store_of_a_device(tiny, program, tmp_path):
    """By the pipeline alone, whose process has the mask that it was given."""
    root = tmp_path / "device"
    deploy_client.plain_deploy(tiny, program, root)
    assert bundles.whole_release(root) == tiny.digest
    assert not writable(root)
