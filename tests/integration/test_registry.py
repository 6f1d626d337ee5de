"""Packages by way of a real registry, Debian's, which knows no list of referrers; strangers' tools at the same."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from urllib.parse import parse_qs, urlsplit

import oras.client
import pytest

from tests.support import bundles as made
from tests.support import registries
from tests.support.commands import done, parsed, toolchain
from tests.support.parts import require
from tests.support.paths import ROOT
from toolchain import bundle, files
from toolchain.bundle.contents import contents, data_of

MAIN = "import sys; from toolchain.cli import main; sys.argv[0] = 'toolchain'; main()"


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """In the clear, on this machine alone."""
    with registries.running(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Encrypted, with a certificate of a CA that nobody trusts yet, and behind a password."""
    with registries.running(tmp_path_factory.mktemp("guarded"), tls=True, login=True) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_login(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))


@pytest.fixture
def logged_in(guarded, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_CONFIG", str(registries.docker_config(tmp_path / "docker", guarded.host)))


@pytest.fixture
def tuned(tiny, tmp_path):
    """A bundle with records beside its reference."""
    content = b"what was applied\n"
    tuned_records = bundle.Tuned(files.sha256_bytes(content), tasks=2, tuned=1)
    variant = made.variant(tiny, tmp_path / "tuned", {}, records=tuned_records)
    (variant.folder / bundle.RECORDS).write_bytes(content)
    return bundle.load(variant.folder)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- there and back


def test_a_bundle_and_its_package_are_the_same_there(tuned, registry, tmp_path):
    bundle.pack(tuned, tmp_path / "tuned.tar")
    first = parsed("push", tuned.folder, registry.address("lab/tuned:folder"))
    second = parsed("push", tmp_path / "tuned.tar", registry.address("lab/tuned:file"))
    assert first["digest"] == second["digest"] == f"sha256:{tuned.digest}"
    assert (first["blobs_sent"], first["companions"]) == (10, 4)
    assert (second["blobs_sent"], second["blobs_skipped"], second["bytes_sent"]) == (0, 10, 0)
    for name in ("folder", "file"):
        report = parsed("pull", registry.address(f"lab/tuned:{name}"), "-o", tmp_path / name)
        assert report["address"] == registry.address(f"lab/tuned@sha256:{tuned.digest}")
        assert files_of(tmp_path / name) == files_of(tuned.folder)


def test_an_archive_and_the_registry_hold_the_same_blobs(tuned, registry):
    done("push", tuned.folder, registry.address("lab/blobs:1"))
    for sha256, content in contents(tuned).blobs.items():
        assert registry.blob(sha256).read_bytes() == data_of(content)


def test_a_deploy_from_a_registry_tells_its_digest(tiny, registry, tmp_path):
    done("push", tiny.folder, registry.address("lab/tiny:1"))
    options = ("--root", tmp_path / "device", "--budget", 0, "--json", tmp_path / "report.json")
    by_tag = done("deploy", registry.address("lab/tiny:1"), *options)
    assert f"lab/tiny:1 is sha256:{tiny.digest}" in by_tag.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["bundle_digest"] == f"sha256:{tiny.digest}"
    assert report["stages_s"]["pull"] > 0
    assert "match onnxruntime" in by_tag.out  # the reference came with it
    done("deploy", registry.address(f"lab/tiny@sha256:{tiny.digest}"), *options)
    assert made.whole_release(tmp_path / "device") == tiny.digest


def test_make_deploys_from_a_registry():
    command = [
        "make",
        "-n",
        "deploy",
        "MODEL=oci://127.0.0.1:5000/lab/x@sha256:abc",
        "VENV=/venv",
        "-o",
        "/venv/.ready",
    ]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert '/venv/bin/toolchain deploy "oci://127.0.0.1:5000/lab/x@sha256:abc"' in completed.stdout


def test_a_deploy_keeps_the_bundle_where_it_is_told(tiny, registry, tmp_path):
    done("push", tiny.folder, registry.address("lab/kept:1"))
    options = ("--root", tmp_path / "device", "--budget", 0, "-o", tmp_path / "kept")
    done("deploy", registry.address("lab/kept:1"), *options)
    assert files_of(tmp_path / "kept") == files_of(tiny.folder)


def test_a_tag_moves_and_a_digest_does_not(tiny, registry, tmp_path):
    other = made.reweighted(tiny, tmp_path / "other", seed=5)
    for release in (tiny, other):
        done("push", release.folder, registry.address("lab/moving:1"))
    assert parsed("pull", registry.address("lab/moving:1"), "-o", tmp_path / "a")["digest"] == f"sha256:{other.digest}"
    pinned = registry.address(f"lab/moving@sha256:{tiny.digest}")
    assert parsed("pull", pinned, "-o", tmp_path / "b")["digest"] == f"sha256:{tiny.digest}"
    assert bundle.load(tmp_path / "b").reference.read_bytes() == tiny.reference.read_bytes()


def test_another_reference_makes_another_bundle(tiny, registry, tmp_path):
    """As another CPU computes other last bits: the library is shared, and neither's reference is the other's."""
    shutil.copytree(tiny.folder, tmp_path / "again")
    reference = bundle.Reference.read(tiny.reference)
    bundle.Reference("another CPU", reference.inputs, reference.outputs).save(tmp_path / "again")
    other = made.described(tiny, tmp_path / "again")
    done("push", tiny.folder, registry.address("lab/again:1"))
    assert (
        parsed("push", other.folder, registry.address("lab/again:2"))["blobs_sent"] == 4
    )  # manifest, reference, and what names the bundle
    for release, tag in ((tiny, "1"), (other, "2")):
        done("pull", registry.address(f"lab/again:{tag}"), "-o", tmp_path / tag)
        assert files_of(tmp_path / tag) == files_of(release.folder)


# --- strangers' tools


def test_oras_pulls_a_whole_bundle(tiny, registry, tmp_path):
    done("push", tiny.folder, registry.address("lab/oras:1"))
    stranger = oras.client.OrasClient(insecure=True)
    stranger.pull(f"{registry.host}/lab/oras:1", outdir=str(tmp_path / "out"))
    assert {item.name for item in (tmp_path / "out").iterdir()} == {bundle.MANIFEST, *bundle.LAYERS}
    assert bundle.load(tmp_path / "out").digest == tiny.digest
    command = ("deploy", tmp_path / "out", "--root", tmp_path / "device", "--budget", 0)
    outcome = toolchain(*command)
    assert (outcome.code, "has no reference outputs" in outcome.err) == (5, True)
    assert json.loads(done(*command, "--unchecked", "--json", "-").out)["unchecked"] is True
    assert "UNCHECKED" in done("status", "--root", tmp_path / "device").out


def test_oras_finds_what_accompanies_a_bundle(tiny, registry, tmp_path):
    done("push", tiny.folder, registry.address("lab/beside:1"))
    stranger = oras.client.OrasClient(insecure=True)
    listed = stranger.get_manifest(
        f"{registry.host}/lab/beside:sha256-{tiny.digest}", ["application/vnd.oci.image.index.v1+json"]
    )["manifests"]
    digests = {descriptor["artifactType"]: descriptor["digest"] for descriptor in listed}
    assert {"application/vnd.cyclonedx+json", "application/vnd.in-toto+json"} < digests.keys()
    for digest in digests.values():
        stranger.pull(f"{registry.host}/lab/beside@{digest}", outdir=str(tmp_path))
    for name in (bundle.REFERENCE, bundle.BILL, bundle.PROVENANCE):
        assert (tmp_path / name).read_bytes() == (tiny.folder / name).read_bytes()


def skopeo(*arguments):
    require("another client of registries", "skopeo", shutil.which("skopeo") is not None)
    completed = subprocess.run(["skopeo", "--insecure-policy", *arguments], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_skopeo_copies_a_package_into_a_registry_and_out_of_it(tiny, registry, tmp_path):
    bundle.pack(tiny, tmp_path / "tiny.tar")
    there = f"docker://{registry.host}/lab/skopeo:1"
    skopeo("copy", "--dest-tls-verify=false", f"oci-archive:{tmp_path}/tiny.tar:{tiny.manifest.name}", there)
    report = parsed("pull", registry.address("lab/skopeo:1"), "-o", tmp_path / "out")
    assert report["digest"] == f"sha256:{tiny.digest}"
    assert bundle.load(tmp_path / "out").reference is None  # one image is what it copies
    (tmp_path / "copy").mkdir()
    skopeo("copy", "--src-tls-verify=false", there, f"dir:{tmp_path}/copy")
    copied = {path.name for path in (tmp_path / "copy").iterdir()}
    assert {record.sha256 for record in tiny.manifest.files.values()} <= copied


def test_an_image_of_somebody_else_is_no_package(registry, tmp_path):
    (tmp_path / "hello.txt").write_text("hello")
    stranger = oras.client.OrasClient(insecure=True)
    stranger.push(f"{registry.host}/lab/hello:1", files=[str(tmp_path / "hello.txt")], disable_path_validation=True)
    outcome = toolchain("pull", registry.address("lab/hello:1"), "-o", tmp_path / "out")
    assert (outcome.code, "does not contain a bundle" in outcome.err) == (2, True)


# --- certificates and logins


def test_an_unknown_certificate_is_not_trusted(guarded, tmp_path):
    """Nor is a registry elsewhere spoken to without one: here it would be, but for --ca with another's certificate."""
    other = registries.certify(tmp_path)
    outcome = toolchain("pull", guarded.address("x:1"), "-o", tmp_path / "out", "--ca", other)
    assert (outcome.code, "certificate" in outcome.err, "--ca" in outcome.err) == (5, True, True)


def test_a_registry_with_tls_is_not_spoken_to_without(guarded, tmp_path):
    outcome = toolchain("pull", guarded.address("x:1"), "-o", tmp_path / "out")
    assert (outcome.code, "--ca" in outcome.err) == (4, True)


def test_a_registry_without_tls_is_told(registry, guarded, tmp_path):
    outcome = toolchain("pull", registry.address("x:1"), "-o", tmp_path / "out", "--ca", guarded.authorities)
    assert (outcome.code, "does not speak TLS" in outcome.err, "--plain-http" in outcome.err) == (4, True, True)


@pytest.mark.usefixtures("logged_in")
def test_what_docker_login_keeps_lets_in(tiny, guarded, tmp_path):
    login = ("--ca", guarded.authorities)
    done("push", tiny.folder, guarded.address("lab/tiny:1"), *login)
    done("deploy", guarded.address("lab/tiny:1"), *login, "--root", tmp_path / "device", "--budget", 0)
    assert made.whole_release(tmp_path / "device") == tiny.digest


def with_password(guarded, password, *command):
    """Run the command as a process, whose standard input is the password."""
    options = ["--ca", guarded.authorities, "--username", registries.USER, "--password-stdin"]
    command = [sys.executable, "-c", MAIN, *command, *options]
    return subprocess.run(command, input=f"{password}\n", capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_password_comes_through_standard_input(tiny, guarded):
    command = ("push", tiny.folder, guarded.address("lab/stdin:1"))
    outcome = with_password(guarded, registries.PASSWORD, *command)
    assert outcome.returncode == 0, outcome.stderr
    outcome = with_password(guarded, "wrong", *command)
    assert (outcome.returncode, "refuses this user" in outcome.stderr) == (4, True)
    assert "wrong" not in outcome.stderr


def test_a_server_of_tokens_gives_one_for_each_right(tiny, tmp_path, monkeypatch):
    """As the large registries do it: a token to read, and another one once something is written."""
    folder = tmp_path / "registry"
    folder.mkdir()
    login = ("--ca", registries.certify(folder))
    requests = []

    def tokens(request):
        scope = parse_qs(urlsplit(request.path).query)["scope"][0]
        name, _, rights = scope.removeprefix("repository:").partition(":")
        assert name == "lab/tiny"
        rights = " ".join(sorted(rights.split(",")))  # the registry asks for both in any order
        requests.append((rights, request.headers.get("Authorization", "").partition(" ")[0]))
        return registries.Answer(200, json.dumps({"token": registries.token(folder, scope)}).encode())

    with (
        registries.told(tokens, folder) as server,
        registries.running(folder, tls=True, tokens=server.host) as protected,
    ):
        config = registries.docker_config(tmp_path / "docker", protected.host)
        monkeypatch.setenv("DOCKER_CONFIG", str(config))
        done("push", tiny.folder, protected.address("lab/tiny:1"), *login)
        assert requests == [("pull", "Basic"), ("pull push", "Basic")]
        done("pull", protected.address("lab/tiny:1"), "-o", tmp_path / "out", *login)
        assert files_of(tmp_path / "out") == files_of(tiny.folder)


def test_without_a_login_nothing_is_let_in(tiny, guarded):
    outcome = toolchain("push", tiny.folder, guarded.address("lab/none:1"), "--ca", guarded.authorities)
    assert (outcome.code, f"docker login {guarded.host}" in outcome.err) == (4, True)


# --- what goes wrong


def test_a_tag_that_is_not_there(registry, tmp_path):
    outcome = toolchain("deploy", registry.address("lab/none:1"), "--root", tmp_path / "device")
    assert (outcome.code, "there is no oci://" in outcome.err) == (2, True)


@pytest.mark.parametrize("name", ["params.safetensors", "manifest.json"])
def test_a_blob_that_was_changed_in_the_registry(tiny, registry, tmp_path, name):
    other = made.reweighted(tiny, tmp_path / "other", seed=len(name))
    done("push", other.folder, registry.address("lab/changed:1"))
    stored = registry.blob(files.sha256_file(other.folder / name))
    before = stored.read_bytes()
    stored.write_bytes(before.replace(before[-4:-3], b"\xfe"))
    try:
        outcome = toolchain("pull", registry.address("lab/changed:1"), "-o", tmp_path / "out")
    finally:
        stored.write_bytes(before)
    assert (outcome.code, "does not match its digest" in outcome.err) == (5, True)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_pull_leaves_the_earlier_bundle(tiny, registry, tmp_path):
    """The registry goes silent in the middle; whoever has enough of that presses Ctrl-C."""
    done("push", tiny.folder, registry.address("lab/silent:1"))
    done("pull", registry.address("lab/silent:1"), "-o", tmp_path / "out")
    before, shelf, over = files_of(tmp_path / "out"), registries.Shelf(), threading.Event()

    def silent(request):
        if request.method == "GET" and "/blobs/" in request.path:
            over.wait(60)

    with registries.told(shelf) as slow:
        address = f"oci://{slow.host}/lab/silent:1"
        done("push", tiny.folder, address)
        shelf.instead = silent
        command = [sys.executable, "-c", MAIN, "pull", address, "-o", tmp_path / "out"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT) as process:
            while not any("/blobs/" in path for path in slow.paths("GET")):
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            message = process.communicate(timeout=60)[1].decode()
            over.set()
    assert process.returncode == 130, message
    assert files_of(tmp_path / "out") == before
    assert {item.name for item in tmp_path.iterdir()} == {"out"}
