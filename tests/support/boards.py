"""Virtual ARM boards for tests: a farm of its own, which a developer's farm does not notice."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest
import requests

from tests.support import session, supervisor
from tests.support.parts import require
from tests.support.sshd import free_port
from toolchain.architecture import AARCH64, ARMV7L
from toolchain.virtual import emulation, fleet
from toolchain.virtual.fleet import VirtualBoard

BASE_IMAGE = os.environ.get("TOOLCHAIN_BASE_IMAGE", "edge-toolchain/base:bookworm")


@dataclass(frozen=True)
class Farm:
    """A running farm.

    Attributes:
        cache: What TOOLCHAIN_CACHE is for it.
        boards: The boards that were asked for.
    """

    cache: Path
    boards: tuple[VirtualBoard, ...]

    @property
    def folder(self) -> Path:
        return self.cache / "farm"

    @property
    def config(self) -> Path:
        """An ssh_config that knows the boards by their names."""
        return self.folder / "ssh_config"

    @property
    def devices(self) -> Path:
        """A devices.toml with the boards."""
        return self.folder / "devices.toml"

    def name(self, kind: str) -> str:
        """Return the name of the first board of a type."""
        return next(board.name for board in self.boards if board.board == kind)


def engine() -> docker.DockerClient | None:
    """Return the Docker engine, if one answers."""
    try:
        client = docker.from_env()
        client.ping()
    except (docker.errors.DockerException, requests.RequestException):
        return None
    return client


def require_emulation() -> docker.DockerClient:
    """Leave a test out where virtual boards cannot be; return the engine that runs them elsewhere."""
    client = engine()
    require("a Docker engine", "docker.io, and start dockerd", client is not None)
    recipes = all((emulation.RECIPES / f"{name}.conf").is_file() for name in ("qemu-aarch64", "qemu-arm"))
    ready = not any(emulation.fault(architecture) for architecture in (AARCH64, ARMV7L))
    can_help = recipes and os.geteuid() == 0
    require("emulation of arm64 and armhf", "qemu-user-static, with its binfmt rules", ready or can_help)
    assert client is not None
    require(f"the base image {BASE_IMAGE}", "it with docker/base.sh", _has_image(client, BASE_IMAGE))
    return client


def _has_image(client: docker.DockerClient, name: str) -> bool:
    try:
        client.images.get(name)
    except docker.errors.ImageNotFound:
        return False
    return True


def choose(patch: pytest.MonkeyPatch, cache: Path) -> None:
    """Let a folder stand for TOOLCHAIN_CACHE, which decides whose farm it is; images come from the local base."""
    supervisor.note_farm(session.folder(), cache / "farm")
    patch.setenv("TOOLCHAIN_CACHE", str(cache))
    if "TOOLCHAIN_BASE_IMAGE" not in os.environ:
        patch.setenv("TOOLCHAIN_BASE_IMAGE", BASE_IMAGE)
        patch.setenv("TOOLCHAIN_DEBIAN_SNAPSHOT", os.environ.get("TOOLCHAIN_DEBIAN_SNAPSHOT", ""))


@contextlib.contextmanager
def its_cache(cache: Path) -> Iterator[None]:
    """Choose a farm for the time of a block."""
    with pytest.MonkeyPatch.context() as patch:
        choose(patch, cache)
        yield


@contextlib.contextmanager
def running(cache: Path, *, kernel: bool = False, musl: bool = False, **wanted: int) -> Iterator[Farm]:
    """Bring up boards, one rpi4 and one pynq if no others are named; remove them afterwards."""
    require_emulation()
    try:
        with its_cache(cache), _alone():
            machines = fleet.up(wanted or {"rpi4": 1, "pynq": 1}, kernel=kernel, musl=musl)
        yield Farm(cache, machines)
    finally:
        with its_cache(cache):
            fleet.down()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other worker starts boards: the first one builds the images for all."""
    with (session.folder() / "boards.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def with_data(farm_of: Farm, name: str, folder: Path) -> Iterator[tuple[Any, tuple[str, str]]]:
    """Make a board like a running one, not started yet, that has a folder of this host as its /data.

    Yields:
        Its container, and its name with an ssh_config that knows it.
    """
    client = docker.from_env()
    model = client.containers.get(f"edge-{name}")
    port = free_port()
    container = client.containers.create(
        model.attrs["Image"],
        environment=model.attrs["Config"]["Env"],
        volumes={str(folder): {"bind": "/data", "mode": "rw"}},
        ports={"22/tcp": ("127.0.0.1", port)},
    )
    try:
        container.start()
        wait_for_banner(container)
        key = container.exec_run(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).output.decode()
        container.kill()
        yield container, ("board", str(_config(farm_of, folder.parent, port, key)))
    finally:
        container.remove(force=True, v=True)


def _config(farm_of: Farm, folder: Path, port: int, key: str) -> Path:
    known_hosts = folder / "board_known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{port} {key}")
    config = folder / "board_ssh_config"
    config.write_text(
        f"Host board\n  HostName 127.0.0.1\n  Port {port}\n  User board\n  IdentitiesOnly yes\n"
        f"  IdentityFile {farm_of.folder / 'id_ed25519'}\n"
        f"  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile none\n"
    )
    return config


def wait_for_banner(container: Any) -> None:
    """Wait until a container's SSH server answers: what forwards its port takes connections before."""
    container.reload()
    port = int(container.attrs["HostConfig"]["PortBindings"]["22/tcp"][0]["HostPort"])
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as probe:
            probe.settimeout(2)
            if probe.recv(4) == b"SSH-":
                return
        time.sleep(0.02)
    raise RuntimeError(f"{container.name} does not answer:\n{container.logs(tail=20).decode()}")
