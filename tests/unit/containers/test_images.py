"""What is asked of the engine and what is made of its answers; tests/integration/test_containers.py asks a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolchain import process
from toolchain.containers import build, check, images
from toolchain.containers import recipe as image_recipe
from toolchain.containers import run as container_run
from toolchain.errors import BuildError, InputError

docker = container_run.docker()

ID = "sha256:1234"
ENGINE = "unix:///nowhere/docker.sock"


class Stream:
    """What `attach` returns: pairs of both outputs' bytes."""

    def __init__(self, pieces):
        self.pieces, self.closed = pieces, False

    def __iter__(self):
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    def close(self):
        self.closed = True


class Container:
    def __init__(self, engine):
        self.engine, self.id = engine, "c1"

    def attach(self, **_how):
        self.engine.events.append("attach")
        return self.engine.stream

    def start(self):
        self.engine.events.append("start")
        if self.engine.refusal:
            raise self.engine.refusal

    def remove(self, **how):
        self.engine.events.append("remove")
        assert how["force"]
        if self.engine.removal:
            raise self.engine.removal


class Answer:
    def __init__(self, code):
        self.code = code

    def raise_for_status(self):
        pass

    def json(self):
        return {"StatusCode": self.code}

    def close(self):
        pass


class Engine:
    """An engine with one image, whose containers write what a test says."""

    base_url, api_version = "http+docker://x", "1.41"

    def __init__(self):
        self.api = self.containers = self.images = self
        self.events, self.stream, self.code = [], Stream([(b"out", None), (None, b"err")]), 0
        self.refusal = self.removal = None
        self.labels = {}

    def get(self, name):
        if name not in {"edge-toolchain/some:latest", "registry/other:1"}:
            raise docker.errors.ImageNotFound("gone")
        return self

    id, tags = ID, ("edge-toolchain/some:latest",)
    attrs = {"Config": {"Env": ["PATH=/bin", "A=b=c"]}, "Size": 7}  # noqa: RUF012

    def list(self, **_filters):
        return [self]

    def create(self, image, **how):
        assert image == ID
        self.asked = how
        return Container(self)

    def post(self, address, **_how):
        self.events.append(address.rpartition("/")[2])
        return Answer(self.code)

    def close(self):
        self.events.append("close")


@pytest.fixture
def engine(monkeypatch):
    fake = Engine()
    monkeypatch.setattr(docker, "from_env", lambda **_more: fake)
    return fake


# --- run -------------------------------------------------------------------------------------------------------


def test_run(engine):
    assert images.run("some", ["c++", Path("/x")]) == process.Result(0, "out", "err")
    # An exit code asked for after the start could be gone already.
    assert engine.events == ["attach", "wait", "start", "remove", "close"]
    assert engine.stream.closed


def test_restrictions(engine):
    images.run("some", ["true"], timeout=5)
    options = engine.asked
    assert options["user"] == f"{os.getuid()}:{os.getgid()}"
    assert options["network_mode"] == "none"
    assert options["cap_drop"] == ["ALL"]
    assert "cap_add" not in options
    assert options["security_opt"] == ["no-new-privileges"]
    assert options["read_only"] is options["init"] is options["auto_remove"] is True
    assert options["pids_limit"] > 0
    assert list(options["tmpfs"]) == ["/tmp"]  # noqa: S108
    assert options["entrypoint"] == ["timeout", "--signal=KILL", "5.000"]
    assert options["mounts"] == []
    assert not {"privileged", "volumes", "devices", "ports"} & set(options)


def test_environment_and_folder(engine):
    images.run("some", ["true"], workdir=Path("/work"), environment={"A": "1"})
    assert engine.asked["working_dir"] == "/work"
    assert engine.asked["environment"] == {"HOME": "/tmp", "LC_ALL": "C.UTF-8", "A": "1"}  # noqa: S108


def test_no_time_is_not_endless_time(engine):
    images.run("some", ["true"], timeout=0)
    assert float(engine.asked["entrypoint"][-1]) > 0


def test_mounts(engine, tmp_path):
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    folders = {"readable": [tmp_path / "in", tmp_path / "out"], "writable": [tmp_path / "out"]}
    images.run("some", ["true"], **folders)
    mounts = [(mount["Source"], mount["Target"], mount["Type"], mount["ReadOnly"]) for mount in engine.asked["mounts"]]
    paths = [str(tmp_path / name) for name in ("in", "out")]
    assert mounts == [(paths[0], paths[0], "bind", True), (paths[1], paths[1], "bind", False)]


