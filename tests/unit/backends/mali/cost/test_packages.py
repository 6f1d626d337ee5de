"""The pinned packages, and what is downloaded in their place."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolchain import files
from toolchain.backends.mali.cost import packages
from toolchain.backends.mali.cost.packages import Package, Packages
from toolchain.errors import BuildError

CONTENT = b"a package"
PLACE = "pool/main/m/mesa/mesa-opencl-icd_1.2-3%2bdeb13u1_arm64.deb".replace("%2b", "+")
WANTED = Package(files.sha256_bytes(CONTENT), len(CONTENT), PLACE)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A mirror of Debian's archive on this machine: its folder."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "mirror"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("TOOLCHAIN_DEBIAN_MIRROR", f"http://127.0.0.1:{server.server_port}/debian/")
        yield tmp_path / "mirror" / "debian"
        server.shutdown()


def put(mirror: Path, content: bytes) -> None:
    path = mirror / PLACE
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


def test_the_list_is_whole() -> None:
    pinned = packages.pinned()
    assert pinned.version.startswith("25.")
    assert pinned.snapshot
    assert len({package.name for package in pinned.files}) == len(pinned.files) == 28
    assert 60e6 < pinned.size < 120e6


def test_the_digest_is_that_of_the_content_alone() -> None:
    first, two = packages.pinned().files[:2]
    assert Packages((first, two)).digest == Packages((two, first), "20260101T000000Z").digest
    assert Packages((first,)).digest != Packages((two,)).digest


def test_a_package_is_fetched(mirror: Path, tmp_path: Path) -> None:
    put(mirror, CONTENT)
    (path,) = packages.fetch(Packages((WANTED,)), tmp_path)
    assert path.read_bytes() == CONTENT
    assert Packages((WANTED,)).version == "1.2-3+deb13u1"


@pytest.mark.parametrize("content", [b"", b"another_p", CONTENT + b" and more", CONTENT[:-1]])
def test_what_is_not_the_package_is_refused(mirror: Path, tmp_path: Path, content: bytes) -> None:
    put(mirror, content)
    with pytest.raises(BuildError, match="cannot be downloaded") as caught:
        packages.fetch(Packages((WANTED,)), tmp_path)
    assert "SHA-256" in caught.value.details
    assert not (tmp_path / WANTED.name).exists()


def test_a_package_that_is_gone_is_told_with_a_way_out(mirror: Path, tmp_path: Path) -> None:
    mirror.mkdir(parents=True)
    with pytest.raises(BuildError, match="cannot be downloaded") as caught:
        packages.fetch(Packages((WANTED,)), tmp_path)
    assert "404" in caught.value.details
    assert "TOOLCHAIN_DEBIAN_SNAPSHOT" in caught.value.hint
