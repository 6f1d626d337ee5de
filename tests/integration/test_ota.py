"""Updates by way of OTA systems: the real Mender client, alone on its device, and the real `rauc`."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import bundles, updates
from tests.support.commands import toolchain
from tests.support.parts import require

MODULES, CONFIGURATION = Path("/usr/share/mender/modules/v3"), Path("/etc/mender")
# In a mount namespace of its own: nothing of this machine's Mender is touched.
_MENDER = f"""
mount --bind "$1/modules" {MODULES}
mount --bind "$1/etc" {CONFIGURATION}
data=$1/data
shift
exec mender --data "$data" --no-syslog "$@"
"""


@dataclass(frozen=True)
class Mender:
    """A device with a Mender client, and its store."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "store"

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        argv = ["unshare", "--mount", "sh", "-c", _MENDER, "sh", str(self.folder), *map(str, arguments)]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def mender(tiny, program, tmp_path):
    require("the Mender client", "mender-client", present=shutil.which("mender") is not None and MODULES.is_dir())
    mounts = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
    require("mount namespaces", "root", present=os.geteuid() == 0 and mounts)
    for name in ("modules", "etc", "data"):
        (tmp_path / name).mkdir()
    module = (
        updates.written(tiny, program, tmp_path / "with", folder=True, kind="mender").path.parent / "edge-toolchain"
    )
    shutil.copy(module, tmp_path / "modules")
    (tmp_path / "etc" / "edge-toolchain").write_text(f"--root {tmp_path}/store --threads 1\n")
    (tmp_path / "etc" / "mender.conf").write_text("{}")
    (tmp_path / "etc" / "artifact_info").write_text("artifact_name=factory\n")
    (tmp_path / "data" / "device_type").write_text("device_type=local\n")
    return Mender(tmp_path)


@pytest.fixture
def artifacts(tiny, bulky, program, tmp_path):
    return [
        updates.written(release, program, tmp_path / f"{name}.mender", kind="mender").path
        for name, release in (("tiny", tiny), ("bulky", bulky[0]))
    ]


def test_mender_installs_commits_and_rolls_back(mender, artifacts, tiny, bulky):
    assert mender("install", artifacts[0]).returncode == 0
    assert bundles.whole_release(mender.root) == tiny.digest
    assert mender("commit").returncode == 0
    assert f"dense-{tiny.digest[:16]}" in mender("show-artifact").stdout
    assert mender("install", artifacts[1]).returncode == 0
    assert bundles.whole_release(mender.root) == bulky[0].digest
    assert mender("rollback").returncode == 0
    assert bundles.whole_release(mender.root) == tiny.digest
    assert f"dense-{tiny.digest[:16]}" in mender("show-artifact").stdout


def test_what_was_there_before_is_not_rolled_back(mender, artifacts, tiny):
    for _ in range(2):
        assert mender("install", artifacts[0]).returncode == 0
        assert mender("commit").returncode == 0
    assert mender("install", artifacts[0]).returncode == 0
    assert mender("rollback").returncode == 0
    assert bundles.whole_release(mender.root) == tiny.digest


def test_mender_applies_an_update_as_the_user_whose_store_it_is(mender, artifacts, tiny):
    """Mender keeps its files where only root can read them."""
    for folder in (mender.folder, *mender.folder.parents):
        if folder.stat().st_uid == 0 and folder != Path("/tmp"):  # noqa: S108 - pytest's own folders are closed
            folder.chmod(folder.stat().st_mode | 0o055)
    home = mender.folder / "home"
    home.mkdir()
    shutil.chown(home, "nobody")
    (mender.folder / "etc" / "edge-toolchain").write_text(f"--root {home}/store --threads 1 --user nobody\n")
    completed = mender("install", artifacts[0])
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert bundles.whole_release(home / "store") == tiny.digest
    assert {path.owner() for path in home.rglob("*")} == {"nobody"}
    assert list(home.iterdir()) == [home / "store"]


def test_mender_is_told_of_a_failure(mender, artifacts, program, bulky, tmp_path):
    assert mender("install", artifacts[0]).returncode == 0
    assert mender("commit").returncode == 0
    before = bundles.whole_release(mender.root)
    unfit = bundles.variant(bulky[0], tmp_path / "unfit", {}, cpu_features=("no-such-feature",))
    broken = bundles.variant(bulky[0], tmp_path / "broken", {"model.so": b"no library"})
    for release in (unfit, broken):
        path = updates.written(release, program, tmp_path / "wrong.mender", kind="mender").path
        assert mender("install", path).returncode != 0
        assert bundles.whole_release(mender.root) == before


def test_mender_refuses_an_artifact_for_another_device(mender, tiny, program, tmp_path):
    path = updates.written(tiny, program, tmp_path / "other.mender", kind="mender", compatible="other").path
    completed = mender("install", path)
    assert completed.returncode != 0
    assert bundles.whole_release(mender.root) is None


def test_menders_own_tool_validates_what_the_command_writes(tiny, tmp_path):
    require("mender-artifact", "mender-artifact", present=shutil.which("mender-artifact") is not None)
    path = tmp_path / "update.mender"
    outcome = toolchain("package", tiny.folder, "--as", "mender", "--compatible", "raspberrypi4-64", "-o", path)
    assert outcome.code == 0, outcome.err
    subprocess.run(["mender-artifact", "validate", path], check=True, capture_output=True)
    description = subprocess.run(["mender-artifact", "read", path], check=True, capture_output=True, text=True).stdout
    assert "raspberrypi4-64" in description
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert subprocess.run(["mender-artifact", "validate", path], check=False, capture_output=True).returncode != 0


def test_rauc_bundles_what_the_command_writes(tiny, tmp_path):
    """RAUC signs and checks it; its handler is called as RAUC calls it, since a device with slots is none of ours."""
    for tool, package in (("rauc", "rauc"), ("mksquashfs", "squashfs-tools"), ("openssl", "openssl")):
        require(tool, package, present=shutil.which(tool) is not None)
    outcome = toolchain("package", tiny.folder, "--as", "rauc", "-o", f"{tmp_path}/input/")
    assert outcome.code == 0, outcome.err
    key, certificate, bundle = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "update.raucb"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "2"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    sign = ["rauc", "bundle", f"--cert={certificate}", f"--key={key}", tmp_path / "input", bundle]
    subprocess.run(sign, check=True, capture_output=True)
    extract = ["rauc", "extract", f"--keyring={certificate}", bundle, tmp_path / "extracted"]
    subprocess.run(extract, check=True, capture_output=True)
    environment = {**os.environ, "RAUC_BUNDLE_MOUNT_POINT": str(tmp_path / "extracted"), "HOME": str(tmp_path)}
    completed = subprocess.run(
        [tmp_path / "extracted" / "handler.sh"], env=environment, check=False, capture_output=True
    )
    assert completed.returncode == 0, completed.stderr
    assert bundles.whole_release(tmp_path / ".local/share/edge-toolchain") == tiny.digest
