"""Wrong inputs: each ends with its exit code and a message that names cause and next step, and loses nothing."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support import bundles, nets, sshd
from tests.support.commands import toolchain
from tests.support.parts import require
from tests.support.paths import DATA
from tests.support.wrong_inputs import CASES
from toolchain import bundle as bundle_room
from toolchain import files

OUT_OF_SCOPE = nets.model(
    [nets.node("Relu", ["x"], ["h"], name="first"), nets.node("Bernoulli", ["h"], ["y"], name="toss")],
    [nets.value("x", (2, 3))],
    [nets.value("y", (2, 3))],
)
OPEN = nets.relu(("length", 3))
TWO = nets.model(
    [nets.node("Add", ["x", "z"], ["y"])], [nets.value("x", (2,)), nets.value("z", (2,))], [nets.value("y", (2,))]
)


@pytest.fixture(scope="module")
def world(tmp_path_factory, tiny):
    """Files that are wrong in one way each, and a device folder that already runs a release."""
    folder = tmp_path_factory.mktemp("wrong")
    nets.save(OUT_OF_SCOPE, folder, "unsupported.onnx")
    nets.save(OPEN, folder, "open.onnx")
    nets.save(nets.relu(), folder, "good.onnx")
    good = (folder / "good.onnx").read_bytes()
    (folder / "truncated.onnx").write_bytes(good[: len(good) // 2])
    (folder / "good.onnx.gz").write_bytes(gzip.compress(good))
    (folder / "text.onnx").write_text("this is no model")
    (folder / "empty.onnx").write_bytes(b"")
    np.savez(folder / "wrong.npz", x=np.zeros((9, 9), np.float32))
    (folder / "picture.jpg").write_bytes(b"no images")
    (folder / "labels.txt").write_text("one\ntwo\n")
    (folder / "typo.toml").write_text('descripton = "x"\nconnection = "shh"\n')
    (folder / "lab.toml").write_text('[devices.a]\nboard = "x86_64"\nhots = "me@127.0.0.1"\n')
    (folder / "strange.toml").write_text(_other_machine())
    nets.save(nets.relu(("rows", "columns")), folder, "wide.onnx")
    nets.save(TWO, folder, "two.onnx")
    np.save(folder / "wrong.npy", np.zeros((9, 9), np.float32))
    np.savez(folder / "fits.npz", x=np.zeros((1, 8), np.float32))
    np.savez(folder / "names.npz", y=np.zeros((1, 8), np.float32))
    np.savez(folder / "types.npz", x=np.zeros((3, 1, 8)))
    np.savez(folder / "zero.npz", x=np.zeros((0, 1, 8), np.float32))
    Image.new("RGB", (8, 8)).save(folder / "real.png")
    (folder / "nothing").mkdir()
    (folder / "noise.txt").write_bytes(bytes(range(128, 256)))
    applied = '[a]\nboard = "x86_64"\nhost = "me@127.0.0.1"\n[a.run]\n'
    (folder / "nothing-restarts.toml").write_text(f'{applied}health = "true"\n')
    (folder / "no-unit.toml").write_text(f'{applied}unit = "detector; reboot"\n')
    (folder / "desk.toml").write_text('[devices.desk]\nboard = "x86_64"\nhost = "me@127.0.0.1"\n')
    (folder / "other.toml").write_text(_board("aarch64", "aarch64-linux-gnu"))
    (folder / "wide.toml").write_text(
        _board(platform.machine(), f"{platform.machine()}-linux-gnu", 'cpu_features = ["warp_drive"]\n')
    )
    bundle_room.pack(tiny, folder / "good.tar")
    data = (folder / "good.tar").read_bytes()
    (folder / "cut.tar").write_bytes(data[: len(data) // 2])
    (folder / "flipped.tar").write_bytes(_flipped(data, (tiny.folder / bundle_room.PARAMS).read_bytes()))
    shutil.copytree(tiny.folder, folder / "tampered")
    with (folder / "tampered" / bundle_room.LIBRARY).open("ab") as stream:
        stream.write(b"x")
    bundles.variant(tiny, folder / "elsewhere", {}, machine="s390x")
    bundles.variant(tiny, folder / "future", {}, glibc="9.99")
    bundles.variant(tiny, folder / "features", {}, cpu_features=("warp_drive",))
    bundles.variant(tiny, folder / "broken", {bundle_room.LIBRARY: b"\x7fELF this is no library"})
    bundles.variant(tiny, folder / "wrong-output", {bundle_room.REFERENCE: _wrong_reference(tiny)})
    assert toolchain("deploy", tiny.folder, "--root", folder / "device", "--budget", 0).code == 0
    for name in ("blobs/partial", "slots/detector", "slots/classifier"):
        (folder / "slots" / name).mkdir(parents=True)
    with _busy(folder / "busy"):
        yield folder


@pytest.fixture(scope="module")
def options(server):
    """The words that reach the SSH server."""
    return f"--host {server.host} -i {server.key_file} --known-hosts {server.known_hosts}"


@contextlib.contextmanager
def _busy(root):
    """Hold the lock of a device as a deploy of somebody else would."""
    root.mkdir()
    command = ["flock", root / "lock", "sh", "-c", "echo held; read x"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        (root / "lock").write_text(f"busy {holder.pid} {int(time.time()) - 65} ann@desk\n")
        yield
        holder.stdin.close()


def _board(machine, triple, more=""):
    head = f'description = "x"\nconnection = "ssh"\nmachine = "{machine}"\ntriple = "{triple}"\ncompiler = "c++"\n'
    return f'{head}cores = 2\n{more}[target]\nmcpu = "generic"\n'


def _other_machine():
    return (
        'description = "x"\nconnection = "local"\nmachine = "aarch64"\ntriple = "aarch64-poky-linux"\n'
        '[target]\nmcpu = "generic"\n'
    )


def _flipped(data, params):
    """Change one byte of the params inside a package."""
    position = data.index(params) + len(params) - 1
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def _wrong_reference(tiny):
    from toolchain import tensors

    arrays = tensors.load(tiny.folder / bundle_room.REFERENCE)
    return tensors.encode({**arrays, "output.y": arrays["output.y"] + 1})


@pytest.fixture(scope="module")
def campaign(request):
    """Gather what each case ended with; `make wrong-inputs` shows it as a table."""
    rows: list[tuple[str, int, float, str]] = []
    yield rows
    if os.environ.get("TOOLCHAIN_TABLE") == "1":
        plugins = request.config.pluginmanager
        say = plugins.get_plugin("terminalreporter").write_line
        with plugins.get_plugin("capturemanager").global_and_fixture_disabled():
            say(f"\n{'EXIT':>4} {'SECONDS':>7}  COMMAND: MESSAGE")
            for command, code, seconds, line in rows:
                say(f"{code:>4} {seconds:>7.2f}  {command}: {line}")
            say(f"{len(rows)} wrong inputs, the slowest answer after {max(row[2] for row in rows):.1f} s")


@pytest.fixture
def begun(monkeypatch):
    """Name what was begun that takes minutes: a compilation, a run of the reference, the programs of a device."""
    names = []

    def told(name):
        module, _, function = name.rpartition(".")
        real = getattr(importlib.import_module(module), function)

        def call(*arguments, **options):
            names.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(name, call)

    for name in ("compile.compiler._write_library", "native.programs.build", "native.programs._build_into"):
        told(f"toolchain.{name}")
    return names


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_wrong_input_is_explained(world, tiny, options, case, monkeypatch, begun, campaign):
    monkeypatch.chdir(world)
    monkeypatch.delenv("TOOLCHAIN_DEVICES", raising=False)
    start = time.perf_counter()
    outcome = toolchain(*case.words.format(w=world, data=DATA, ssh=options).split())
    line = next((line for line in outcome.err.splitlines() if line.lower().startswith("error: ")), outcome.err.strip())
    text = case.words.replace("{w}/", "").replace("{data}/", "").replace("{ssh}", "--host ...")
    campaign.append((text, outcome.code, time.perf_counter() - start, line))
    assert (outcome.code, "Traceback" in outcome.err) == (case.code, False), outcome.err
    assert re.search(case.message, outcome.err), outcome.err
    assert case.late or begun == []
    assert not (world / "out").exists()
    assert [item.name for item in world.iterdir() if item.name.startswith(".")] == []
    assert bundles.whole_release(world / "device") == tiny.digest


COMMAND = Path(sys.executable).with_name("toolchain")
# As the case of the campaign; here {cold} is a cache that holds nothing, and the variables are those of the process.
COLD = {"TOOLCHAIN_CACHE": "{cold}"}
PROCESSES = [
    ("deploy {w}/elsewhere --root {w}/device", COLD, 5, "was built for a different board that is also named local"),
    ("deploy {w}/good.tar --board {w}/other.toml {ssh}", COLD, 5, "board other is for aarch64, and the device is"),
    ("deploy mlp --root {w}/busy", COLD, 75, "is busy: in use by ann@desk"),
    ("deploy mlp --board x86_64 --host me@127.0.0.1:1", COLD, 4, "cannot be reached"),
    ("tune mlp --board {w}/other.toml {ssh}", COLD, 5, "board other is for aarch64, and the device is"),
    ("hardware --board {w}/other.toml {ssh}", COLD, 5, "board other is for aarch64, and the device is"),
    ("bench --root {w}/busy", COLD, 75, "is busy: in use by ann@desk"),
    ("deploy {data}/foreign/pointer.onnx --labels {w}/none.txt", COLD, 2, "2 problems: model, labels"),
    ("deploy mlp", {"HOME": "/proc/none"}, 2, "the cache /proc/none/.cache/edge-toolchain cannot be written"),
    ("deploy mlp", {"TOOLCHAIN_CACHE": "{w}/picture.jpg/cache"}, 2, "Not a directory"),
    ("build mlp -o {w}/out", {"TMPDIR": "{w}/tmpfs"}, 2, "MiB left, and a build needs"),
    ("deploy mlp", {"TOOLCHAIN_CACHE": "{w}/tmpfs/cache"}, 2, "MiB left, and a build needs"),
    ("build mlp -o {w}/tmpfs/out", {}, 2, "cannot write .*No space left on device[\\s\\S]*free some space there"),
    ("board check {data}/boards/refused/misspelt-mcpu.toml", {}, 2, "did you mean cortex-a7"),
]


@pytest.fixture(scope="module")
def full(world):
    """A small disk."""
    point = world / "tmpfs"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", point]
    possible = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    require("a small file system", "root and a kernel that lets it mount", present=possible)
    yield
    subprocess.run(["umount", "--lazy", point], check=True)
    point.rmdir()


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(("command", "variables", "code", "message"), PROCESSES)
def test_a_process_of_its_own(world, options, tmp_path, command, variables, code, message):
    folders = {"w": world, "data": DATA, "ssh": options, "cold": tmp_path / "cold"}
    environment = {
        name: value for name, value in os.environ.items() if name not in {"TOOLCHAIN_CACHE", "XDG_CACHE_HOME"}
    }
    completed = subprocess.run(
        [COMMAND, *command.format(**folders).split()],
        env={
            **environment,
            "HOME": str(tmp_path),
            **{name: value.format(**folders) for name, value in variables.items()},
        },
        cwd=tmp_path,
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, "Traceback" in completed.stderr) == (code, False), completed.stderr
    assert re.search(message, completed.stderr), completed.stderr
    assert "hint: " in completed.stderr or code == 2
    assert not (tmp_path / "cold" / "device").exists()
    assert "building the device programs" not in completed.stderr
    assert not (world / "out").exists()


WITHOUT_TVM = """
import sys
from toolchain import cli
sys.argv = ["toolchain", "deploy", "mlp", "--board", "x86_64", "--host", "me@127.0.0.1:1"]
try:
    cli.main()
