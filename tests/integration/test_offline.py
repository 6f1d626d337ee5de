"""Updates that a device applies without a host: real shells and tools, the real runner, the very store of a deploy.

TOOLCHAIN_OFFLINE_KILLS is the number of kills of each way, 4 by default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pwd
import random
import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.integration.test_full_disk import disk, fill, filled
from tests.support import bundles, deploy_client, deploys, disks, ranked_nets, stores, updates
from tests.support.applications import Place
from tests.support.commands import toolchain
from tests.support.parts import require
from tests.support.updates import SHELLS, Device
from toolchain import bundle as bundling
from toolchain import rankings
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.devices import Application
from toolchain.errors import BusyError, VerificationError
from toolchain.shell import LocalShell
from toolchain.tensors import ROUNDING, Limit

__all__ = ["disk"]

KILLS = int(os.environ.get("TOOLCHAIN_OFFLINE_KILLS", "4"))
USAGE, DEVICE, VERIFICATION, BUSY, INTERRUPTED = 2, 4, 5, 75, 130


@pytest.fixture(scope="module")
def tiny_run(tiny, program, tmp_path_factory):
    return updates.written(tiny, program, tmp_path_factory.mktemp("update") / "tiny.run").path


@pytest.fixture(scope="module")
def bulky_runs(bulky, program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("updates")
    return tuple(updates.written(release, program, folder / f"{n}.run").path for n, release in enumerate(bulky))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "device"


def everything(root: Path) -> dict[str, object]:
    """Return what is in a store, but for its lock, and when its files were made."""
    paths = (path for path in root.rglob("*") if path.name not in {"lock", "lock.within"})
    return {
        str(path.relative_to(root)): path.readlink() if path.is_symlink() else path.is_file() and path.stat().st_mode
        for path in paths
    }


# --- the same store --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deployed(tiny, program, tmp_path_factory):
    """What is in the store that a deploy makes."""
    root = tmp_path_factory.mktemp("deployed") / "device"
    deploy_client.plain_deploy(tiny, program, root)
    return everything(root)


@pytest.mark.parametrize(
    ("shell", "kind"), [*((shell, "file") for shell in SHELLS), ("dash", "folder"), ("mksh", "folder")]
)
def test_every_shell_makes_the_store_of_a_deploy(shell, kind, tiny, tiny_run, program, deployed, tmp_path, root):
    device = updates.device(shell, tmp_path)
    script = tiny_run
    if kind == "folder":
        script = updates.written(tiny, program, tmp_path / "update", folder=True).path
    looked = device.apply(script, "--check", "--root", root)
    assert (looked.returncode, root.exists()) == (0, False), looked.stderr
    completed = device.apply(script, "--root", root, "--json")
    assert completed.returncode == 0, completed.stderr
    report = json.loads(completed.stdout)
    assert (report["result"], report["release"], report["root"]) == ("applied", f"sha256:{tiny.digest}", str(root))
    assert report["outputs"]["max_rel"] <= report["outputs"]["tolerance"]
    assert bundles.whole_release(root) == tiny.digest
    assert everything(root) == deployed
    again = device.apply(script, "--root", root)
    assert (again.returncode, "already current" in again.stderr) == (0, True), again.stderr
    assert everything(root) == deployed


def test_a_host_goes_on_where_an_update_was_applied(tiny, program, bulky, bulky_runs, tiny_run, root):
    """Nothing is sent again, and there is something to go back to."""
    for script, release in ((tiny_run, tiny), (bulky_runs[0], bulky[0])):
        completed = Device().apply(script, "--root", root, "--keep", 2)
        assert completed.returncode == 0, completed.stderr
        assert bundles.whole_release(root) == release.digest
    shell = LocalShell()
    completed = deploys.deploy(bulky[0], program, shell, Store(shell, str(root)))
    assert (completed.changed, completed.transfer.blobs_sent) == (False, 0)
    assert toolchain("rollback", "--root", root).code == 0
    assert bundles.whole_release(root) == tiny.digest
    listed = json.loads(toolchain("status", "--releases", "--root", root, "--json").out)
    assert [entry["digest"] for entry in listed] == [tiny.digest, bulky[0].digest]
    assert toolchain("bench", "--root", root, "--budget", 0).code == 0
    status = json.loads(toolchain("status", "--root", root, "--json").out)
    assert status["current"]["digest"] == tiny.digest


def test_what_was_deployed_is_already_current(tiny, program, tiny_run, root):
    deploy_client.plain_deploy(tiny, program, root)
    completed = Device().apply(tiny_run, "--root", root, "--json")
    report = json.loads(completed.stdout)
    assert (report["result"], report["unpacked_kib"]) == ("current", 0)


def test_only_so_many_activations_stay(bulky, bulky_runs, root):
    for index in range(3):
        assert Device().apply(bulky_runs[index % 2], "--root", root, "--keep", 1).returncode == 0
    assert [path.name for path in (root / "generations").iterdir()] == ["3"]
    assert [path.name for path in (root / "releases").iterdir()] == [bulky[0].digest]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_release_on_trial_is_taken_back_first(shell, tiny, tiny_run, bulky, bulky_runs, tmp_path, root):
    """As by a deploy: whoever tried it with its application is gone, and the lock with it."""
    device = updates.device(shell, tmp_path)
    device = device.with_tool(tmp_path / "more", "sh", f'exec {shlex.join(device.shell)} "$@"')
    for script in (bulky_runs[0], tiny_run):
        assert device.apply(script, "--root", root).returncode == 0
    (root / "trial").write_text(f"2 1 0\nreadlink {root}/current >{tmp_path}/restarted\n")
    completed = device.apply(tiny_run, "--root", root, "--json")
    assert "the release was taken back first" in completed.stderr
    assert json.loads(completed.stdout)["result"] == "applied"
    assert (tmp_path / "restarted").read_text() == "generations/1\n"
    assert not (root / "trial").exists()
    assert bundles.whole_release(root) == tiny.digest


def test_a_damaged_blob_is_mended(tiny, tiny_run, root):
    assert Device().apply(tiny_run, "--root", root).returncode == 0
    params = root / "current" / bundling.PARAMS
    params.chmod(0o644)
    params.write_bytes(b"x" + params.read_bytes()[1:])
    completed = Device().apply(tiny_run, "--root", root)
    assert (completed.returncode, "already current" in completed.stderr) == (0, True), completed.stderr
    assert bundles.whole_release(root) == tiny.digest


def test_the_boards_root_is_the_logins_home(tiny, tiny_run, tmp_path):
    device = Device(environment={**os.environ, "HOME": str(tmp_path)})
    assert device.apply(tiny_run).returncode == 0
    assert bundles.whole_release(tmp_path / ".local/share/edge-toolchain") == tiny.digest
    homeless = {name: value for name, value in os.environ.items() if name != "HOME"}
    completed = Device(environment=homeless).apply(tiny_run)
    assert (completed.returncode, "choose another folder with --root" in completed.stderr) == (USAGE, True)


def test_an_update_is_taken_back(tiny, bulky, tiny_run, bulky_runs, root):
    refused(Device().apply(tiny_run, "--root", root, "--rollback", "--keep", "x"), USAGE)
    assert Device().apply(tiny_run, "--root", root).returncode == 0
    refused(Device().apply(tiny_run, "--root", root, "--rollback"), DEVICE, "there is no previous release")
    completed = Device().apply(bulky_runs[0], "--root", root, "--json")
    assert json.loads(completed.stdout)["before"] == f"sha256:{tiny.digest}"
    for result in ("back", "other"):
        completed = Device().apply(bulky_runs[0], "--root", root, "--rollback", "--json")
        assert (completed.returncode, json.loads(completed.stdout)["result"]) == (0, result), completed.stderr
        assert bundles.whole_release(root) == tiny.digest


# --- the application -------------------------------------------------------------------------------------------------


@pytest.fixture
def application(tmp_path, root):
    release = Place(tmp_path / "application", root).put()
    yield release
    release.end()


@pytest.fixture
def named_run(tiny, program, application, tmp_path):
    """Return a function that exports an update of a name, which decides whether the application is well on it."""

    def export(name, within="20s"):
        release = bundles.variant(tiny, tmp_path / name, {}, name=name)
        run = Application(restart=application.restart, health=application.health, within=within)
        return updates.written(release, program, tmp_path / f"{name}.run", run=run).path, release.digest

    return export


@pytest.mark.parametrize("shell", ["dash", "busybox", "mksh"])
def test_the_application_follows_an_update(shell, named_run, application, tmp_path, root):
    device = updates.device(shell, tmp_path)
    device = Device(device.shell, {**device.environment, "PATH": f"{device.environment['PATH']}:{os.environ['PATH']}"})
    (first, first_digest), (second, second_digest) = named_run("first"), named_run("second")
    bad, _ = named_run("mute", "2s")
    for script, result, digest in (
        (first, "applied", first_digest),
        (first, "current", first_digest),
        (second, "applied", second_digest),
    ):
        completed = device.apply(script, "--root", root, "--json")
        assert (completed.returncode, json.loads(completed.stdout)["result"]) == (0, result), completed.stderr
        assert application.running()[1] == digest
    refused(
        device.apply(bad, "--root", root), VERIFICATION, "did not become healthy within 2 s",
        "generation 2 is current again", "the application is healthy there", "the model is not loaded",
    )  # fmt: skip
    assert application.runs(second_digest, 10)
    assert bundles.whole_release(root) == second_digest
    completed = device.apply(second, "--root", root, "--rollback")
    assert completed.returncode == 0, completed.stderr
    assert application.running()[1] == first_digest
    assert not (root / "trial").exists()


def test_the_first_update_ever_leaves_nothing_running(named_run, application, root):
    bad, _ = named_run("mute", "2s")
    refused(Device().apply(bad, "--root", root), VERIFICATION, "there was no previous release")
    assert (bundles.whole_release(root), application.running()) == (None, (0, ""))


def test_the_command_takes_the_application_of_a_device(tiny, application, tmp_path, root):
    release = bundles.variant(tiny, tmp_path / "made", {}, board="x86_64")
    (tmp_path / "devices.toml").write_text(
        f'[devices.cam]\nboard = "x86_64"\nhost = "cam"\nroot = "{root}"\n'
        f'[devices.cam.run]\nrestart = "{application.restart}"\nhealth = "{application.health}"\n'
    )
    command = ("package", release.folder, "-o", tmp_path / "cam.run", "--devices", tmp_path / "devices.toml")
    outcome = toolchain(*command, "--host", "can")
    assert (outcome.code, "did you mean cam?" in outcome.err) == (USAGE, True), outcome.err
    assert toolchain(*command, "--host", "cam").code == 0
    completed = Device().apply(tmp_path / "cam.run")
    assert completed.returncode == 0, completed.stderr
    assert (bundles.whole_release(root), application.running()[1]) == (release.digest, release.digest)


def test_a_trial_goes_on_where_its_update_is_killed(named_run, application, root):
    """Until it has ended the lock is taken; then the device runs a release on which the application is well."""
    first, digest = named_run("first")
    assert Device().apply(first, "--root", root).returncode == 0
    bad, _ = named_run("mute", "4s")
    with Device().start(bad, "--root", root) as process:
        assert stores.soon((root / "trial").exists, 30)
        process.kill()
    refused(Device().apply(first, "--root", root), BUSY, "offline update")
    assert stores.soon(lambda: not (root / "trial").exists() and is_free(root), 60)
    assert application.runs(digest, 10)
    assert bundles.whole_release(root) == digest


def test_a_trial_that_broke_off_is_taken_back_first(named_run, tiny_run, application, root):
    first, digest = named_run("first")
    for script in (first, named_run("second")[0]):
        assert Device().apply(script, "--root", root).returncode == 0
    (root / "trial").write_text(f"2 1 1700000000\n{application.restart}\n")
    completed = Device().apply(tiny_run, "--root", root, "--rollback")
    assert "the release was taken back first" in completed.stderr
    assert bundles.whole_release(root) == digest
    assert application.runs(digest, 10)


# --- what does not fit -----------------------------------------------------------------------------------------------


def refused(completed: subprocess.CompletedProcess[str], code: int, *arguments: str) -> None:
    assert completed.returncode == code, completed.stderr
    assert "error: " in completed.stderr
    for text in arguments:
        assert text in completed.stderr


UNFIT = {
    "another machine": ("uname", 'echo "mips"', VERIFICATION, "is for x86_64, but this device is mips"),
    "an old C library": ("getconf", "echo glibc 2.9", VERIFICATION, "this device has glibc 2.9"),
    "musl": ("getconf", 'echo "musl libc (x86_64)"', VERIFICATION, "this device has musl"),
    "no musl": ("getconf", "echo glibc 2.36", VERIFICATION, "this device has glibc 2.36, but the update is for musl"),
    "little space": ("df", "echo Filesystem; echo /dev/sd 1 1 500 1% /", DEVICE, "0.4 MB free, but"),
}


@pytest.fixture
def for_musl(tiny, program, tmp_path):
    """An update for musl, by what it says; it gets no further on this machine."""
    return updates.written(tiny, dataclasses.replace(program, musl=True), tmp_path / "musl.run").path


def test_an_update_for_musl(for_musl, tmp_path, root):
    device = Device().with_tool(tmp_path / "tools", "getconf", 'echo "musl libc (x86_64)"')
    completed = device.apply(for_musl, "--root", root)
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("case", UNFIT)
@pytest.mark.parametrize("check", [(), ("--check",)])
def test_a_device_that_it_does_not_fit_is_left_alone(case, check, tiny_run, for_musl, tmp_path, root):
    tool, text, code, texts = UNFIT[case]
    device = Device().with_tool(tmp_path / "tools", tool, text)
    script = for_musl if case == "no musl" else tiny_run
    completed = device.apply(script, "--root", root, "--json", *check)
    refused(completed, code, texts)
    assert json.loads(completed.stdout)["error"]["exit_code"] == code
    assert bundles.whole_release(root) is None


def test_a_cpu_without_a_feature_is_refused(tiny, program, tmp_path, root):
    release = bundles.variant(tiny, tmp_path / "made", {}, cpu_features=("fpu", "no-such-feature"))
    script = updates.written(release, program, tmp_path / "update.run").path
    refused(Device().apply(script, "--root", root), VERIFICATION, "support no-such-feature")
    assert not root.exists()


@pytest.mark.parametrize("tool", ["flock", "readlink", "head", "sha256sum"])
def test_a_missing_tool_is_named(tool, tiny_run, tmp_path, root):
    device = updates.device("busybox", tmp_path)
    (tmp_path / "busybox-tools" / tool).unlink()
    # busybox's own shell runs its own tools whatever PATH says.
    completed = Device(("/usr/bin/dash",), device.environment).apply(tiny_run, "--root", root)
    refused(completed, DEVICE, f"this device lacks {tool}")
    assert not root.exists()


def test_other_outputs_than_the_references_are_refused(tiny, program, bulky, bulky_runs, tmp_path, root):
    """The device keeps the release that it had, unless whoever is there sets another limit."""
    assert Device().apply(bulky_runs[0], "--root", root).returncode == 0
    reference = bundling.Reference.read(tiny.reference)
    release = bundles.variant(tiny, tmp_path / "made", {})
    wrong = {name: value * np.float32(1.01) for name, value in reference.outputs.items()}
    bundling.Reference("a wrong one", reference.inputs, wrong).save(release.folder)
    script = updates.written(release, program, tmp_path / "update.run").path
    refused(Device().apply(script, "--root", root), VERIFICATION, "from the reference", "0.0099")
    assert bundles.whole_release(root) == bulky[0].digest
    assert list((root / "run").iterdir()) == []
    completed = Device().apply(script, "--root", root, "--tolerance", "0.1")
    assert completed.returncode == 0, completed.stderr
    assert bundles.whole_release(root) == tiny.digest


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A detector that ends in TopK, with two rows of nearly equal scores that the device has in the other order."""
    folder = tmp_path_factory.mktemp("head")
    release = bundles.of_model(ranked_nets.detector(), folder, _near_equal_scene())
    return release, bundling.Reference.read(release.reference)