def test_a_relative_folder_is_mounted_where_it_is(engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images.run("some", ["true"], writable=[Path()])
    assert engine.asked["mounts"][0]["Target"] == str(tmp_path)


@pytest.mark.parametrize("name", ["/", "/usr", "/etc", "/usr/lib/gcc", "/proc", "/proc/self", "/sys", "/bin"])
def test_a_folder_that_would_hide_the_image(engine, name):
    with pytest.raises(BuildError, match="would hide") as caught:
        images.run("some", ["true"], readable=[Path(name)])
    assert "--toolchain host" in caught.value.hint
    assert "start" not in engine.events


def test_a_folder_that_is_missing(engine, tmp_path):
    with pytest.raises(BuildError, match="does not exist"):
        images.run("some", ["true"], writable=[tmp_path / "none"])


def test_a_command_that_fails(engine):
    engine.code = 3
    with pytest.raises(BuildError, match="c\\+\\+ failed with exit code 3 in the image some") as caught:
        images.run("some", ["c++", "a b"])
    assert caught.value.details == "c++ 'a b'\nerr"
    assert images.run("some", ["c++"], check=False).returncode == 3


def test_a_command_that_is_missing(engine):
    engine.code, engine.stream = 127, Stream([(None, b"timeout: failed to run command 'x': No such file\n")])
    with pytest.raises(BuildError, match="x is not installed in the image edge-toolchain/some:latest"):
        images.run("some", ["x"], check=False)


def test_a_command_that_takes_too_long(engine):
    engine.code = 137
    with pytest.raises(BuildError, match="it took longer than 5 s"):
        images.run("some", ["x"], timeout=5, check=False)


def test_bytes_that_are_no_text(engine):
    engine.stream = Stream([(b"\xff\xc3", None), (b"\xa9", None)])
    assert images.run("some", ["x"]).stdout == "\N{REPLACEMENT CHARACTER}é"


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), ValueError("x")])
def test_the_container_goes_whatever_happens(engine, fault):
    engine.stream = Stream([(b"o", None), fault])
    with pytest.raises(type(fault)):
        images.run("some", ["x"])
    assert engine.events[-2:] == ["remove", "close"]
    assert engine.stream.closed


def test_the_container_goes_when_it_does_not_start(engine):
    engine.refusal = docker.errors.APIError("no", explanation="docker-init is missing")
    with pytest.raises(BuildError, match="engine refused") as caught:
        images.run("some", ["x"])
    assert caught.value.details == "docker-init is missing"
    assert engine.events[-2:] == ["remove", "close"]


@pytest.mark.parametrize(
    "fault",
    [docker.errors.NotFound("gone"), docker.errors.APIError("x", explanation="removal of c1 is already in progress")],
)
def test_a_container_that_goes_by_itself(engine, fault):
    engine.removal = fault
    assert images.run("some", ["x"]).returncode == 0


def test_a_container_that_stays(engine):
    engine.removal = docker.errors.APIError("x", explanation="device busy")
    with pytest.raises(BuildError, match="engine refused"):
        images.run("some", ["x"])


# --- images and engines that are missing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "hint"), [("none", "toolchain containers build none"), ("registry/none:1", "docker pull registry/none:1")]
)
@pytest.mark.parametrize("ask", [images.identity, images.environment, lambda name: images.run(name, ["x"])])
def test_an_image_that_is_missing(engine, image, hint, ask):
    with pytest.raises(BuildError, match="is not on this machine") as caught:
        ask(image)
    assert caught.value.hint == hint


