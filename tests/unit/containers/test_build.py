"""`docker build` as it is called: a script stands in for the command, a small class for the engine."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
import time
from pathlib import Path

import pytest

from toolchain.containers import archive as image_archive
from toolchain.containers import build as image_build
from toolchain.containers import recipe as image_recipe
from toolchain.containers import run
from toolchain.containers.build import BuildOptions
from toolchain.errors import BuildError, InputError

DOCKERFILE = """
ARG BASE_IMAGE=debian@sha256:1
FROM ${BASE_IMAGE}
ARG DEBIAN_SNAPSHOT=20251229T000000Z
ARG DEBIAN_MIRROR=
ARG PIP_INDEX_URL=
ARG NDK_ARCHIVE=
ARG NDK_SHA256=
ARG SOURCE_DATE_EPOCH=7
COPY one.txt /
LABEL edge-toolchain.triple=some-linux-gnu edge-toolchain.compiler=some-g++
"""
docker = run.docker()

TAG = "edge-toolchain/some:latest"
INDEX = "https://name:password@index.invalid/simple"


@pytest.fixture
def recipe(tmp_path):
    root = tmp_path / "tree"
    (root / "docker/some").mkdir(parents=True)
    (root / "docker/some/Dockerfile").write_text(DOCKERFILE)
    (root / "one.txt").write_text("1")
    return image_recipe.recipe("some", root)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Stand in for the docker command: notes its arguments and variables, then does what a test says."""

    def stand_in(script):
        path = tmp_path / "docker"
        path.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/argv\nenv >{tmp_path}/env\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("TOOLCHAIN_DOCKER", str(path))
        return path

    return stand_in


class Engine:
    """Knows images by name; what is exported is a file system of one file."""

    def __init__(self):
        self.containers = self
        self.removed, self.loaded = [], []

    @property
    def images(self):
        return Images(self)

    def list(self, **_filters):
        return []

    def create(self, image, **_more):
        self.created = image
        return self

    def export(self):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            info = tarfile.TarInfo("one.txt")
            info.size = 1
            archive.addfile(info, io.BytesIO(b"1"))
        yield stream.getvalue()

    def remove(self, **_how):
        self.removed.append("container")


class Image:
    def __init__(self, identity):
        self.id, self.tags, self.attrs, self.labels = identity, [], attributes(), {}


class Images:
    def __init__(self, engine):
        self.engine = engine

    def get(self, name):
        return Image(self.engine.loaded[-1] if name == TAG else name)

    def list(self, name):
        return [Image("sha256:old")] if name == TAG else []

    def remove(self, name, **_how):
        self.engine.removed.append(name)
        if name.startswith("missing"):
            raise docker.errors.ImageNotFound("gone")

    def load(self, stream):
        with tarfile.open(fileobj=stream) as archive:
            [manifest] = json.load(archive.extractfile("manifest.json"))
            self.engine.config = json.load(archive.extractfile(manifest["Config"]))
        self.engine.loaded.append(f"sha256:{manifest['Config'].removesuffix('.json')}")


def attributes():
    config = {"Env": ["PATH=/bin", "EMPTY="], "Entrypoint": ["run"], "Cmd": None}
    return {"Config": config, "Architecture": "amd64", "Size": 5}


@pytest.fixture
def engine(monkeypatch):
    fake = Engine()
    monkeypatch.setattr(docker, "from_env", lambda **_more: fake)
    fake.close = lambda: None
    return fake


def build(recipe, options=None, lines=None):
    lines = [] if lines is None else lines
    return image_build.build(recipe, TAG, options or BuildOptions(), lines.append)


# --- what an image is made of ----------------------------------------------------------------------------------


def test_defaults_are_the_dockerfiles(recipe):
    assert BuildOptions().arguments(recipe) == recipe.arguments


@pytest.mark.parametrize(
    ("options", "snapshot"),
    [
        ({"mirror": "http://mirror.invalid"}, ""),
        ({"mirror": "http://mirror.invalid", "snapshot": "20200101T000000Z"}, "20200101T000000Z"),
        ({"snapshot": ""}, ""),
        ({}, "20251229T000000Z"),
    ],
)
def test_a_mirror_stands_for_itself_unless_a_snapshot_is_named(recipe, options, snapshot):
    assert BuildOptions(**options).arguments(recipe)["DEBIAN_SNAPSHOT"] == snapshot


def test_arguments_that_a_dockerfile_lacks_are_left_out(recipe):
    bare = image_recipe.Recipe("x", Path("x"), {}, {"BASE_IMAGE": "y"}, (), Path())
    assert BuildOptions(mirror="m", index="i", base="b").arguments(bare) == {"BASE_IMAGE": "b"}
    assert BuildOptions(mirror="m", index="i", base="b").arguments(recipe)["PIP_INDEX_URL"] == "i"


