"""Virtual boards as Docker containers: a whole user land of the board's architecture, run by QEMU's user mode."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from toolchain import process
from toolchain.board import Board
from toolchain.containers.run import discard, docker
from toolchain.errors import DeviceError, reason
from toolchain.virtual import board as boards
from toolchain.virtual import emulation, image
from toolchain.virtual.board import Login, Tell, VirtualBoard

LABEL = "edge-toolchain.farm"
"""Label of every container of a farm, with its board type."""

_FOLDER = f"{LABEL}.folder"
_CLIENT = f"{LABEL}.client"
_PREFIX = "edge-"
_SSH = "22/tcp"
_LOOPBACK = "127.0.0.1"
_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
_ATTEMPTS = 5
# What the engine says when somebody else took the name, or the port, since we looked.
_TAKEN = ("is already in use", "port is already allocated", "address already in use")

# What sshd needs to become the user who logs in, and what a shell at PID 1 needs to end its children.
_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SYS_CHROOT"]
_LIMITS: dict[str, Any] = {
    "mem_limit": "1g",
    "pids_limit": 512,
    "cpu_shares": 512,  # half of what others get, so that busy boards leave this machine usable
    "cap_drop": ["ALL"],
    "cap_add": _CAPABILITIES,
    "security_opt": ["no-new-privileges"],
    "log_config": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
}


class DockerBoards:
    """The boards of one farm that are containers.

    Args:
        folder: The farm's folder, which is also what makes a container one of this farm.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._images: dict[str, str] = {}
        self._engine = connect()

    def found(self) -> tuple[VirtualBoard, ...]:
        """See `Kind.found`."""
        with _spoken():
            label = f"{_FOLDER}={self._folder}"
            containers = self._engine.containers.list(all=True, ignore_removed=True, filters={"label": label})
        mine = [_described(container) for container in containers if LABEL in container.labels]
        return tuple(sorted(mine, key=lambda one: one.name))

    def prepare(self, wanted: Board, tell: Tell) -> None:
        """See `Kind.prepare`."""
        emulation.ensure(boards.architecture(wanted), tell)
        with _spoken():
            self._images[wanted.name] = image.ensure(self._engine, image.USER_LAND, wanted, tell).id

    def create(self, wanted: Board, login: Login, taken: Collection[str]) -> VirtualBoard:
        """See `Kind.create`."""
        refused: set[str] = set()  # a name that somebody is just taking is refused, and not yet in any list
        for _ in range(_ATTEMPTS):
            name = boards.next_name(wanted.name, {*taken, *refused, *self._taken()})
            refused.add(name)
            with _spoken(f"a container for a {wanted.name} cannot be started"):
                try:
                    return _described(self._started(self._created(name, wanted, login)))
                except docker().errors.APIError as fault:
                    if not any(words in str(fault.explanation) for words in _TAKEN):
                        raise
        raise DeviceError(f"no free name or port for a {wanted.name} was found", hint="run the command again")

    def _taken(self) -> set[str]:
        """Name the boards whose containers' names are in use, by whomever."""
        with _spoken():
            containers = self._engine.containers.list(all=True, ignore_removed=True)
        return {container.name.removeprefix(_PREFIX) for container in containers}

    def _started(self, container: Any) -> Any:
        try:
            container.start()
            container.reload()
        except BaseException:
            discard(container)
            raise
        return container

    def _created(self, name: str, wanted: Board, login: Login) -> Any:
        cpu_info = image.FOLDER / f"cpuinfo.{boards.architecture(wanted)}"
        return self._engine.containers.create(
            self._images[wanted.name],
            name=f"{_PREFIX}{name}",
            hostname=name,
            labels={LABEL: wanted.name, _FOLDER: str(self._folder), _CLIENT: login.fingerprint},
            environment={"BOARD_AUTHORIZED_KEY": login.public, "QEMU_CPU": boards.cpu(wanted)},
            # A port that Docker chooses would be another one after each start.
            ports={_SSH: (_LOOPBACK, free_port())},
            volumes={str(cpu_info.resolve()): {"bind": "/proc/cpuinfo", "mode": "ro"}},
            **_LIMITS,
        )

    def start(self, one: VirtualBoard) -> None:
        """See `Kind.start`."""
        with _spoken(f"{one.name} cannot be started again", f"toolchain farm down {one.name}"):
            self._container(one).start()

    def stop(self, one: VirtualBoard) -> None:
        """See `Kind.stop`."""
        with _spoken(), contextlib.suppress(docker().errors.NotFound):
            self._container(one).stop(timeout=0)

    def remove(self, one: VirtualBoard) -> None:
        """See `Kind.remove`."""
        with _spoken(), contextlib.suppress(docker().errors.NotFound):
            discard(self._container(one))

    def log(self, one: VirtualBoard) -> str:
        """See `Kind.log`."""
        with _spoken():
            return process.tail(self._container(one).logs(tail=20).decode(errors="replace"))

    def host_key(self, one: VirtualBoard) -> str:
        """See `Kind.host_key`."""
        with _spoken():
            done = self._container(one).exec_run(["cat", _HOST_KEY], stderr=False)
        return done.output.decode(errors="replace") if done.exit_code == 0 else ""

    def _container(self, one: VirtualBoard) -> Any:
        container = self._engine.containers.get(f"{_PREFIX}{one.name}")
        if container.labels.get(_FOLDER) != str(self._folder):
            raise docker().errors.NotFound(f"{_PREFIX}{one.name} does not belong to this farm")
        return container


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.create_server((_LOOPBACK, 0)) as listener:
        return int(listener.getsockname()[1])


def connect() -> Any:
    """Connect to this machine's Docker engine.

    Raises:
        DeviceError: None answers.
    """
    import requests  # noqa: PLC0415 - as docker

    try:
        engine = docker().from_env(timeout=120)
        engine.ping()
    except (docker().errors.DockerException, requests.RequestException) as fault:
        raise DeviceError(
            "virtual boards need a Docker engine, and none is running",
            details=reason(fault),
            hint="apt-get install docker.io and start it, or set DOCKER_HOST to a running engine",
        ) from fault
    return engine


def _described(container: Any) -> VirtualBoard:
    bindings = container.attrs["HostConfig"]["PortBindings"]
    return VirtualBoard(
        name=container.name.removeprefix(_PREFIX),
        board=container.labels[LABEL],
        kind="docker",
        port=int(bindings[_SSH][0]["HostPort"]),
        running=container.status == "running",
        client=container.labels.get(_CLIENT, ""),
    )


@contextlib.contextmanager
def _spoken(message: str = "the Docker engine refused the request", hint: str = "") -> Iterator[None]:
    """Turn the engine's errors into ours."""
    import requests  # noqa: PLC0415 - as docker

    try:
        yield
    except (docker().errors.DockerException, requests.RequestException) as fault:
        raise DeviceError(message, details=reason(fault), hint=hint) from fault