except SystemExit as end:
    print(end.code, "tvm" in sys.modules, "onnxruntime" in sys.modules)
"""


def test_a_device_that_is_off_is_told_without_the_seconds_of_the_compiler():
    completed = subprocess.run([sys.executable, "-c", WITHOUT_TVM], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["4", "False", "False"], completed.stderr


# fmt: off
WITHOUT_ENGINE = [
    ("build mlp --board rpi4 -o {w}/out", 3, r"no Docker engine|engine[\s\S]*--toolchain host"),
    ("containers list", 3, r"ngine"),
    ("containers check pynq", 3, r"ngine"),
    ("farm up --virtual rpi4=1", 4, r"ngine"),
]
# fmt: on


@pytest.mark.parametrize(("command", "code", "message"), WITHOUT_ENGINE)
def test_a_machine_without_an_engine(tmp_path, monkeypatch, command, code, message):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    outcome = toolchain(*(argument.format(w=tmp_path) for argument in command.split()))
    assert (outcome.code, "Traceback" in outcome.err) == (code, False), outcome.err
    assert re.search(message, outcome.err), outcome.err
    assert "hint: " in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    sshd.require_sshd()
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def over_ssh(server, tiny_for_ssh, *more, host=None, key=True, known=True):
    command = ["deploy", tiny_for_ssh.folder, "--board", "x86_64", "--host", host or server.host, "--budget", 0]
    command += ["-i", server.key_file] if key else []
    command += ["--known-hosts", server.known_hosts] if known else []
    return toolchain(*command, *more)


@pytest.fixture
def bare_home(tmp_path, monkeypatch):
    """A login without keys, agent and known hosts."""
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(files.cache_root()))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def test_an_unknown_host_key_is_refused_with_its_fingerprint(server, tiny_for_ssh, bare_home, tmp_path):
    (tmp_path / "none").touch()
    outcome = over_ssh(server, tiny_for_ssh, "--known-hosts", tmp_path / "none", known=False)
    completed = subprocess.run(["ssh-keygen", "-lf", server.host_key], capture_output=True, text=True, check=True)
    assert outcome.code == 5
    assert completed.stdout.split()[1] in outcome.err
    assert f"ssh-keyscan -p {server.port}" in outcome.err


def test_the_command_of_the_hint_makes_the_key_trusted(server, tiny_for_ssh, bare_home, tmp_path):
    trusted = tmp_path / "trusted"
    trusted.touch()
    options = ("--known-hosts", trusted, "--root", tmp_path / "device")
    hint = over_ssh(server, tiny_for_ssh, *options, known=False).err.splitlines()[-1]
    subprocess.run(["sh", "-c", hint], check=True, capture_output=True)
    assert over_ssh(server, tiny_for_ssh, *options, known=False).code == 0


def test_a_changed_host_key_is_refused(server, tiny_for_ssh, tmp_path):
    other = sshd.keygen(tmp_path / "other").with_suffix(".pub").read_text().split()
    known_hosts = tmp_path / "known"
    known_hosts.write_text(f"[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
    outcome = over_ssh(server, tiny_for_ssh, "--known-hosts", known_hosts, known=False)
    assert outcome.code == 5
    assert re.search(rf"not the known key[\s\S]*{known_hosts}:1[\s\S]*ssh-keygen -f .* -R", outcome.err), outcome.err


def test_a_wrong_key_is_refused(server, tiny_for_ssh, bare_home, tmp_path):
    outcome = over_ssh(server, tiny_for_ssh, "-i", sshd.keygen(tmp_path / "stranger"), key=False)
    assert outcome.code == 4
    assert re.search(r"login to .* failed[\s\S]*stranger: refused", outcome.err), outcome.err


def test_a_wrong_password_is_refused_and_not_shown(server, tiny_for_ssh, bare_home, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_SSH_PASSWORD", "not-the-pass-word")
    outcome = over_ssh(server, tiny_for_ssh, key=False)
    assert outcome.code == 4
    assert re.search(r"login to .* failed", outcome.err), outcome.err
    assert "not-the-pass-word" not in outcome.err + outcome.out


def test_a_closed_port_is_named(server, tiny_for_ssh):
    outcome = over_ssh(server, tiny_for_ssh, host=f"{server.user}@127.0.0.1:{sshd.free_port()}")
    assert outcome.code == 4
    assert "cannot be reached" in outcome.err


def test_a_root_that_cannot_be_made_is_named(server, tiny_for_ssh):
    outcome = over_ssh(server, tiny_for_ssh, "--root", "/proc/nowhere")
    assert outcome.code == 4
    assert re.search(r"no usable store[\s\S]*/proc/nowhere[\s\S]*--root", outcome.err), outcome.err


def test_a_device_without_flock_is_told_what_to_install(tiny, tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in "sh mkdir uname getconf sed head nproc df tail cat sha256sum ln mv rm cp sync find".split():  # noqa: SIM905
        (tools / name).symlink_to(shutil.which(name))
    require("the usual tools", "coreutils", (tools / "df").exists())
    monkeypatch.setenv("PATH", f"{tools}")
    from toolchain.device import fit
    from toolchain.device.store import Store
    from toolchain.errors import DeviceError
    from toolchain.native.programs import Program
    from toolchain.shell import LocalShell

    program = Program(tmp_path / "runner", "0" * 64, "", tiny.manifest.machine, tiny.manifest.versions)
    with LocalShell() as shell, pytest.raises(DeviceError, match=r"lacks flock") as caught:
        fit.check_fits(tiny.manifest, program, Store(shell, str(tmp_path / "device")).facts())
    assert "busybox" in caught.value.hint


def test_an_internal_error_is_told_as_such(monkeypatch):
    monkeypatch.setattr("toolchain.board.names", lambda: 1 / 0)
    outcome = toolchain("board", "list")
    assert outcome.code == 70
    assert "internal error: ZeroDivisionError" in outcome.err
    assert "--debug" in outcome.err


def test_debug_shows_where(monkeypatch):
    monkeypatch.setattr("toolchain.board.names", lambda: 1 / 0)
    assert "Traceback" in toolchain("--debug", "board", "list").err


def test_an_interrupt_ends_with_130_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("toolchain.compile.compiler._write_library", interrupted)
    assert toolchain("build", "mlp", "-o", tmp_path / "out").code == 130
    assert list(tmp_path.iterdir()) == []


def test_a_failed_deploy_writes_its_junit(world, tmp_path):
    report = tmp_path / "junit.xml"
    assert toolchain("deploy", world / "wrong-output", "--root", world / "device", "--junit", report).code == 5
    assert 'failures="1"' in report.read_text()
    assert "from the reference" in report.read_text()


def test_doctor_says_what_a_board_lacks(world, monkeypatch):
    outcome = toolchain("doctor", "--board", world / "strange.toml", "--json")
    assert outcome.code == 3
    lacking = [check for check in json.loads(outcome.out) if not check["found"]]
    assert [check["what"] for check in lacking] == ["aarch64-poky-linux-g++"]
    assert "install aarch64-poky-linux-g++" in outcome.err