@pytest.mark.parametrize(("ndk", "name"), [("/some/where/ndk.zip", "ndk.zip"), ("https://a.invalid/x/n.zip",) * 2])
def test_an_ndk_is_a_file_or_an_address(recipe, ndk, name):
    assert BuildOptions(ndk=ndk, ndk_sha256="1").arguments(recipe)["NDK_ARCHIVE"] == name


def test_an_ndk_goes_where_there_is_a_place_for_it(recipe):
    bare = image_recipe.Recipe("x", Path("x"), {}, {"BASE_IMAGE": "y"}, (), Path())
    assert BuildOptions(ndk="/some/ndk.zip").ndk_file(recipe) == Path("/some/ndk.zip")
    assert BuildOptions(ndk="/some/ndk.zip").ndk_file(bare) is None
    assert BuildOptions(ndk="https://a.invalid/ndk.zip").ndk_file(recipe) is BuildOptions().ndk_file(recipe) is None


def test_an_ndk_without_checksum(recipe):
    with pytest.raises(InputError, match="checksum"):
        build(recipe, BuildOptions(ndk="x.zip"))


def test_options_of_the_environment():
    options = BuildOptions.from_environment(
        {
            "TOOLCHAIN_BASE_IMAGE": "base",
            "TOOLCHAIN_DEBIAN_SNAPSHOT": "",
            "TOOLCHAIN_DEBIAN_MIRROR": "mirror",
            "TOOLCHAIN_PIP_INDEX_URL": "index",
            "TOOLCHAIN_EXTRA_CA": f"/a.crt{os.pathsep}/b.crt",
            "SOURCE_DATE_EPOCH": "12",
        }
    )
    certificates = (Path("/a.crt"), Path("/b.crt"))
    assert options == BuildOptions("base", "", "mirror", "index", certificates, created=12)
    assert BuildOptions.from_environment({}) == BuildOptions()


def test_a_time_that_is_none():
    with pytest.raises(InputError, match="SOURCE_DATE_EPOCH"):
        BuildOptions.from_environment({"SOURCE_DATE_EPOCH": "today"})


def test_where_parts_come_from_is_no_content(recipe):
    options = BuildOptions(mirror="http://mirror.invalid", index=INDEX, base="b", created=9)
    content = image_build.content(options.arguments(recipe))
    assert content == {"BASE_IMAGE": "b", "DEBIAN_SNAPSHOT": "", "NDK_SHA256": "", "SOURCE_DATE_EPOCH": "9"}


# --- docker build ----------------------------------------------------------------------------------------------


def test_build(recipe, command, engine, tmp_path):
    command("echo out; echo err >&2")
    lines = []
    built = build(recipe, BuildOptions(index=INDEX, cache=False), lines)
    argv = (tmp_path / "argv").read_text()
    assert "--build-arg PIP_INDEX_URL " in argv
    assert "--no-cache" in argv
    assert "password" not in argv
    assert f"PIP_INDEX_URL={INDEX}" in (tmp_path / "env").read_text()
    assert {"out", "err"} <= set(lines)
    assert built.id == engine.loaded[-1]
    assert engine.created in engine.removed  # the image that docker build made
    assert "sha256:old" in engine.removed  # and the one that had the tag before
    assert not Path(argv.split()[-1]).exists()


def test_what_an_image_says(recipe, command, engine):
    command(":")
    build(recipe, BuildOptions(index=INDEX))
    labels = engine.config["config"]["Labels"]
    assert engine.config["config"]["Env"] == ["PATH=/bin"]
    assert engine.config["config"]["Entrypoint"] == ["run"]
    assert labels["edge-toolchain.triple"] == "some-linux-gnu"
    assert labels["org.opencontainers.image.base.name"] == "debian@sha256:1"
    assert labels["org.opencontainers.image.created"] == engine.config["created"] == "1970-01-01T00:00:07Z"
    assert "password" not in json.dumps(engine.config)
    assert image_build.is_current(recipe, labels)
    (recipe.root / "one.txt").write_text("2")
    assert not image_build.is_current(recipe, labels)


@pytest.mark.parametrize("labels", [{}, {"edge-toolchain.arguments": "x"}, {"edge-toolchain.arguments": "[]"}])
def test_an_image_that_somebody_else_made_is_not_current(recipe, labels):
    assert not image_build.is_current(recipe, labels)