def _near_equal_scene():
    logits = np.full((1, ranked_nets.ANCHORS, ranked_nets.CLASSES), -4, np.float32)
    logits[0, :, 0] = np.linspace(3, -3, ranked_nets.ANCHORS)
    logits[0, 1, 0] = np.nextafter(logits[0, 0, 0], np.float32(0))
    return {"logits": logits, "boxes": np.random.default_rng(0).random((1, ranked_nets.ANCHORS, 4), np.float32)}


@pytest.mark.parametrize(
    ("order", "fault", "ok"),
    [
        pytest.param((0, 1), 0.0, True, id="as the reference"),
        pytest.param((1, 0), 0.0, True, id="nearly equal scores"),
        pytest.param((1, 0), 0.05, False, id="a wrong box among them"),
        pytest.param((2, 0), 0.0, False, id="scores apart"),
    ],
)
def test_rows_in_another_order_are_judged_as_by_a_deploy(head, program, tmp_path, root, order, fault, ok):
    """The reference has rows in an order that another program may find: the device's own check says so, too."""
    built, reference = head
    release = bundles.variant(built, tmp_path / "made", {})
    rows = reference.outputs["found"].copy()
    first, second = order
    rows[0, sorted(order)] = rows[0, [first, second]]
    rows[0, 0, 0] += np.float32(fault)
    (ranking,) = reference.rankings
    bundling.Reference("another order", reference.inputs, {"found": rows}, rankings=(ranking,)).save(release.folder)
    script = updates.written(release, program, tmp_path / "update.run").path
    completed = Device().apply(script, "--root", root)
    assert (completed.returncode == 0) is ok, completed.stderr
    if not ok:
        refused(completed, VERIFICATION, "from the reference")
    by_host = rankings.compare(reference.outputs, {"found": rows}, (ranking,))
    assert by_host.ok is ok


