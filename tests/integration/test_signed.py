"""Devices that take signed releases only: real deploys, real runners, keys and signatures of OpenSSH."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support import bundles, etc, signers, sshd, updates
from tests.support.parts import require
from tests.support.paths import ROOT
from toolchain import bundle as bundling
from toolchain import resources, tensors
from toolchain.device.shipment import SIGNED
from toolchain.native import programs

UNTRUSTED, VERIFICATION = 7, 5
TOOLCHAIN = Path(sys.executable).with_name("toolchain")


@pytest.fixture
def signed(tiny, tmp_path, alice):
    return signers.signed(tiny, tmp_path / "signed", [alice], sequence=5)


@pytest.fixture
def trust(tmp_path, alice):
    return signers.trusting(tmp_path / "trust", [alice])


def run(command, code=0):
    completed = subprocess.run(
        list(map(str, command)), check=False, capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert completed.returncode == code, completed.stderr
    return completed


def verify(program, release, trust, *more, code=0):
    completed = run([program.path, "--verify", release, "--trust", trust, *more], code)
    return json.loads(completed.stdout) if code == 0 else completed.stderr


# --- attacks ---------------------------------------------------------------------------------------------------------


def test_no_attack_replaces_the_release(tiny, program, tmp_path):
    etc.require_own()
    nothing, work = tmp_path / "nothing", tmp_path / "work"
    nothing.mkdir()
    work.mkdir()
    command = [sys.executable, "-m", "tests.support.attacks", work, tiny.folder]
    ended = json.loads(run(etc.within(tmp_path / "etc", nothing, command)).stdout)
    assert len(ended) >= 30
    assert {name: how for name, how in ended.items() if how != [VERIFICATION, True, True]} == {}


# --- the runner ------------------------------------------------------------------------------------------------------


def test_the_runner_tells_what_it_found(signed, program, tmp_path, trust):
    verified = verify(program, signers.released(signed, tmp_path), trust)
    assert verified == {
        "bundle": signed.digest,
        "model": signed.manifest.name,
        "board": signed.manifest.board,
        "sequence": 5,
        "minimum": 0,
        "floor": 0,
        "signers": ["alice"],
    }


def test_a_signature_with_the_other_hash_of_openssh_holds(signed, program, tmp_path, alice, trust):
    message = signed.statement.read_bytes()
    release = signers.state(signed, message, signers.by_hand(message, alice, tmp_path, hashed="sha256"))
    verify(program, signers.released(release, tmp_path), trust)


@pytest.mark.parametrize("name", [*bundling.LAYERS, bundling.MANIFEST, "oci.json", SIGNED])
def test_every_byte_of_every_file_counts(signed, program, tmp_path, trust, name):
    release = signers.released(signed, tmp_path)
    path = release / name
    data = bytearray(path.read_bytes())
    for index in {0, len(data) // 2, len(data) - 1}:
        changed = bytearray(data)
        changed[index] ^= 0x20
        path.write_bytes(changed)
        verify(program, release, trust, code=UNTRUSTED)
    path.unlink()
    verify(program, release, trust, code=UNTRUSTED)


def test_the_floor_only_rises(signed, program, tmp_path, trust):
    release = signers.released(signed, tmp_path)
    assert verify(program, release, trust, "--floor", "4")["floor"] == 4
    assert verify(program, release, trust, "--floor", "2")["floor"] == 4
    assert "would exclude it" in verify(program, release, trust, "--floor", "6", code=8)
    floor = tmp_path / "floors" / signed.manifest.name
    assert floor.read_text() == "4\n"
    floor.write_text("6\n")
    assert "none below 6" in verify(program, release, trust, code=UNTRUSTED)
    for wrong in ("", "x", "-1", "6 7", "9" * 40):
        floor.write_text(wrong)
        verify(program, release, trust, code=UNTRUSTED)


def test_a_device_that_trusts_nobody_has_nothing_to_verify(signed, program, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "trusts no signing key" in verify(
        program, signers.released(signed, tmp_path), tmp_path / "empty", code=UNTRUSTED
    )


def test_verifying_takes_less_than_a_tenth_of_a_second(signed, program, tmp_path, trust):
    """It takes some milliseconds; hashing what is large comes on top."""
    release = signers.released(signed, tmp_path)
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        verify(program, release, trust)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.1


# --- loading ---------------------------------------------------------------------------------------------------------


def load(program, release, bundle, tmp_path, *more):
    inputs = tmp_path / "inputs"
    tensors.save(inputs, bundling.Reference.read(bundle.reference).inputs)
    outputs = tmp_path / "outputs"
    outputs.unlink(missing_ok=True)
    command = [program.path, "--release", release, "--inputs", inputs, "--outputs", outputs, "--max-runs", "0"]
    completed = subprocess.run([*command, "--report", tmp_path / "report", *more], check=False, capture_output=True)
    return completed.returncode, tensors.load(outputs) if completed.returncode == 0 else {}


@pytest.mark.parametrize("name", [bundling.LIBRARY, bundling.PARAMS, bundling.MANIFEST])
def test_what_is_loaded_is_what_was_signed(signed, program, tmp_path, trust, name):
    release = signers.released(signed, tmp_path)
    assert load(program, release, signed, tmp_path, "--trust", trust)[0] == 0
    path = release / name
    path.write_bytes(path.read_bytes() + b" ")
    assert load(program, release, signed, tmp_path, "--trust", trust)[0] == UNTRUSTED


def test_a_file_that_changes_meanwhile_is_never_half_loaded(signed, tiny, program, tmp_path, trust):
    """Somebody who may write there changes the params to and fro: what runs has the right ones, or nothing runs."""
    release = signers.released(signed, tmp_path)
    wrong = bundles.reweighted(tiny, tmp_path / "wrong", seed=9)
    contents = [(folder / bundling.PARAMS).read_bytes() for folder in (release, wrong.folder)]
    expected = bundling.Reference.read(signed.reference).outputs
    ended = threading.Event()

    def change():
        with (release / bundling.PARAMS).open("r+b", buffering=0) as file:
            while not ended.is_set():
                for content in contents:
                    os.pwrite(file.fileno(), content, 0)

    changing = threading.Thread(target=change)
    changing.start()
    codes = set()
    try:
        for _ in range(100):
            code, outputs = load(program, release, signed, tmp_path, "--trust", trust)
            codes.add(code)
            for name, value in outputs.items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)
    finally:
        ended.set()
        changing.join()
    assert codes <= {0, UNTRUSTED}
    assert UNTRUSTED in codes


@pytest.fixture(scope="module")
def edge(native):
    """The library of applications, by ctypes."""
    library = programs.build(programs.LIBRARY, native.triple, native.machine)
    spec = importlib.util.spec_from_file_location("edge_model", resources.RUNTIME / "sdk" / "edge_model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, library.path


def test_an_application_opens_signed_releases_only(signed, tiny, tmp_path, trust, edge):
    module, library = edge
    release = signers.released(signed, tmp_path)
    with module.Model(release, library=library, trust=trust) as model:
        assert model.sequence == 5
        reference = bundling.Reference.read(signed.reference)
        for name, value in model.run(reference.inputs).items():
            np.testing.assert_allclose(value, reference.outputs[name], rtol=1e-4, atol=1e-5)
    (release / SIGNED).unlink()
    with pytest.raises(module.EdgeError) as caught:
        module.Model(release, library=library, trust=trust)
    assert caught.value.code == UNTRUSTED
    with module.Model(release, library=library) as model:  # as before, where nobody asks
        assert model.sequence == 0


def test_two_signed_models_are_two(signed, tiny, tmp_path, alice, trust, edge):
    """Their libraries have no names of their own: one must not be taken for the other, nor for one that was closed."""
    module, library = edge
    other = bundles.build(tmp_path, rows=8, columns=6)
    other = signers.signed(other, tmp_path / "other-signed", [alice], sequence=1)
    releases = [signers.released(release, tmp_path) for release in (signed, other)]
    shapes = [(1, 4), (1, 6)]
    inputs = {"x": np.zeros((1, 8), np.float32)}

    def width(model):
        return next(iter(model.run(inputs).values())).shape

    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            models = [stack.enter_context(module.Model(release, library=library, trust=trust)) for release in releases]
            assert [width(model) for model in models] == shapes
        for release, shape in zip(reversed(releases), reversed(shapes), strict=True):
            with module.Model(release, library=library, trust=trust) as model:
                assert width(model) == shape
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_application_of_before_knows_nothing_of_trust(signed, tmp_path, edge):
    """Its options end where they ended then."""
    module, path = edge
    library = ctypes.CDLL(str(path))

    class Options(ctypes.Structure):
        _fields_ = (("size", ctypes.c_size_t), *((name, ctypes.c_int32) for name in ("threads", "pin", "spin_us")))

    assert ctypes.sizeof(Options) <= module._Options.trust.offset
    options, model = Options(module._Options.trust.offset, 0, 0, 0), ctypes.c_void_p()
    release = str(signers.released(signed, tmp_path)).encode()
    assert library.edge_open(release, ctypes.byref(options), ctypes.byref(model)) == 0
    library.edge_close(model)


# --- a day with keys -------------------------------------------------------------------------------------------------


class Device:
    """A device of its own, with an /etc that says whom it trusts, and the toolchain."""

    def __init__(self, folder, trust):
        self.folder, self.trust = folder, trust

    def toolchain(self, *arguments, code=0):
        device = ["--board", "local", "--root", self.folder / "device"]
        command = [TOOLCHAIN, *arguments[0].split(), *device, *arguments[1:]]
        return run(etc.within(self.folder / "etc", self.trust, command), code)

    def deploy(self, release, *more, code=0):
        return self.toolchain("deploy", release.folder, "--budget", 0, *more, code=code)


@pytest.fixture
def device(tmp_path, trust):
    etc.require_own()
    return Device(tmp_path, trust)


def test_a_key_is_replaced_by_touching_a_device_once(device, tiny, tmp_path, alice, bob):
    """Three releases: by the old key, by both, by the new one; a device that is late with its new file takes two."""
    weights = [bundles.reweighted(tiny, tmp_path / f"weights-{seed}", seed) for seed in range(3)]
    who = ([alice], [alice, bob], [bob])
    releases = [
        signers.signed(release, tmp_path / f"release-{index}", keys, sequence=index + 1)
        for index, (release, keys) in enumerate(zip(weights, who, strict=True))
    ]
    device.deploy(releases[0])
    device.deploy(releases[1])  # still with the old file
    device.deploy(releases[2], code=VERIFICATION)
    signers.trusting(device.trust, [bob, alice])
    device.deploy(releases[2])
    device.toolchain("rollback")
    report = json.loads(device.toolchain("status", "--json").stdout)
    assert report["current"]["digest"] == releases[1].digest
    assert sorted(report["signature"]["verified"]["signers"]) == ["alice", "bob"]


def test_a_minimum_and_a_floor_stop_a_roll_back(device, tiny, tmp_path, alice):
    old = signers.signed(tiny, tmp_path / "old", [alice], sequence=1)
    device.deploy(old)
    new = bundles.reweighted(tiny, tmp_path / "weights", seed=1)
    device.deploy(signers.signed(new, tmp_path / "new", [alice], sequence=3, minimum=2))
    assert "none below 2" in device.toolchain("rollback", code=VERIFICATION).stderr
    report = json.loads(device.toolchain("status", "--json").stdout)
    assert (report["current"]["digest"], report["signature"]["verified"]["floor"]) == (new.digest, 2)
    assert "would exclude it" in device.toolchain("trust floor", 4, code=2).stderr
    assert json.loads(device.toolchain("trust floor", 3, "--json").stdout)["floor"] == 3


def test_a_slot_has_floors_of_its_own(device, tiny, tmp_path, alice):
    old = signers.signed(tiny, tmp_path / "old", [alice], sequence=1)
    new = bundles.reweighted(tiny, tmp_path / "weights", seed=1)
    device.deploy(signers.signed(new, tmp_path / "new", [alice], sequence=3, minimum=2), "--slot", "detector")
    assert "none below 2" in device.deploy(old, "--slot", "detector", code=VERIFICATION).stderr
    device.deploy(old)
    report = json.loads(device.toolchain("trust floor", 3, "--slot", "detector", "--json").stdout)
    assert (report["bundle"], report["floor"]) == (new.digest, 3)
    floors = tmp_path.glob("device/**/floors/*")
    assert [str(path.relative_to(tmp_path / "device")) for path in floors] == ["slots/detector/floors/dense"]


def test_a_power_cut_before_the_minimum_was_noted_changes_nothing(device, tiny, tmp_path, alice):
    device.deploy(signers.signed(tiny, tmp_path / "first", [alice], sequence=2, minimum=2))
    shutil.rmtree(tmp_path / "device" / "floors")
    old = bundles.reweighted(tiny, tmp_path / "weights", seed=1)
    device.deploy(signers.signed(old, tmp_path / "old", [alice], sequence=1), code=VERIFICATION)


def test_a_device_without_trust_takes_any_release_and_says_so(device, tiny, signed, tmp_path):
    (device.trust / "trusted").unlink()
    assert "signed" not in device.deploy(tiny).stdout
    assert re.search(r"signed +no\n", device.toolchain("status").stdout)
    device.deploy(signed)
    assert "this device does not check signatures" in device.toolchain("status").stdout
    assert "does not check signatures, so a floor has no effect" in device.toolchain("trust floor", 1, code=2).stderr


def test_a_runner_of_before_cannot_tell(device, signed, tmp_path):
    device.deploy(signed)
    (old,) = (tmp_path / "device" / "runners").glob("*/runner")
    old.unlink()
    old.write_text("#!/bin/sh\necho 'runner: unknown option \"--verify\"' >&2\nexit 2\n")
    old.chmod(0o755)
    assert "unknown: " in device.toolchain("status").stdout
    assert "unknown option" in device.toolchain("trust floor", 2, code=4).stderr


def test_a_key_that_is_revoked_stops_what_it_has_signed(device, signed, alice):
    device.deploy(signed)
    (device.trust / "revoked").write_text(f"{alice.public}\n")
    assert "NO LONGER ACCEPTED" in device.toolchain("status").stdout
    assert "does not accept this release" in device.toolchain("bench", "--budget", 0, code=VERIFICATION).stderr


def test_updates_without_a_network_are_held_to_the_same(device, tiny, program, tmp_path, alice):
    weights = [bundles.reweighted(tiny, tmp_path / f"weights-{seed}", seed) for seed in range(3)]
    releases = {
        "first": signers.signed(tiny, tmp_path / "first", [alice], sequence=1),
        "unsigned": weights[0],
        "later": signers.signed(weights[1], tmp_path / "later", [alice], sequence=3, minimum=2),
    }

    def apply(name, *more, code=0):
        update = tmp_path / f"{name}.run"
        if not update.exists():
            updates.written(releases[name], program, update)
        command = ["sh", update, "--root", tmp_path / "device", "--json", *more]
        completed = run(etc.within(tmp_path / "etc", device.trust, command), code)
        return json.loads(completed.stdout)

    apply("first")
    assert "this update is not signed" in apply("unsigned", "--check", code=VERIFICATION)["error"]["message"]
    assert "does not accept this release" in apply("unsigned", code=VERIFICATION)["error"]["message"]
    assert bundles.whole_release(tmp_path / "device") == tiny.digest
    apply("later")
    assert "does not accept the previous release" in apply("later", "--rollback", code=VERIFICATION)["error"]["message"]
    apply("first", code=VERIFICATION)
    assert bundles.whole_release(tmp_path / "device") == weights[1].digest


# --- a board without a clock, and without OpenSSH --------------------------------------------------------------------


def wait_for(port):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        time.sleep(0.1)
    raise AssertionError("dropbear does not answer")


@pytest.fixture
def dropbear(tmp_path, trust):
    """dropbear on a machine where it is 1970."""
    present = all(map(shutil.which, ("dropbear", "dropbearkey", "faketime")))
    require("dropbear and faketime", "dropbear-bin, faketime", present)
    etc.require_own()
    sshd.require_sshd()
    home, port = tmp_path / "home", sshd.free_port()
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    home.chmod(0o755)
    login = signers.pair(tmp_path, "login")
    (home / ".ssh" / "authorized_keys").write_text(f"{login.public}\n")
    host_key = tmp_path / "host"
    run(["dropbearkey", "-t", "ed25519", "-f", host_key])
    public = next(
        line for line in run(["dropbearkey", "-y", "-f", host_key]).stdout.splitlines() if line.startswith("ssh-")
    )
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{port} {' '.join(public.split()[:2])}\n")
    past = "exec faketime '1970-01-02 00:00:00' sh -c \"$SSH_ORIGINAL_COMMAND\""
    server = ["dropbear", "-F", "-E", "-s", "-r", host_key, "-p", f"127.0.0.1:{port}", "-c", past]
    command = etc.within(tmp_path / "etc-of-it", trust, server, home)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield [
                "--board",
                "x86_64",
                "--host",
                f"root@127.0.0.1:{port}",
                "-i",
                login.path,
                "--known-hosts",
                known_hosts,
            ]
        finally:
            for pid in [*sshd.descendants(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)


def test_a_board_with_dropbear_and_without_a_clock(dropbear, tiny_for_ssh, tmp_path, alice, bob):
    command = [*dropbear, "--root", tmp_path / "device"]
    release = signers.signed(tiny_for_ssh, tmp_path / "release", [alice], sequence=1)
    report = json.loads(run([TOOLCHAIN, "deploy", release.folder, *command, "--budget", 0, "--json", "-"]).stdout)
    assert report["verified"]["signers"] == ["alice"]
    assert report["outputs"]["ok"] is True
    other = bundles.reweighted(tiny_for_ssh, tmp_path / "weights", seed=1)
    other = signers.signed(other, tmp_path / "by-bob", [bob], sequence=2)
    run([TOOLCHAIN, "deploy", other.folder, *command, "--budget", 0], VERIFICATION)
    assert bundles.whole_release(tmp_path / "device") == release.digest
    host, port = dropbear[3].rsplit(":", 1)
    login = ["-i", dropbear[5], "-o", f"UserKnownHostsFile={dropbear[7]}", "-F", "none", "-p", port, host]
    assert run(["ssh", *login, "date +%Y"]).stdout == "1970\n"
