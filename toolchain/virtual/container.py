"""Virtual boards as Docker containers: a user land for the board's architecture, run by QEMU's user mode."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal

from toolchain import process
from toolchain.board import Board
from toolchain.containers.run import discard, docker
from toolchain.errors import DeviceError, reason
from toolchain.virtual import board as virtual_board
from toolchain.virtual import emulation, image
from toolchain.virtual.board import Login, Tell, VirtualBoard

LABEL = "edge-toolchain.farm"  # on every container of a farm; its value is the board type

_FOLDER = f"{LABEL}.folder"
_CLIENT = f"{LABEL}.client"
_KIND = f"{LABEL}.kind"
_PREFIX = "edge-"
_SSH = "22/tcp"
_LOOPBACK = "127.0.0.1"
_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
_ATTEMPTS = 5
# The engine's messages if another process has taken the name or the port since we checked.
_CONFLICTS = ("is already in use", "port is already allocated", "address already in use")

# For sshd to become the user who logs in, and for the shell at PID 1 to end its children.
_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SYS_CHROOT"]
_LIMITS: dict[str, Any] = {
    "mem_limit": "1g",
    "pids_limit": 512,
    "cpu_shares": 512,  # half the default weight, so that busy boards leave this machine usable
    "cap_drop": ["ALL"],
    "cap_add": _CAPABILITIES,
    "security_opt": ["no-new-privileges"],
    "log_config": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
}


def cpu_info_of(board: Board) -> Path:
    """Return the /proc/cpuinfo of a board: the plain one of its architecture, unless its CPU features need another."""
    name = f"cpuinfo.{virtual_board.architecture(board).debian}"
    texts = sorted(image.FOLDER.glob(f"{name}*"))
    return next((path for path in texts if {*board.cpu_features} <= {*path.read_text().split()}), image.FOLDER / name)


class DockerBoards:
    """The boards of one farm that are containers; a label names the farm's folder.

    `musl` tells those whose C library is musl from the others.
    """

    def __init__(self, folder: Path, *, musl: bool = False) -> None:
        self._folder = folder
        self._kind: Literal["docker", "musl"] = "musl" if musl else "docker"
        self._images: dict[str, str] = {}
        self._engine = connect()

    def boards(self) -> tuple[VirtualBoard, ...]:
        with _engine_errors():
            label = f"{_FOLDER}={self._folder}"
            containers = self._engine.containers.list(all=True, ignore_removed=True, filters={"label": label})
        mine = [_board_of(container) for container in containers if LABEL in container.labels]
        return tuple(sorted((each for each in mine if each.kind == self._kind), key=lambda device: device.order))

    def prepare(self, board: Board, tell: Tell) -> None:
        emulation.ensure(virtual_board.architecture(board), tell)
        with _engine_errors():
            self._images[board.name] = image.ensure(
                self._engine, image.USER_LAND, board, tell, musl=self._kind == "musl"
            ).id

    def create(self, board: Board, login: Login, used_names: Collection[str]) -> VirtualBoard:
        refused: set[str] = set()  # a name that another process is just taking is refused before any list has it
        for _ in range(_ATTEMPTS):
            with _engine_errors():
                containers = self._engine.containers.list(all=True, ignore_removed=True)  # also those of other farms
            in_use = {container.name.removeprefix(_PREFIX) for container in containers}
            prefix = f"{board.name}-musl" if self._kind == "musl" else board.name
            name = virtual_board.next_name(prefix, {*used_names, *refused, *in_use})
            refused.add(name)
            with _engine_errors(f"a container for a {board.name} cannot be started"):
                try:
                    container = self._create(name, board, login)
                    try:
                        container.start()
                        container.reload()
                    except BaseException:
                        discard(container)
                        raise
                    return _board_of(container)
                except docker().errors.APIError as fault:
                    if not any(message in str(fault.explanation) for message in _CONFLICTS):
                        raise
        raise DeviceError(f"no free name or port for a {board.name} was found", hint="run the command again")

    def _create(self, name: str, board: Board, login: Login) -> Any:
        cpu_info = cpu_info_of(board)
        return self._engine.containers.create(
            self._images[board.name],
            name=f"{_PREFIX}{name}",
            hostname=name,
            labels={LABEL: board.name, _FOLDER: str(self._folder), _CLIENT: login.fingerprint, _KIND: self._kind},
            environment={"BOARD_AUTHORIZED_KEY": login.public, "QEMU_CPU": virtual_board.cpu(board)},
            # Docker would choose a new port at each start, and the port stands in ssh_config.
            ports={_SSH: (_LOOPBACK, free_port())},
            volumes={str(cpu_info.resolve()): {"bind": "/proc/cpuinfo", "mode": "ro"}},
            **_LIMITS,
        )

    def start(self, device: VirtualBoard) -> None:
        with _engine_errors(f"{device.name} cannot be started again", f"toolchain farm down {device.name}"):
            self._container(device).start()

    def stop(self, device: VirtualBoard) -> None:
        with _engine_errors(), contextlib.suppress(docker().errors.NotFound):
            self._container(device).stop(timeout=0)

    def remove(self, device: VirtualBoard) -> None:
        with _engine_errors(), contextlib.suppress(docker().errors.NotFound):
            discard(self._container(device))

    def log(self, device: VirtualBoard) -> str:
        with _engine_errors():
            return process.tail(self._container(device).logs(tail=20).decode(errors="replace"))

    def host_key(self, device: VirtualBoard) -> str:
        with _engine_errors():
            result = self._container(device).exec_run(["cat", _HOST_KEY], stderr=False)
        return result.output.decode(errors="replace") if result.exit_code == 0 else ""

    def _container(self, device: VirtualBoard) -> Any:
        container = self._engine.containers.get(f"{_PREFIX}{device.name}")
        if container.labels.get(_FOLDER) != str(self._folder):
            raise docker().errors.NotFound(f"{_PREFIX}{device.name} does not belong to this farm")
        return container


def free_port() -> int:
    """Return an unused port of the loopback address."""
    with socket.create_server((_LOOPBACK, 0)) as listener:
        return int(listener.getsockname()[1])


def connect() -> Any:
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


def _board_of(container: Any) -> VirtualBoard:
    bindings = container.attrs["HostConfig"]["PortBindings"]
    return VirtualBoard(
        name=container.name.removeprefix(_PREFIX),
        board=container.labels[LABEL],
        kind="musl" if container.labels.get(_KIND) == "musl" else "docker",
        port=int(bindings[_SSH][0]["HostPort"]),
        running=container.status == "running",
        client=container.labels.get(_CLIENT, ""),
    )


@contextlib.contextmanager
def _engine_errors(message: str = "the Docker engine refused the request", hint: str = "") -> Iterator[None]:
    """Turn the engine's errors into ours."""
    import requests  # noqa: PLC0415 - as docker

    try:
        yield
    except (docker().errors.DockerException, requests.RequestException) as fault:
        raise DeviceError(message, details=reason(fault), hint=hint) from fault