def test_an_output_has_the_limit_of_its_own(tiny, program, tmp_path, root):
    reference = bundling.Reference.read(tiny.reference)
    apart = {name: value * np.float32(1.01) for name, value in reference.outputs.items()}
    for value, code in ((5e-3, VERIFICATION), (2e-2, 0)):
        release = bundles.variant(tiny, tmp_path / f"made-{code}", {})
        limits = {name: Limit(value, ROUNDING) for name in apart}
        bundling.Reference("amplified", reference.inputs, apart, limits).save(release.folder)
        script = updates.written(release, program, tmp_path / f"update-{code}.run").path
        assert Device().apply(script, "--root", root).returncode == code


def test_a_model_that_does_not_run_is_refused(tiny, program, tmp_path, root):
    release = bundles.variant(tiny, tmp_path / "made", {bundling.LIBRARY: b"no library"})
    script = updates.written(release, program, tmp_path / "update.run").path
    refused(Device().apply(script, "--root", root), DEVICE, "does not run on this device")
    assert bundles.whole_release(root) is None


def test_without_a_reference_it_only_has_to_run(tiny, program, tmp_path, root):
    release = bundles.variant(tiny, tmp_path / "made", {})
    release.reference.unlink()
    with pytest.raises(VerificationError, match="has no reference outputs"):
        updates.written(release, program, tmp_path / "update.run")
    script = updates.written(release, program, tmp_path / "update.run", unchecked=True).path
    completed = Device().apply(script, "--root", root, "--json")
    assert (completed.returncode, json.loads(completed.stdout)["outputs"]) == (0, None)
    assert "UNCHECKED" in toolchain("status", "--root", root).out


