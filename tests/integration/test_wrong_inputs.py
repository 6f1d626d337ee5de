"""Wrong inputs: each ends with its exit code and a message that names cause and next step, and loses nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from tests import bundles, nets, sshd
from tests.commands import toolchain
from tests.parts import require
from toolchain import bundle as bundle_room
from toolchain import files

OUT_OF_SCOPE = nets.model(
    [nets.node("Relu", ["x"], ["h"], name="first"), nets.node("Bernoulli", ["h"], ["y"], name="toss")],
    [nets.value("x", (2, 3))],
    [nets.value("y", (2, 3))],
)
OPEN = nets.relu(("batch", 3))


@pytest.fixture(scope="module")
def world(tmp_path_factory, tiny):
    """Files that are wrong in one way each, and a device folder that already runs a release."""
    folder = tmp_path_factory.mktemp("wrong")
    nets.save(OUT_OF_SCOPE, folder, "unsupported.onnx")
    nets.save(OPEN, folder, "open.onnx")
    nets.save(nets.relu(), folder, "good.onnx")
    good = (folder / "good.onnx").read_bytes()
    (folder / "truncated.onnx").write_bytes(good[: len(good) // 2])
    (folder / "text.onnx").write_text("this is no model")
    (folder / "empty.onnx").write_bytes(b"")
    np.savez(folder / "wrong.npz", x=np.zeros((9, 9), np.float32))
    (folder / "picture.jpg").write_bytes(b"no picture")
    (folder / "labels.txt").write_text("one\ntwo\n")
    (folder / "typo.toml").write_text('descripton = "x"\nconnection = "shh"\n')
    (folder / "lab.toml").write_text('[devices.a]\nboard = "x86_64"\nhots = "me@127.0.0.1"\n')
    (folder / "strange.toml").write_text(_other_machine())
    bundle_room.pack(tiny, folder / "good.tar")
    data = (folder / "good.tar").read_bytes()
    (folder / "cut.tar").write_bytes(data[: len(data) // 2])
    (folder / "flipped.tar").write_bytes(_flipped(data, (tiny.folder / bundle_room.PARAMS).read_bytes()))
    shutil.copytree(tiny.folder, folder / "tampered")
    with (folder / "tampered" / bundle_room.LIBRARY).open("ab") as stream:
        stream.write(b"x")
    bundles.variant(tiny, folder / "elsewhere", {}, machine="riscv64")
    bundles.variant(tiny, folder / "future", {}, glibc="9.99")
    bundles.variant(tiny, folder / "features", {}, cpu_features=("warp_drive",))
    bundles.variant(tiny, folder / "broken", {bundle_room.LIBRARY: b"\x7fELF this is no library"})
    bundles.variant(tiny, folder / "wrong-output", {bundle_room.REFERENCE: _wrong_reference(tiny)})
    assert toolchain("deploy", tiny.folder, "--root", folder / "device", "--budget", 0).code == 0
    return folder


def _other_machine():
    return (
        'description = "x"\nconnection = "local"\nmachine = "riscv64"\ntriple = "riscv64-linux-gnu"\n'
        '[target]\nmcpu = "generic-rv64"\n'
    )


def _flipped(data, params):
    """Change one byte of the params inside a package."""
    at = data.index(params) + len(params) - 1
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _wrong_reference(tiny):
    from toolchain import tensors

    both = tensors.load(tiny.folder / bundle_room.REFERENCE)
    return tensors.encode({**both, "output.y": both["output.y"] + 1})


# fmt: off
# What is wrong, the words of the command ({w} is the folder of wrong files), the exit code, and what the message says.
CASES = [
    ("no such command", "deplyo x", 2, r"No such command 'deplyo'"),
    ("no such option", "deploy mlp --bord local", 2, r"No such option '?--bord"),
    ("no such model", "deploy resnet-5O", 2, r"no model 'resnet-5O'[\s\S]*did you mean resnet-50"),
    ("truncated ONNX", "build {w}/truncated.onnx -o {w}/out", 2, r"not a valid ONNX model"),
    ("text instead of ONNX", "build {w}/text.onnx -o {w}/out", 2, r"not a valid ONNX model"),
    ("empty file", "build {w}/empty.onnx -o {w}/out", 2, r"not a valid ONNX model"),
    ("unsupported operator", "build {w}/unsupported.onnx -o {w}/out", 2, r"Bernoulli at node 1 'toss'"),
    ("open shape", "build {w}/open.onnx -o {w}/out", 2, r"batch[\s\S]*--shape x:1,3"),
    ("shape that does not fit", "build {w}/open.onnx --shape x:1,4 -o {w}/out", 2, r"does not fit input x"),
    (
        "shape of an unknown input",
        "build {w}/open.onnx --shape z:1,3 -o {w}/out",
        2,
        r"no input 'z'[\s\S]*its inputs: x",
    ),
    ("malformed shape", "build {w}/open.onnx --shape x=1 -o {w}/out", 2, r"NAME:1,3,224,224"),
    ("inputs that do not fit", "build {w}/good.onnx --input {w}/wrong.npz -o {w}/out", 2, r"x: has \(9, 9\)"),
    ("inputs that are missing", "build {w}/good.onnx --input {w}/none.npz -o {w}/out", 2, r"cannot read inputs"),
    ("image for a model without one", "build {w}/good.onnx --image {w}/picture.jpg -o {w}/out", 2, r"take one image"),
    ("image that is none", "build mobilenet --image {w}/picture.jpg -o {w}/out", 2, r"cannot read the image"),
    (
        "too few labels",
        "deploy mlp --labels {w}/labels.txt --root {w}/device",
        2,
        r"2 labels for 10 classes",
    ),
    ("no such board", "build mlp --board loacl -o {w}/out", 2, r"no board 'loacl'[\s\S]*did you mean local"),
    ("faults in a board file", "boards check {w}/typo.toml", 2, r"did you mean ssh[\s\S]*did you mean description"),
    ("a board with faults", "build mlp --board {w}/typo.toml -o {w}/out", 2, r"toolchain boards check"),
    (
        "faults in devices.toml",
        "status --board x86_64 --devices {w}/lab.toml",
        2,
        r"hots: unknown key",
    ),
    ("no host", "deploy mlp --board x86_64", 2, r"which x86_64 device\?[\s\S]*--host"),
    ("a host for this machine", "deploy mlp --host me@10.0.0.7", 2, r"takes no host"),
    ("a relative root", "status --root models", 2, r"no folder for a device"),
    ("malformed host", "status --board x86_64 --host me@127.0.0.1:ssh", 2, r"no address of a device"),
    ("output folder in use", "build mlp -o {w}", 2, r"something else than a bundle"),
    ("output folder unwritable", "build mlp -o /proc/nowhere/out", 2, r"cannot write"),
    ("package of nothing", "package {w}/none -o {w}/out.tar", 2, r"holds no bundle"),
    (
        "missing compiler",
        "build mlp --board {w}/strange.toml -o {w}/out",
        3,
        r"riscv64.* is not installed",
    ),
    ("a board without an image", "build mlp --toolchain container -o {w}/out", 2, r"no image[\s\S]*--toolchain host"),
    ("no such toolchain", "build mlp --toolchain vm -o {w}/out", 2, r"'vm' is not one of 'container', 'host'"),
    ("a deploy to Android", "deploy mlp --board android-arm64 --host me@127.0.0.1", 3, r"need Android's NDK"),
    ("no such image", "containers build piqn", 2, r"no image piqn[\s\S]*mali, pynq"),
    ("an NDK without its checksum", "containers build mali --ndk {w}/none.zip", 2, r"checksum of .* is missing"),
    ("boards that cannot be read", "farm up --virtual rpi4=x", 2, r"does not say which virtual boards"),
    ("no such virtual board", "farm up --virtual rpi5=1", 2, r"no board 'rpi5'[\s\S]*did you mean rpi4"),
    ("a virtual board of this machine's kind", "farm up --virtual x86_64=1", 2, r"no virtual boards of type x86_64"),
    ("too many boards", "farm up --virtual rpi4=1000", 2, r"1000 virtual boards of type rpi4 make no sense"),
    ("truncated package", "deploy {w}/cut.tar --root {w}/device", 5, r"missing from the package|damaged"),
    ("tampered blob in a package", "deploy {w}/flipped.tar --root {w}/device", 5, r"params.* in flipped.tar is not"),
    ("tampered library", "deploy {w}/tampered --root {w}/device", 5, r"model.so .*not the file that was built"),
    ("wrong machine", "deploy {w}/elsewhere --root {w}/device", 5, r"for riscv64, and the device is"),
    ("C library too old", "deploy {w}/future --root {w}/device", 5, r"glibc 9.99 is needed"),
    ("CPU without a feature", "deploy {w}/features --root {w}/device", 5, r"no warp_drive"),
    ("library that does not load", "deploy {w}/broken --root {w}/device", 4, r"does not run[\s\S]*model.so"),
    ("wrong output", "deploy {w}/wrong-output --root {w}/device", 5, r"something else than the reference"),
    ("nothing deployed", "bench --root {w}/virgin", 4, r"nothing is deployed"),
    ("nothing to roll back to", "rollback --root {w}/device", 4, r"no earlier release"),
    ("report that cannot be written", "bench --root {w}/device --budget 0 --json /proc/none.json", 2, r"cannot write"),
]
# fmt: on


@pytest.mark.parametrize(("words", "code", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_wrong_input_is_explained(world, tiny, words, code, message, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.delenv("TOOLCHAIN_DEVICES", raising=False)
    seen = toolchain(*(word.format(w=world) for word in words.split()))
    assert (seen.code, "Traceback" in seen.err) == (code, False), seen.err
    assert re.search(message, seen.err), seen.err
    assert not (world / "out").exists()
    assert [item.name for item in world.iterdir() if item.name.startswith(".")] == []
    assert bundles.whole_release(world / "device") == tiny.digest


# fmt: off
WITHOUT_ENGINE = [
    ("build mlp --board rpi4 -o {w}/out", 3, r"no Docker engine|engine[\s\S]*--toolchain host"),
    ("containers list", 3, r"ngine"),
    ("containers check pynq", 3, r"ngine"),
    ("farm up --virtual rpi4=1", 4, r"ngine"),
]
# fmt: on


@pytest.mark.parametrize(("words", "code", "message"), WITHOUT_ENGINE)
def test_a_machine_without_an_engine(tmp_path, monkeypatch, words, code, message):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    seen = toolchain(*(word.format(w=tmp_path) for word in words.split()))
    assert (seen.code, "Traceback" in seen.err) == (code, False), seen.err
    assert re.search(message, seen.err), seen.err
    assert "hint: " in seen.err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    sshd.require_sshd()
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def over_ssh(server, tiny, *more, host=None, key=True, known=True):
    words = ["deploy", tiny.folder, "--board", "x86_64", "--host", host or server.host, "--budget", 0]
    words += ["-i", server.key_file] if key else []
    words += ["--known-hosts", server.known_hosts] if known else []
    return toolchain(*words, *more)


@pytest.fixture
def bare_home(tmp_path, monkeypatch):
    """A login without keys, agent and known hosts."""
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(files.cache_root()))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def test_an_unknown_host_key_is_refused_with_its_fingerprint(server, tiny, bare_home, tmp_path):
    (tmp_path / "none").touch()
    seen = over_ssh(server, tiny, "--known-hosts", tmp_path / "none", known=False)
    shown = subprocess.run(["ssh-keygen", "-lf", server.host_key], capture_output=True, text=True, check=True)
    assert seen.code == 5
    assert shown.stdout.split()[1] in seen.err
    assert f"ssh-keyscan -p {server.port}" in seen.err


def test_the_command_of_the_hint_makes_the_key_trusted(server, tiny, bare_home, tmp_path):
    trusted = tmp_path / "trusted"
    trusted.touch()
    words = ("--known-hosts", trusted, "--root", tmp_path / "device")
    hint = over_ssh(server, tiny, *words, known=False).err.splitlines()[-1]
    subprocess.run(["sh", "-c", hint], check=True, capture_output=True)
    assert over_ssh(server, tiny, *words, known=False).code == 0


def test_a_changed_host_key_is_refused(server, tiny, tmp_path):
    other = sshd.keygen(tmp_path / "other").with_suffix(".pub").read_text().split()
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
    seen = over_ssh(server, tiny, "--known-hosts", known, known=False)
    assert seen.code == 5
    assert re.search(rf"not the key known for it[\s\S]*{known}:1[\s\S]*ssh-keygen -f .* -R", seen.err), seen.err


def test_a_wrong_key_is_refused(server, tiny, bare_home, tmp_path):
    seen = over_ssh(server, tiny, "-i", sshd.keygen(tmp_path / "stranger"), key=False)
    assert seen.code == 4
    assert re.search(r"lets nobody in[\s\S]*stranger: refused", seen.err), seen.err


def test_a_wrong_password_is_refused_and_not_shown(server, tiny, bare_home, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_SSH_PASSWORD", "not-the-pass-word")
    seen = over_ssh(server, tiny, key=False)
    assert seen.code == 4
    assert re.search(r"lets nobody in", seen.err), seen.err
    assert "not-the-pass-word" not in seen.err + seen.out


def test_a_closed_port_is_named(server, tiny):
    seen = over_ssh(server, tiny, host=f"{server.user}@127.0.0.1:{sshd.free_port()}")
    assert seen.code == 4
    assert "cannot be reached" in seen.err


def test_a_root_that_cannot_be_made_is_named(server, tiny):
    seen = over_ssh(server, tiny, "--root", "/proc/nowhere")
    assert seen.code == 4
    assert re.search(r"no usable store[\s\S]*/proc/nowhere[\s\S]*--root", seen.err), seen.err


def test_a_device_without_flock_is_told_what_to_install(tiny, tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in "sh mkdir uname getconf sed head nproc df tail cat sha256sum ln mv rm cp sync find".split():  # noqa: SIM905
        (tools / name).symlink_to(shutil.which(name))
    require("the usual tools", "coreutils", (tools / "df").exists())
    monkeypatch.setenv("PATH", f"{tools}")
    from toolchain import deploy
    from toolchain.device_runtime import Program
    from toolchain.errors import DeviceError
    from toolchain.shell import LocalShell
    from toolchain.store import Store

    program = Program(tmp_path / "runner", "0" * 64, "", tiny.manifest.machine, tiny.manifest.versions)
    with LocalShell() as shell, pytest.raises(DeviceError, match=r"lacks flock") as caught:
        deploy.check_fits(tiny.manifest, program, Store(shell, str(tmp_path / "device")).facts())
    assert "busybox" in caught.value.hint


def test_an_internal_error_is_told_as_such(monkeypatch):
    monkeypatch.setattr("toolchain.board.names", lambda: 1 / 0)
    seen = toolchain("boards")
    assert seen.code == 70
    assert "internal error: ZeroDivisionError" in seen.err
    assert "--debug" in seen.err


def test_debug_shows_where(monkeypatch):
    monkeypatch.setattr("toolchain.board.names", lambda: 1 / 0)
    assert "Traceback" in toolchain("--debug", "boards").err


def test_an_interrupt_ends_with_130_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("toolchain.compiler._write_library", interrupted)
    assert toolchain("build", "mlp", "-o", tmp_path / "out").code == 130
    assert list(tmp_path.iterdir()) == []


def test_a_failed_deploy_writes_its_junit(world, tmp_path):
    report = tmp_path / "junit.xml"
    assert toolchain("deploy", world / "wrong-output", "--root", world / "device", "--junit", report).code == 5
    assert 'failures="1"' in report.read_text()
    assert "something else than the reference" in report.read_text()


def test_doctor_says_what_a_board_lacks(world, monkeypatch):
    seen = toolchain("doctor", "--board", world / "strange.toml", "--json")
    assert seen.code == 3
    lacking = [check for check in json.loads(seen.out) if not check["found"]]
    assert [check["what"] for check in lacking] == ["riscv64-linux-gnu-g++"]
    assert "apt-get install g++-riscv64-linux-gnu" in seen.err