def test_a_client_without_buildx_builds_classically(recipe, command, engine, tmp_path):
    command(
        'if [ "$DOCKER_BUILDKIT" = 1 ]; then\n'
        'echo "ERROR: BuildKit is enabled but the buildx component is missing or broken." >&2; exit 1; fi'
    )
    build(recipe)
    assert len((tmp_path / "argv").read_text().splitlines()) == 2
    assert engine.loaded


def test_a_failing_step(recipe, command, engine):
    command("echo 'E: no such package' >&2; exit 4")
    with pytest.raises(BuildError, match="some could not be built") as caught:
        build(recipe)
    assert "E: no such package" in caught.value.details
    assert not caught.value.hint
    assert [name for name in engine.removed if name.startswith("edge-toolchain/work:")]
    assert not engine.loaded


def test_a_base_that_cannot_be_pulled(recipe, command, engine):
    command('echo "failed to resolve source metadata for docker.io/library/debian" >&2; exit 1')
    with pytest.raises(BuildError) as caught:
        build(recipe)
    assert "TOOLCHAIN_BASE_IMAGE" in caught.value.hint


def test_no_docker_command(recipe, engine, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_DOCKER", "/nowhere/docker")
    with pytest.raises(BuildError, match="/nowhere/docker could not be started") as caught:
        build(recipe)
    assert "TOOLCHAIN_DOCKER" in caught.value.hint


def test_an_interrupted_build_leaves_no_process(recipe, command, engine, tmp_path):
    command(f"echo $$ >{tmp_path}/pid; echo started; exec sleep 60")

    def tell(line):
        if line == "started":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        image_build.build(recipe, TAG, BuildOptions(), tell)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    assert [name for name in engine.removed if name.startswith("edge-toolchain/work:")]
    assert threading.active_count() < 10


def test_a_failed_archive_leaves_no_image(recipe, command, engine, monkeypatch):
    command(":")

    def full(*_words):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image_archive, "write", full)
    with pytest.raises(BuildError, match="could not be written") as caught:
        build(recipe)
    assert "TMPDIR" in caught.value.hint
    assert engine.created in engine.removed
    assert "container" in engine.removed


CLASSIC = """Step 1/4 : FROM x
 ---> aaaa
Step 2/4 : COPY y
 ---> Using cache
 ---> bbbb
Step 3/4 : RUN y
 ---> Running in 9999
 ---> cccc
Step 4/4 : RUN z
 ---> dddd""".splitlines()


def test_the_classic_builders_layers_go(engine, monkeypatch):
    base = Image("aaaa")
    base.tags = ["base:latest"]
    monkeypatch.setattr(Images, "get", lambda _self, name: base if name == "aaaa" else Image(name))
    image_build._remove_layers(engine, CLASSIC)
    assert engine.removed == ["dddd", "cccc"]


def test_a_layer_that_is_used_stays(engine, monkeypatch):
    def refuse(_self, _name, **_how):
        raise docker.errors.APIError("used", response=Refusal(409))

    monkeypatch.setattr(Images, "remove", refuse)
    image_build._remove_layers(engine, CLASSIC)


def test_a_layer_that_cannot_be_removed_is_told(engine, monkeypatch):
    def refuse(_self, _name, **_how):
        raise docker.errors.APIError("broken", response=Refusal(500))

    monkeypatch.setattr(Images, "remove", refuse)
    with pytest.raises(docker.errors.APIError):
        image_build._remove_layers(engine, CLASSIC)


class Refusal:
    def __init__(self, code):
        self.status_code, self.reason, self.url = code, "refused", "x"


def test_what_a_killed_build_left_goes(engine, monkeypatch):
    stale, new, other = (f"edge-toolchain/work:{tag}" for tag in ("1000-ab", f"{time.time():.0f}-ab", "mine"))

    def found(_self, name):
        assert name == "edge-toolchain/work"
        image = Image("x")
        image.tags = [stale, new, other]
        return [image]

    monkeypatch.setattr(Images, "list", found)
    image_build._sweep(engine)
    assert engine.removed == [stale]


@pytest.mark.parametrize(
    ("line", "groups"),
    [
        ("#8 [ 3/11] RUN apt-get update", ("3", "11")),
        ("#12 [stage-1 4/9] COPY a b", ("4", "9")),
        ("Step 5/12 : RUN apt-get update", ("5", "12")),
        ("Get:7 http://deb.debian.org/debian 12/main amd64 a [3/4 kB]", None),
        ("#8 12.1 5/6 done", None),
    ],
)
def test_the_steps_of_both_builders_are_counted(line, groups):
    step = image_build._STEP.search(line)
    assert (step.groups() if step else None) == groups