def test_a_name_that_is_a_program_is_only_a_name(tiny, program, tmp_path, root):
    evil = f"$(touch {tmp_path}/evil)'`touch {tmp_path}/evil`; touch {tmp_path}/evil"[-255:]
    with pytest.raises(VerificationError):
        bundles.variant(tiny, tmp_path / "several-lines", {}, name=f"{evil}\n\x1b[2J")
    release = bundles.variant(tiny, tmp_path / "made", {}, name=evil)
    script = updates.written(release, program, tmp_path / "update.run").path
    completed = Device().apply(script, "--root", root, "--json")
    assert completed.returncode == 0, completed.stderr
    assert "`; touch" in json.loads(completed.stdout)["model"]
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        *(("--colour",), ("x",), ("--root",), ("--root", ""), ("--keep", "0"), ("--keep", "x"), ("--threads", "-1")),
        *(("--tolerance", "x"), ("--user", "-c"), ("--user", "no-such-user"), ("--keep", "1234567")),
    ],
)
def test_wrong_words_are_refused(arguments, tiny_run, root):
    refused(Device().apply(tiny_run, "--root", root, *arguments), USAGE)
    assert not root.exists()


# --- damage ----------------------------------------------------------------------------------------------------------


def regions(data: bytes) -> dict[str, int]:
    main = data.index(b"\nmain() {")
    payload = data.index(b"ustar") // 512 * 512
    return {
        "the digest": data.index(b"] && [ ") + 90,
        "the values": data.index(b"\nrelease=") + 20,
        "the program": main + 30,
        "its padding": payload - 1,
        "a header of the archive": payload + 3,
        "the first content": payload + 600,
        "the middle": len(data) // 2,
        "the end": len(data) - 1,
    }


