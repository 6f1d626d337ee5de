from __future__ import annotations

import os
import re

import pytest

from toolchain import resources
from toolchain.containers import recipe as recipes
from toolchain.errors import InputError

DOCKERFILE = """
# A comment with COPY nothing /
ARG BASE_IMAGE=debian@sha256:1
FROM ${BASE_IMAGE} AS tools
COPY docker/install/ /build/
FROM ${BASE_IMAGE}
ARG EXTRA_CA=docker/certs
ARG SOURCE_DATE_EPOCH=7
COPY --from=tools /x/ /x/
COPY ${EXTRA_CA}/ /certs/
COPY one.txt folder/ /build/
LABEL title="of several words" \\
      edge-toolchain.triple="some-linux-gnu" \\
      edge-toolchain.compiler=some-linux-gnu-g++
"""


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for folder in ("docker/install", "docker/certs", "docker/ndk", "docker/some", "docker/other", "folder/__pycache__"):
        (root / folder).mkdir(parents=True)
    (root / "docker/some/Dockerfile").write_text(DOCKERFILE)
    (root / "docker/other/Dockerfile").write_text("FROM scratch\n")
    (root / "one.txt").write_text("1")
    (root / "folder/two.txt").write_text("2")
    (root / "folder/__pycache__/two.pyc").write_text("compiled")
    (root / "folder/run.sh").write_text("#!/bin/sh\n")
    (root / "folder/run.sh").chmod(0o755)
    return root


def test_an_image_is_a_dockerfile_that_names_a_triple(tree):
    assert list(recipes.recipes(tree)) == ["some"]


def test_what_a_dockerfile_says(tree):
    recipe = recipes.recipe("some", tree)
    assert (recipe.triple, recipe.compiler) == ("some-linux-gnu", "some-linux-gnu-g++")
    assert recipe.labels["title"] == "of several words"
    assert recipe.arguments == {"BASE_IMAGE": "debian@sha256:1", "EXTRA_CA": "docker/certs", "SOURCE_DATE_EPOCH": "7"}
    assert [str(path) for path in recipe.copied] == ["docker/install", "one.txt", "folder"]


def test_the_dockerfile_at_the_root_is_the_host(tree):
    (tree / "Dockerfile").write_text(DOCKERFILE)
    assert list(recipes.recipes(tree)) == ["host", "some"]


def test_unknown_images(tree):
    with pytest.raises(InputError) as caught:
        recipes.recipe("same", tree)
    assert caught.value.hint == "did you mean some?"


@pytest.mark.parametrize("path", ["one.txt", "folder/two.txt", "docker/some/Dockerfile", "docker/install/new.sh"])
def test_digest_changes_with_what_goes_in(tree, path):
    recipe = recipes.recipe("some", tree)
    before = recipe.digest({})
    with (tree / path).open("a") as stream:
        stream.write("# more\n")
    assert recipe.digest({}) != before


@pytest.mark.parametrize(
    "path", ["docker/certs/mine.crt", "docker/ndk/x.zip", "folder/__pycache__/two.pyc", "three.txt"]
)
def test_digest_does_not_change_with_what_stays_out(tree, path):
    recipe = recipes.recipe("some", tree)
    before = recipe.digest({})
    (tree / path).write_text("new")
    assert recipe.digest({}) == before


def test_digest_changes_with_the_arguments(tree):
    recipe = recipes.recipe("some", tree)
    assert (
        recipe.digest({"A": "1", "B": "2"})
        == recipe.digest({"B": "2", "A": "1"})
        != recipe.digest({"A": "2", "B": "2"})
    )


def test_context_holds_nothing_else_and_ignores_the_umask(tree, tmp_path):
    certificate, ndk = tmp_path / "mine.pem", tmp_path / "ndk.zip"
    certificate.write_text("certificate")
    ndk.write_text("ndk")
    before = os.umask(0o077)
    try:
        recipes.recipe("some", tree).copy(tmp_path / "context", (certificate,), ndk)
    finally:
        os.umask(before)
    context = tmp_path / "context"
    modes = {
        str(path.relative_to(context)): path.stat().st_mode & 0o777 for path in context.rglob("*") if path.is_file()
    }
    assert modes.pop("docker/certs/README.md") == modes.pop("docker/ndk/README.md")
    assert modes == {
        "docker/some/Dockerfile": 0o644,
        "docker/certs/0.crt": 0o644,
        "docker/ndk/ndk.zip": 0o644,
        "folder/run.sh": 0o755,
        "folder/two.txt": 0o644,
        "one.txt": 0o644,
    }


def test_a_certificate_that_is_missing(tree, tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*none\.pem"):
        recipes.recipe("some", tree).copy(tmp_path / "context", (tmp_path / "none.pem",), None)


# --- the images of this tree -----------------------------------------------------------------------------------


def test_images_of_this_tree():
    all_recipes = recipes.recipes()
    assert {name: (recipe.triple, recipe.compiler) for name, recipe in all_recipes.items()} == {
        "host": ("x86_64-linux-gnu", "x86_64-linux-gnu-g++"),
        "mali": ("aarch64-linux-gnu", "aarch64-linux-gnu-g++"),
        "pynq": ("arm-linux-gnueabihf", "arm-linux-gnueabihf-g++"),
    }


def test_all_images_have_the_same_defaults():
    arguments = [recipe.arguments for recipe in recipes.recipes().values()]
    for name in ("BASE_IMAGE", "DEBIAN_SNAPSHOT", "DEBIAN_MIRROR", "EXTRA_CA", "SOURCE_DATE_EPOCH"):
        assert len({values[name] for values in arguments}) == 1, name
    assert re.fullmatch(r"debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}", arguments[0]["BASE_IMAGE"])
    assert re.fullmatch(r"\d{8}T\d{6}Z", arguments[0]["DEBIAN_SNAPSHOT"])


@pytest.mark.parametrize("name", ["host", "mali", "pynq"])
def test_stages_of_one_dockerfile_have_the_same_defaults(name):
    recipe = recipes.recipe(name)
    for line in (recipe.root / recipe.dockerfile).read_text().splitlines():
        if line.startswith("ARG "):
            argument, _, default = line.removeprefix("ARG ").partition("=")
            assert recipe.arguments[argument] == default


def test_everything_an_image_takes_in_passes_the_ignore_file():
    lines = (resources.ROOT / ".dockerignore").read_text().split()
    for recipe in recipes.recipes().values():
        assert {f"!{path}" for path in recipe.copied} <= set(lines)