def test_no_engine(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", ENGINE)
    for ask in (images.examine, lambda: images.identity("some"), lambda: images.run("some", ["x"])):
        with pytest.raises(BuildError, match="no Docker engine is running") as caught:
            ask()
        assert "--toolchain" not in caught.value.hint  # which `containers build` does not take
        assert "set DOCKER_HOST to a running engine" in caught.value.hint


def test_an_engine_of_others(monkeypatch):
    def refuse(**_more):
        text = "('Connection aborted.', PermissionError(13, 'Permission denied'))"
        raise docker.errors.DockerException(text) from PermissionError(13, "Permission denied")

    monkeypatch.setattr(docker, "from_env", refuse)
    with pytest.raises(BuildError, match="may not use the Docker engine") as caught:
        images.identity("some")
    assert "usermod -aG docker" in caught.value.hint
    assert caught.value.details == "/var/run/docker.sock: Permission denied"


def test_importing_loads_no_docker():
    code = "import sys, toolchain.containers; print([m for m in ('docker', 'requests') if m in sys.modules])"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout == "[]\n"


# --- what there is ---------------------------------------------------------------------------------------------


def test_names_and_tags():
    assert set(images.names()) >= {"host", "pynq"}
    assert images.tag("some") == "edge-toolchain/some:latest"
    assert images.tag("registry/other:1") == "registry/other:1"


def test_identity_and_environment(engine):
    assert images.identity("some") == images.identity("registry/other:1") == ID
    assert images.environment("some") == {"PATH": "/bin", "A": "b=c"}


def test_build_of_an_unknown_image():
    with pytest.raises(InputError, match="no image recipe pink"):
        images.build("pink")


def test_build_takes_the_environment_by_default(monkeypatch):
    builds = []
    monkeypatch.setattr(build, "build", lambda *arguments: builds.append(arguments))
    monkeypatch.setenv("TOOLCHAIN_BASE_IMAGE", "mine")
    images.build("pynq")
    images.build("pynq", images.BuildOptions())
    assert [arguments[1] for arguments in builds] == ["edge-toolchain/pynq:latest"] * 2
    assert [arguments[2].base for arguments in builds] == ["mine", ""]


@pytest.mark.parametrize(("change", "state"), [("", "ready"), ("# more\n", "outdated")])
def test_examine(engine, tmp_path, monkeypatch, change, state):
    for name in ("some", "other"):
        (tmp_path / "docker" / name).mkdir(parents=True)
        dockerfile = tmp_path / "docker" / name / "Dockerfile"
        dockerfile.write_text("LABEL edge-toolchain.triple=a-b edge-toolchain.compiler=a-b-g++\n")
    recipes = image_recipe.recipes(tmp_path)
    monkeypatch.setattr(image_recipe, "recipes", lambda: recipes)
    engine.labels = {build.ARGUMENTS: '{"A": "1"}', build.SOURCES: recipes["some"].digest({"A": "1"})}
    with (tmp_path / "docker/some/Dockerfile").open("a") as stream:
        stream.write(change)
    other, some = images.examine()
    assert other == images.ImageState("other", "edge-toolchain/other:latest", "a-b", "a-b-g++", "missing")
    assert some == images.ImageState("some", "edge-toolchain/some:latest", "a-b", "a-b-g++", state, ID, 7)


# --- check -----------------------------------------------------------------------------------------------------

GOOD = {
    "--version": (0, "some-g++ (Some) 12\n", ""),
    "-shared": (0, "", ""),
    "id -u": (0, f"{os.getuid()}\n", ""),
    "touch": (1, "overlay / overlay ro,relatime 0 0\n", "touch: '/a': Read-only file system\n" * 3),
    "tcp": (1, "    lo: 0 0\n", "bash: connect: Network is unreachable\n"),
    "status": (0, "CapEff:\t0\nCapPrm:\t0\nCapBnd:\t00\nCapAmb:\t0\nNoNewPrivs:\t1\n", ""),
    "sbom": (0, json.dumps({"packages": [{"name": "g++", "versionInfo": "1"}]}), ""),
}


def outcome(replaced):
    """Check an image whose commands answer well, but for the replaced ones."""
    answers = {**GOOD, **replaced}

    def run(command, folder=None):
        text = " ".join(command)
        key = next(key for key in ("--version", "-shared", "id -u", "touch", "tcp", "status", "sbom") if key in text)
        if key == "-shared" and answers[key][0] == 0:
            (folder / "libtwice.so").write_bytes(Path(sys.executable).resolve().read_bytes())
        if isinstance(answers[key], Exception):
            raise answers[key]
        if key == "id -u":
            (folder / "owned").touch()
        return process.Result(*answers[key])

    recipe = image_recipe.Recipe(
        "x", Path(), {"edge-toolchain.triple": "sparc-linux", "edge-toolchain.compiler": "some-g++"}, {}, (), Path()
    )
    return {result.name: result for result in check.checks(recipe, run)}


def test_checks_pass():
    outcomes = outcome({})
    failed = [title for title, result in outcomes.items() if not result.passed]
    assert failed == ["it compiles for sparc-linux"]  # the stand-in writes this machine's code
    assert len(outcomes) == 7


@pytest.mark.parametrize(
    ("key", "answer", "title"),
    [
        ("--version", (127, "", "not found"), "the compiler runs"),
        ("--version", (0, "other\n", ""), "the compiler runs"),
        ("id -u", (1, "", "Permission denied"), "files belong to the calling user"),
        ("touch", (0, "overlay / overlay rw 0 0\n", ""), "the file system is read-only"),
        ("touch", (1, "overlay / overlay rw 0 0\n", "Read-only file system\n" * 3), "the file system is read-only"),
        ("tcp", (0, "lo:\neth0:\n", ""), "there is no network"),
        ("tcp", (1, "lo:\n", "Connection refused"), "there is no network"),
        ("status", (0, GOOD["status"][1].replace("CapBnd:\t00", "CapBnd:\t1"), ""), "there are no capabilities"),
        ("status", (0, GOOD["status"][1].replace("Privs:\t1", "Privs:\t0"), ""), "there are no capabilities"),
        ("status", (0, "", ""), "there are no capabilities"),
        ("sbom", (1, "", "No such file"), "the image lists its packages"),
        ("sbom", (0, "{}", ""), "the image lists its packages"),
        ("sbom", (0, '{"packages": [{"name": "gcc"}]}', ""), "the image lists its packages"),
        ("sbom", BuildError("the engine refused"), "the image lists its packages"),
    ],
)
def test_checks_fail(key, answer, title):
    assert not outcome({key: answer})[title].passed


def test_a_check_of_an_image_that_is_missing(engine):
    with pytest.raises(BuildError, match="is not on this machine"):
        images.check("pynq")