@pytest.mark.parametrize("region", range(8))
def test_a_changed_byte_is_found_before_anything_changes(region, tiny_run, tmp_path, root):
    data = bytearray(tiny_run.read_bytes())
    position = list(regions(bytes(data)).values())[region]
    data[position] ^= 1
    path = tmp_path / "an update.run"
    path.write_bytes(data)
    refused(Device().apply(path, "--root", root), VERIFICATION, f"{path} is damaged", "copy it again")
    assert not root.exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_truncated_file_is_refused(shell, tiny_run, tmp_path, root):
    device, data = updates.device(shell, tmp_path), tiny_run.read_bytes()
    payload = data.index(b"ustar") // 512 * 512
    path = tmp_path / "cut.run"
    for size in (20, 100, 300, 600, 2000, payload - 3000, payload, payload + 700, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        completed = device.apply(path, "--root", root)
        assert completed.returncode != 0, (size, completed.stderr)
        assert "cut.run" in completed.stderr
        assert not root.exists()


def test_two_changed_bytes_never_make_half_a_release(tiny, tiny_run, tmp_path, root):
    """One in the lines that check all others: whatever becomes of the check, each blob is hashed once more."""
    original = tiny_run.read_bytes()
    content = original.index(tiny.folder.joinpath(bundling.PARAMS).read_bytes())
    path = tmp_path / "two.run"
    for position in range(10, original.index(b"# What it is"), 17):
        data = bytearray(original)
        data[position] ^= 4
        data[content + 70] ^= 1
        path.write_bytes(data)
        assert Device().apply(path, "--root", root).returncode != 0, position
        assert bundles.whole_release(root) is None


@pytest.mark.parametrize("damage", ["changed", "truncated", "missing"])
def test_a_damaged_folder_is_refused(damage, tiny, program, tmp_path, root):
    script = updates.written(tiny, program, tmp_path / "folder", folder=True).path
    blob = script.parent / "blobs" / tiny.manifest.files[bundling.PARAMS].sha256
    data = blob.read_bytes()
    blob.unlink()
    if damage != "missing":
        blob.write_bytes(data[:-1] + (bytes([data[-1] ^ 1]) if damage == "changed" else b""))
    refused(Device().apply(script, "--root", root), VERIFICATION, "is damaged", blob.name)
    assert not root.exists()


def test_it_is_not_applied_from_a_pipe(tiny_run, root):
    with tiny_run.open("rb") as stream:
        completed = subprocess.run(["sh", "-s", "--", "--root", root], stdin=stream, capture_output=True, check=False)
    assert completed.returncode == VERIFICATION
    assert not root.exists()


# --- the lock --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("check", [(), ("--check",)])
def test_it_waits_for_no_deploy_and_says_whose(shell, check, tiny, tiny_run, tmp_path, root):
    device = updates.device(shell, tmp_path)
    with stores.client(root):
        completed = device.apply(tiny_run, "--root", root, *check)
        refused(
            completed, BUSY, "this device is busy: in use by the other one: a deploy", "s by now; the last sign of life"
        )
        assert bundles.whole_release(root) is None
    assert stores.soon(lambda: is_free(root))  # the shell of the killed client ends a moment after it
    completed = device.apply(tiny_run, "--root", root)
    assert completed.returncode == 0, completed.stderr
    assert bundles.whole_release(root) == tiny.digest


def test_it_waits_for_no_plain_flock(tiny_run, root):
    root.mkdir()
    with (root / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(Device().apply(tiny_run, "--root", root), BUSY, f"busy: in use by process {os.getpid()} of ")


@contextlib.contextmanager
def held_up(script: Path, root: Path, tmp_path: Path, *words: object):
    """An update that is being applied, and stands still in the middle."""
    waits = f'mkfifo {tmp_path}/gate; : >{tmp_path}/here; read -r x <{tmp_path}/gate; exec /bin/df "$@"'
    device = Device().with_tool(tmp_path / "tools", "df", f'[ -e {root}/lock ] || exec /bin/df "$@"\n{waits}')
    with device.start(script, "--root", root, *words) as process:
        try:
            assert stores.soon((tmp_path / "here").exists)
            yield process
        finally:
            process.kill()


def test_a_deploy_waits_for_no_update_and_says_whose(tiny, tiny_run, tmp_path, root):
    with held_up(tiny_run, root, tmp_path) as process:
        store = Store(LocalShell(), str(root))
        for attempt in (store.check_free, lambda: store.lock(Owner("a host", "deploy")).__enter__()):
            with pytest.raises(BusyError) as caught:
                attempt()
            assert ": offline update" in caught.value.message
        (tmp_path / "gate").write_text("\n")
        assert process.wait(60) == 0
    assert bundles.whole_release(root) == tiny.digest
    store.check_free()


# --- kills, signals, full disks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_nothing(number, tiny_run, tmp_path, root):
    with held_up(tiny_run, root, tmp_path) as process:
        process.send_signal(number)
        (tmp_path / "gate").write_text("\n")
        assert process.wait(60) == INTERRUPTED
    assert list((root / "blobs" / "partial").iterdir()) == []
    assert bundles.whole_release(root) is None
    assert Device().apply(tiny_run, "--root", root).returncode == 0


def test_full_disk(disk, bulky, bulky_runs):
    root = disk / "device"
    with filled(disk):
        refused(Device().apply(bulky_runs[0], "--root", root), DEVICE, "MB free, but")
    assert Device().apply(bulky_runs[0], "--root", root).returncode == 0
    with filled(disk, 3 << 20):
        refused(Device().apply(bulky_runs[1], "--root", root), DEVICE, "MB free, but", "MB are needed")
        assert bundles.whole_release(root) == bulky[0].digest
    assert Device().apply(bulky_runs[1], "--root", root).returncode == 0
    assert bundles.whole_release(root) == bulky[1].digest


@pytest.mark.parametrize("spare", [0, 1 << 20])
def test_somebody_else_fills_the_disk_meanwhile(disk, bulky, bulky_runs, tmp_path, spare):
    root = disk / "device"
    assert Device().apply(bulky_runs[0], "--root", root).returncode == 0
    tools = tmp_path / "tools"
    device = Device().with_tool(tools, "df", "echo Filesystem; echo /dev/sd 1 1 99999 1% /")
    fill(disk / "filler", spare)
    refused(device.apply(bulky_runs[1], "--root", root), DEVICE, "changing the store on", "No space left")
    assert bundles.whole_release(root) == bulky[0].digest
    assert list((root / "blobs" / "partial").iterdir()) == []
    (disk / "filler").unlink()
    assert Device().apply(bulky_runs[1], "--root", root).returncode == 0
    assert bundles.whole_release(root) == bulky[1].digest


def test_a_folder_that_cannot_be_written(disk, tiny_run):
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for options in ((), ("--check",)):
        refused(Device().apply(tiny_run, "--root", disk / "device", *options), DEVICE, "writable")


@pytest.mark.parametrize("kill_kind", ["the shell", "all of it"])
def test_kills(kill_kind, bulky, bulky_runs, program, root, capsys):
    """A kill leaves the old release or the new one, and no lock; the next update, or deploy, has nothing to repair."""
    device, stream = Device(), random.Random(kill_kind)  # noqa: S311 - seeded, so that a failure comes again
    assert device.apply(bulky_runs[0], "--root", root, "--keep", 1).returncode == 0
    start = time.monotonic()
    assert device.apply(bulky_runs[1], "--root", root, "--keep", 1).returncode == 0
    seconds, outcomes = time.monotonic() - start, Counter[str]()
    for index in range(KILLS):
        old, new = bulky[(index + 1) % 2], bulky[index % 2]
        with device.start(bulky_runs[index % 2], "--root", root, "--keep", 1, start_new_session=True) as process:
            time.sleep(stream.uniform(0, 1.05 * seconds))
            end = os.killpg if kill_kind == "all of it" else os.kill
            end(process.pid, signal.SIGKILL)
        assert stores.soon(lambda: is_free(root)), "a step of a killed update keeps the lock"
        release = bundles.whole_release(root)
        outcomes[{old.digest: "old", new.digest: "new"}[release]] += 1
        if index % 2:
            deploy_client.plain_deploy(new, program, root)
        else:
            completed = device.apply(bulky_runs[0], "--root", root, "--keep", 1)
            assert completed.returncode == 0, completed.stderr
        assert bundles.whole_release(root) == new.digest
        assert len(list((root / "releases").iterdir())) == 1
        assert list((root / "blobs" / "partial").iterdir()) == list((root / "run").iterdir()) == []
    with capsys.disabled():
        print(f"\n{KILLS} kills of {kill_kind}: {dict(outcomes)}; an update takes {seconds:.2f} s")  # noqa: T201


def test_power_cuts(tmp_path, bulky, bulky_runs):
    """What was not synced is lost: the old release is whole, or the new one; what was told as done is on the disk."""
    disk, device = disks.cuttable(tmp_path), Device()
    stream = random.Random("power")  # noqa: S311 - as above
    root = disk.point / "device"
    with disk.mounted():
        assert device.apply(bulky_runs[0], "--root", root, "--keep", 1).returncode == 0
        disk.cut()
    for index in range(1, 1 + KILLS):
        old, new = bulky[(index + 1) % 2], bulky[index % 2]
        with disk.mounted(), disk.kept_busy(), device.start(bulky_runs[index % 2], "--root", root) as process:
            time.sleep(stream.uniform(0, 1))
            disk.cut()
            process.kill()
        with disk.mounted():
            assert bundles.whole_release(root) in {old.digest, new.digest}
            completed = device.apply(bulky_runs[index % 2], "--root", root, "--keep", 1)
            assert completed.returncode == 0, completed.stderr
            assert bundles.whole_release(root) == new.digest


def is_free(root: Path) -> bool:
    with (root / "lock").open("ab") as lock, contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


# --- users -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def nobody(tmp_path):
    """A user of no rights who has a folder."""
    require("another user", "root", present=os.geteuid() == 0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/tmp"):  # noqa: S108 - pytest's own folders are closed
            folder.chmod(folder.stat().st_mode | 0o055)
    mine = tmp_path / "mine"
    mine.mkdir()
    os.chown(mine, pwd.getpwnam("nobody").pw_uid, -1)
    return mine


def test_root_does_not_take_over_somebodys_store(tiny, tiny_run, nobody, tmp_path):
    script = tmp_path / "it's an update.run"
    script.write_bytes(tiny_run.read_bytes())
    root = nobody / "device"
    refused(
        Device().apply(script, "--root", root),
        USAGE,
        "belongs to nobody, but this command runs as root",
        "--user nobody",
    )
    assert not root.exists()
    completed = Device().apply(script, "--root", root, "--user", "nobody", "--json")
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["result"] == "applied"
    assert {path.lstat().st_uid for path in root.rglob("*")} == {pwd.getpwnam("nobody").pw_uid}
    assert bundles.whole_release(root) == tiny.digest
    assert Device().apply(tiny_run, "--root", nobody / "roots", "--user", "root").returncode == 0


def test_a_link_to_somebodys_folder_is_somebodys(tiny_run, nobody, tmp_path):
    (tmp_path / "link").symlink_to(nobody)
    refused(
        Device().apply(tiny_run, "--root", tmp_path / "link"), USAGE, "belongs to nobody, but this command runs as root"
    )
    assert not list(nobody.iterdir())


def closed(folder, update):
    """Put an update where only root can read it, as OTA systems do."""
    folder.mkdir(mode=0o700)
    if update.is_dir():
        shutil.copytree(update, folder / "update")
        return folder / "update" / "install.sh"
    (folder / "it's mine.run").write_bytes(update.read_bytes())
    return folder / "it's mine.run"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_an_update_that_only_root_can_read_is_lent(shell, tiny, tiny_run, nobody, tmp_path):
    script, root = closed(tmp_path / "closed", tiny_run), nobody / "my device"
    completed = Device((shell,)).apply(script, "--root", root, "--user", "nobody", "--json")
    assert (completed.returncode, json.loads(completed.stdout)["result"]) == (0, "applied"), completed.stderr
    assert bundles.whole_release(root) == tiny.digest
    assert {path.lstat().st_uid for path in root.rglob("*")} == {pwd.getpwnam("nobody").pw_uid}
    refused(
        Device((shell,)).apply(script, "--root", root, "--user", "nobody", "--rollback"), DEVICE, "no previous release"
    )
    assert list(nobody.iterdir()) == [root]


def test_an_update_that_cannot_be_lent_is_refused(tiny, program, tiny_run, nobody, tmp_path):
    script = closed(tmp_path / "closed", tiny_run)
    refused(
        Device().apply(script, "--root", tmp_path / "roots", "--user", "nobody"),
        DEVICE,
        "cannot write a copy near the store",
    )
    updates.written(tiny, program, tmp_path / "folder", folder=True)
    script = closed(tmp_path / "closed-too", tmp_path / "folder")
    refused(Device().apply(script, "--root", nobody, "--user", "nobody"), USAGE, "nobody cannot read")
    assert not list(nobody.iterdir())


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_same_bytes_again(tiny, tmp_path, root):
    package = tmp_path / "tiny.oci.tar"
    bundling.pack(tiny, package)
    outputs = [
        json.loads(toolchain("package", source, "--as", "offline", "-o", tmp_path / name, "--json").out)
        for source, name in ((package, "one.run"), (tiny.folder, "two.run"))
    ]
    assert (tmp_path / "one.run").read_bytes() == (tmp_path / "two.run").read_bytes()
    assert outputs[0]["update"] == outputs[1]["update"]
    completed = Device().apply(tmp_path / "one.run", "--root", root, "--json")
    assert json.loads(completed.stdout)["update"] == outputs[0]["update"]
    outcome = toolchain("package", package, "--as", "offline", "-o", f"{tmp_path}/folder/")
    assert outcome.code == 0, outcome.err
    assert Device().apply(tmp_path / "folder" / "install.sh", "--root", root).returncode == 0


def test_the_command_replaces_nothing_but_an_update(tiny, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    for target in ("thesis.txt", "thesis", "no/such/folder.run"):
        outcome = toolchain("package", tiny.folder, "--as", "offline", "-o", tmp_path / target)
        assert outcome.code == USAGE, outcome.err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    for target in ("update.run", "folder/", "update.run", "folder/"):
        assert toolchain("package", tiny.folder, "--as", "offline", "-o", f"{tmp_path}/{target}").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "thesis", "thesis.txt", "update.run"]


def test_its_archive_can_be_looked_into(tiny, tiny_run, tmp_path):
    begin = tiny_run.read_bytes().index(b"ustar") // 512
    listing = f"tail -c +{begin * 512 + 1} '{tiny_run}' | tar -t"
    completed = subprocess.run(["sh", "-c", listing], capture_output=True, text=True, check=True)
    names = completed.stdout.split()
    assert f"blobs/{tiny.manifest.files[bundling.PARAMS].sha256}" in names
    assert names == sorted(names)
