"""The images themselves: built by a real engine, compared byte by byte, and used as builds use them.

TOOLCHAIN_BASE_IMAGE and its siblings say where their parts come from: see docs/containers.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import tvm
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.support import builders, candidates, sshd
from tests.support import images as test_images
from tests.support.commands import done, parsed
from tests.support.parts import require
from toolchain import resources
from toolchain.containers import build, images
from toolchain.containers import recipe as image_recipe
from toolchain.containers import run as container_run
from toolchain.errors import BuildError
from toolchain.native import cross
from toolchain.tuning.build import Builder
from toolchain.tuning.build.cluster.crew import DaskCrew
from toolchain.tuning.build.cluster.roster import survey
from toolchain.tuning.build.cluster.scheduler import Access, parse

pytestmark = pytest.mark.xdist_group("docker")

docker = container_run.docker()

TRIPLE = f"{platform.machine()}-linux-gnu"
OPTIONS = images.BuildOptions.from_environment()
COPIED = (
    "Dockerfile",
    "LICENSE",
    "README.md",
    "boards",
    "docker",
    "docs",
    "hatch_build.py",
    "pyproject.toml",
    "requirements.lock",
    "toolchain",
)


def present() -> bool:
    try:
        with container_run.engine(10.0) as client:
            client.ping()
    except BuildError:
        return False
    return shutil.which(os.environ.get("TOOLCHAIN_DOCKER") or "docker") is not None


@pytest.fixture(scope="module", autouse=True)
def client():
    """The engine, which looks afterwards as it did before: no container, work image or layer of ours is left."""
    require("a Docker engine", "docker.io", present())
    docker_client = docker.from_env(timeout=600)
    yield docker_client
    # The engine removes a container by itself, which a busy machine takes its time for.
    until(lambda: not leftovers(docker_client), 60)
    docker_client.close()


def until(holds, seconds) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def leftovers(client) -> list[str]:
    running = client.containers.list(all=True, ignore_removed=True, filters={"label": container_run.WORK_LABEL})
    return [f"{container.id} {container.status} {container.attrs['Config']['Cmd']}" for container in running] + [
        name for tag in client.images.list(name="edge-toolchain/work") for name in tag.tags
    ]


@pytest.fixture(scope="module")
def built():
    """The smallest cross compiler's image, from the engine's cache if it was built before."""
    with test_images.alone():
        return images.build("pynq", OPTIONS)


@contextlib.contextmanager
def another(client, name, recipe, options):
    """Build an image under a name of its own, which is gone afterwards."""
    tag = f"edge-toolchain-test/{name}:{uuid.uuid4().hex}"
    try:
        yield build.build(recipe, tag, options, lambda _line: None)
    finally:
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.images.remove(tag)


def content(client, image) -> dict[str, str]:
    """Describe every file of an image: what differs between two of them is then a difference of two dicts."""
    with tempfile.TemporaryFile() as stream:
        for chunk in client.images.get(image).save():
            stream.write(chunk)
        stream.seek(0)
        with tarfile.open(fileobj=stream) as saved:
            [layer] = json.load(saved.extractfile("manifest.json"))[0]["Layers"]
            with tarfile.open(fileobj=saved.extractfile(layer)) as archive:
                return {member.name: described(archive, member) for member in archive}


def described(archive, entry) -> str:
    digest = hashlib.sha256(archive.extractfile(entry).read()).hexdigest() if entry.isreg() else ""
    return f"{entry.type!r} {entry.mode:o} {entry.uid}:{entry.gid} {entry.mtime} {entry.size} {entry.linkname} {digest}"


@pytest.mark.nightly
def test_two_builds_are_one_image(built, client, tmp_path):
    """Build again without a cache: later, in another folder, under another umask, with another path to everything."""
    for name in COPIED:
        source, target = resources.ROOT / name, tmp_path / "elsewhere" / name
        target.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
    options = images.BuildOptions(**{**vars(OPTIONS), "cache": False})
    before = os.umask(0o077)
    try:
        with another(client, "again", image_recipe.recipe("pynq", tmp_path / "elsewhere"), options) as again:
            first, second = content(client, built.id), content(client, again.id)
            assert sorted(set(first.items()) ^ set(second.items())) == []
            assert again.id == built.id
    finally:
        os.umask(before)


def test_what_the_image_says(built, client):
    image = client.images.get(built.tag)
    created = image.labels["org.opencontainers.image.created"]
    assert image.id == built.id == images.identity("pynq")
    assert image.attrs["Created"] == created
    assert image.labels["edge-toolchain.triple"] == "arm-linux-gnueabihf"
    state = {status.name: status for status in images.examine()}["pynq"]
    assert (state.state, state.id, state.size) == ("ready", built.id, built.size)
    times = {text.split()[3] for name, text in content(client, built.id).items() if name.startswith("usr/")}
    assert len(times) == 1


def test_checks(built):
    checks = images.check(built.name)
    assert [check for check in checks if not check.passed] == []
    assert len(checks) == 7


def test_bill_of_materials(built):
    text = images.run("pynq", ["cat", "/usr/share/edge-toolchain/sbom.spdx.json"]).stdout
    listed = images.run("pynq", ["dpkg-query", "-W", "-f", "${Package} ${Version}\n"]).stdout.splitlines()
    document = json.loads(text)
    assert (document["spdxVersion"], document["dataLicense"]) == ("SPDX-2.3", "CC0-1.0")
    image, *packages = document["packages"]
    assert sorted(f"{package['name']} {package['versionInfo']}" for package in packages) == sorted(listed)
    identities = [package["SPDXID"] for package in document["packages"]]
    assert len(set(identities)) == len(identities)
    contained = {
        relationship["relatedSpdxElement"]
        for relationship in document["relationships"]
        if relationship["relationshipType"] == "CONTAINS"
    }
    assert contained == set(identities) - {image["SPDXID"]}


def test_the_bill_is_told_as_cyclonedx_and_the_build_as_in_toto(built):
    listed = images.run("pynq", ["dpkg-query", "-W", "-f", "${Package} ${Version}\n"]).stdout.splitlines()
    bill = parsed("containers", "inventory", "pynq")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    assert sorted(f"{component['name']} {component['version']}" for component in bill["components"]) == sorted(listed)
    statement = parsed("containers", "inventory", "pynq", "--provenance")
    assert statement["subject"][0]["digest"]["sha256"] == images.identity("pynq").removeprefix("sha256:")
    assert done("containers", "inventory", "pynq").out.startswith("NAME ")


def test_a_build_as_builds_are_run(built, tmp_path):
    sources, output = tmp_path / "sources", tmp_path / "output"
    sources.mkdir()
    output.mkdir()
    (sources / "a.cc").write_text("int main() { return 7; }\n")
    command = ["arm-linux-gnueabihf-g++", sources / "a.cc", "-o", output / "a", "-static"]
    images.run("pynq", command, writable=[output], readable=[sources], workdir=output)
    assert (output / "a").read_bytes()[:4] == b"\x7fELF"
    with pytest.raises(BuildError, match="touch failed"):
        images.run("pynq", ["touch", sources / "b"], writable=[output], readable=[sources])
    with pytest.raises(BuildError, match="cat failed"):
        images.run("pynq", ["cat", sources / "a.cc"], writable=[output])
    assert [path.name for path in sources.iterdir()] == ["a.cc"]


def test_outputs_stay_apart_and_whole(built):
    script = "head -c 3000000 /dev/zero | tr '\\0' x; echo fault >&2; exit 3"
    completed = images.run("pynq", ["sh", "-c", script], check=False)
    assert (completed.returncode, len(completed.stdout), completed.stderr) == (3, 3_000_000, "fault\n")


def test_short_commands_keep_their_exit_codes(built):
    codes = [images.run("pynq", ["sh", "-c", f"exit {code}"], check=False).returncode for code in range(10)]
    assert codes == list(range(10))


def test_many_processes_are_refused(built):
    completed = images.run(
        "pynq", ["bash", "-c", "for i in $(seq 700); do sleep 20 & done; wait"], check=False, timeout=30
    )
    assert "Resource temporarily unavailable" in completed.stderr


def test_a_command_that_takes_too_long(built):
    start = time.monotonic()
    with pytest.raises(BuildError, match="took longer than 1 s"):
        images.run("pynq", ["sh", "-c", "trap '' TERM; sleep 60"], timeout=1)
    assert time.monotonic() - start < 50


def test_a_killed_caller_leaves_no_container(built, client):
    code = "from toolchain.containers import images; images.run('pynq', ['sleep', '60'], timeout=5)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=resources.ROOT) as caller:
        until(lambda: client.containers.list(filters={"label": container_run.WORK_LABEL}), 60)  # only running ones
        caller.send_signal(signal.SIGKILL)
    assert leftovers(client)
    until(lambda: not leftovers(client), 30)


def test_an_interrupted_build_leaves_nothing(client):
    """Interrupt a build in its longest step; the engine is left as it was."""
    before = {image.id for image in client.images.list(filters={"dangling": True})}

    def tell(line):
        if "apt.sh" in line:
            time.sleep(2)
            raise KeyboardInterrupt

    options = images.BuildOptions(**{**vars(OPTIONS), "cache": False})
    with pytest.raises(KeyboardInterrupt):
        build.build(image_recipe.recipe("pynq"), "edge-toolchain-test/none:latest", options, tell)
    until(lambda: not leftovers(client), 60)  # other tests link in containers meanwhile
    assert {image.id for image in client.images.list(filters={"dangling": True})} <= before
    assert client.images.list(name="edge-toolchain-test/none") == []


# --- many links in one container -------------------------------------------------------------------------------

PYNQ = cross.ContainerCross("arm-linux-gnueabihf", "pynq")


@pytest.fixture
def thing(built, tmp_path) -> Path:
    """An object for the board of the smallest image, in a folder of its own."""
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "a.c").write_text("int a(int x) { return x / 3; }\n")
    images.run("pynq", [PYNQ.compiler, "-c", "-fPIC", folder / "a.c", "-o", folder / "a.o"], writable=[folder])
    return folder / "a.o"


def test_many_links_are_the_same_bytes_as_one_and_take_one_container(thing, client, tmp_path, monkeypatch):
    PYNQ.link(tmp_path / "model.so", [thing])
    folders = [tmp_path / str(number) for number in range(8)]
    for folder in folders:
        folder.mkdir()
    starts, run = [], images.run
    monkeypatch.setattr(
        images, "run", lambda *arguments, **options: starts.append(arguments) or run(*arguments, **options)
    )
    assert PYNQ.link_all([(folder / "model.so", [thing]) for folder in folders]) == [None] * 8
    assert len(starts) == 1
    assert {(folder / "model.so").read_bytes() for folder in folders} == {(tmp_path / "model.so").read_bytes()}
    assert [path.name for path in folders[0].iterdir()] == ["model.so"]


def test_one_failing_link_of_a_container_fails_alone(thing, tmp_path):
    pairs = [(tmp_path / "a.so", [thing]), (tmp_path / "b.so", [thing, thing]), (tmp_path / "c.so", [thing])]
    pairs.append((tmp_path / "d.so", [tmp_path / "nowhere" / "d.o"]))
    first, second, third, fourth = PYNQ.link_all(pairs)
    assert (first, third) == (None, None)
    assert "failed with exit code 1 in the image pynq" in second.message
    assert "multiple definition" in second.details
    assert "No such file" in fourth.details
    assert [path.exists() for path, _ in pairs] == [True, False, True, False]


def test_a_link_that_hangs_in_a_container_fails_alone(thing, tmp_path):
    """The hanging one is given a pipe that nobody writes to."""
    os.mkfifo(thing.parent / "pipe.o")
    start = time.monotonic()
    pairs = [
        (tmp_path / "slow.so", [thing.parent / "pipe.o"]),
        (tmp_path / "a.so", [thing]),
        (tmp_path / "b.so", [thing]),
    ]
    slow, *others = PYNQ.link_all(pairs, timeout=3.0)
    assert time.monotonic() - start < 60
    assert "exit code 137" in slow.message
    assert others == [None, None]


def test_a_container_that_dies_leaves_what_was_linked(thing, client, tmp_path):
    os.mkfifo(thing.parent / "pipe.o")
    pairs = [(tmp_path / f"{number}.so", [thing]) for number in range(4)]
    pairs.append((tmp_path / "slow.so", [thing.parent / "pipe.o"]))
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(PYNQ.link_all, pairs, timeout=120.0)
        until(lambda: all(path.exists() for path, _ in pairs[:4]), 60)
        time.sleep(0.5)  # until what was written is also reported
        [container] = client.containers.list(filters={"label": container_run.WORK_LABEL})
        container.kill()
        *faults, last = future.result(60)
    assert faults == [None] * 4
    assert "was killed" in last.message
    assert [path.exists() for path, _ in pairs] == [True] * 4 + [False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.so", "1.so", "2.so", "3.so", "objects"]


def test_an_image_that_is_not_here(thing, tmp_path):
    absent = cross.ContainerCross("arm-linux-gnueabihf", "edge-toolchain-test/none:latest")
    faults = absent.link_all([(tmp_path / "a.so", [thing]), (tmp_path / "b.so", [thing])])
    assert [fault.message for fault in faults] == [
        "the image edge-toolchain-test/none:latest is not on this machine"
    ] * 2


def test_candidates_of_a_search_are_linked_in_containers(built, tmp_path):
    import tvm  # it takes a second that the other tests need not spend

    from tests.support import candidates
    from toolchain.tuning.build import Builder

    target = tvm.target.Target({"kind": "llvm", "mtriple": PYNQ.triple, "mcpu": "cortex-a9", "mfloat-abi": "hard"})
    modules = [candidates.matmul(2), candidates.on_a_gpu(), candidates.matmul(4), candidates.matmul(2)]
    with Builder(target, PYNQ, tmp_path / "made", workers=2, timeout_s=120.0) as builder:
        artifacts = builder.build(modules)
        assert [item.library is None for item in artifacts] == [False, True, False, False]
        texts = [item.library.read_bytes() for item in artifacts if item.library]
        assert all(text[18:20] == b"\x28\0" for text in texts)  # the number that ELF gives 32-bit Arm
        assert texts[0] == texts[2] != texts[1]
    assert list((tmp_path / "made").iterdir()) == []


# --- the slot for an NDK ---------------------------------------------------------------------------------------

DRIVER = "android-ndk-r0/toolchains/llvm/prebuilt/linux-x86_64/bin/aarch64-linux-android24-clang++"


@pytest.fixture
def ndk(tmp_path) -> Path:
    """An archive in the shape of an NDK, whose driver is the GNU compiler."""
    path = tmp_path / "android-ndk-r0-linux.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("android-ndk-r0/source.properties", "Pkg.Desc = Android NDK\nPkg.Revision = 0.1.2\n")
        driver = zipfile.ZipInfo(DRIVER)
        driver.external_attr, driver.create_system = 0o100755 << 16, 3
        archive.writestr(driver, '#!/bin/sh\nexec aarch64-linux-gnu-g++ "$@"\n')
    return path


def test_an_ndk(ndk, client, tmp_path):
    options = images.BuildOptions(
        **{**vars(OPTIONS), "ndk": str(ndk), "ndk_sha256": hashlib.sha256(ndk.read_bytes()).hexdigest()}
    )
    with another(client, "ndk", image_recipe.recipe("mali"), options) as image:
        driver = images.environment(image.tag)["TVM_NDK_CC"]
        (tmp_path / "a.c").write_text("int a;\n")
        command = [driver, "-shared", "-fPIC", tmp_path / "a.c", "-o", tmp_path / "a.so"]
        images.run(image.tag, command, writable=[tmp_path])
        text = images.run(image.tag, ["cat", "/usr/share/edge-toolchain/sbom.spdx.json"]).stdout
        versions = {package["name"]: package.get("versionInfo") for package in json.loads(text)["packages"]}
    assert versions["android-ndk"] == "0.1.2"
    assert (tmp_path / "a.so").is_file()


def test_another_archive_than_the_named_one(ndk):
    options = images.BuildOptions(**{**vars(OPTIONS), "ndk": str(ndk), "ndk_sha256": "0" * 64})
    with pytest.raises(BuildError) as caught:
        images.build("mali", options)
    assert "is not the archive that NDK_SHA256 names" in caught.value.details


# --- the toolchain's own image ---------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # downloads and writes 1.6 GB
def test_the_toolchain_in_its_image(client):
    """`docker run IMAGE` works for any user, without a home and with a read-only root."""
    image = images.build("host", OPTIONS)
    output = client.containers.run(
        image.id, ["--help"], user="4242:4242", read_only=True, environment={"HOME": ""}, remove=True
    )
    assert b"Compile a neural network for your board" in output
    assert [check for check in images.check("host") if not check.passed] == []
    code = "import sys, tvm; print(tvm.__version__, tvm.target.Target('llvm').kind)"
    assert "llvm" in images.run("host", ["python", "-c", code]).stdout


@contextlib.contextmanager
def composed(project: str, **environment: str):
    """Run the services of docker/builders.yaml for the time of a block."""
    command = ["docker-compose", "--project-name", project, "--file", str(resources.ROOT / "docker/builders.yaml")]
    how = {"env": {**os.environ, **environment}, "capture_output": True}
    subprocess.run([*command, "up", "--detach"], check=True, **how)
    try:
        yield
    finally:
        subprocess.run([*command, "down", "--timeout", "5"], check=True, **how)


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # as above, if it comes first
def test_builders_in_containers_make_the_same_bytes(client, tmp_path):
    """A scheduler and a worker as docker/builders.yaml has them: with TLS, read-only, and as an ordinary user."""
    require("docker-compose", "docker-compose", shutil.which("docker-compose") is not None)
    images.build("host", OPTIONS)
    tls = builders.certificates(tmp_path)[1::2]
    for path, mode in ((tmp_path, 0o755), (tmp_path / "key.pem", 0o644)):
        path.chmod(mode)  # the user in the containers is another one
    port, project, lines = sshd.free_port(), f"builders-{uuid.uuid4().hex[:8]}", []
    scheduler = parse(f"tls://127.0.0.1:{port}", Access(*map(Path, tls)))
    target = tvm.target.Target({"kind": "llvm", "mtriple": TRIPLE})
    modules = [candidates.matmul(size) for size in (1, 4, 16)]
    names = {"BUILDERS_TLS": str(tmp_path), "BUILDERS_USER": "4242:4242"}
    names |= {"PORT": str(port), "SCHEDULER": f"tls://127.0.0.1:{port}"}
    with composed(project, **names):
        until(lambda: answers(port) and survey(scheduler), 120)
        hire = partial(DaskCrew, scheduler, TRIPLE, lines.append)
        with Builder(target, cross.HostCross(TRIPLE), tmp_path / "there", timeout_s=120.0, hire=hire) as there:
            libraries = [artifact.library.read_bytes() for artifact in there.build(modules)]
            assert sum(row.candidates for row in there.rows) == len(modules)
    with Builder(target, cross.HostCross(TRIPLE), tmp_path / "here", timeout_s=120.0) as here:
        assert [artifact.library.read_bytes() for artifact in here.build(modules)] == libraries
    assert not any("warning" in line for line in lines), lines
    assert not client.containers.list(all=True, filters={"label": f"com.docker.compose.project={project}"})


def answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False
