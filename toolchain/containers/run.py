"""The Docker engine, and commands in containers that can only compute."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import process
from toolchain.errors import BuildError, EngineError, reason

WORK_LABEL = "edge-toolchain.work"  # of every container that this toolchain makes for one command

_ANSWER_S = 60.0
_SOCKET = "/var/run/docker.sock"
_GRACE_S = 60.0  # the engine kills a command by itself; this much later it counts as broken
# Exit codes: of a command that a signal killed, and of `timeout` if it could not run the command.
_KILLED = 137
_NOT_RUN = frozenset({125, 126, 127})
# A folder of this machine that is mounted over one of these would hide the image's files.
_IMAGE_FOLDERS = ("/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr/bin", "/usr/lib", "/usr/sbin", "/opt/ndk")
_KERNEL_FOLDERS = ("/proc", "/sys")

_RESTRICTIONS: dict[str, Any] = {
    "network_mode": "none",
    "read_only": True,
    "tmpfs": {"/tmp": "mode=1777,nosuid,nodev,size=2g"},  # noqa: S108 - a folder of the container's own
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "pids_limit": 512,
    "init": True,
    "auto_remove": True,
    "hostname": "edge-toolchain",
    "log_config": {"Type": "none", "Config": {}},
}


def docker() -> Any:
    """Import the docker package, which takes a third of a second that other commands need not spend."""
    import docker as package  # noqa: PLC0415 - see above

    return package


@contextlib.contextmanager
def engine(timeout: float = _ANSWER_S) -> Iterator[Any]:
    """Connect to the Docker engine that $DOCKER_HOST names, or this machine's; one answer may take `timeout`.

    Raises:
        EngineError: There is none, or this user may not use it.
        BuildError: It refuses a request of the block.
    """
    import requests  # noqa: PLC0415 - as docker

    client = None
    try:
        client = docker().from_env(timeout=timeout)
        yield client
    except docker().errors.APIError as fault:
        raise BuildError("the Docker engine refused", details=str(fault.explanation or reason(fault))) from fault
    except (docker().errors.DockerException, requests.RequestException) as fault:
        details = f"{os.environ.get('DOCKER_HOST') or _SOCKET}: {reason(fault)}"
        if "PermissionError" in str(fault) or "Permission denied" in str(fault):
            hint = "sudo usermod -aG docker $USER, then log in again"
            raise EngineError("this user may not use the Docker engine", details=details, hint=hint) from fault
        hint = "start Docker, or set DOCKER_HOST to a running engine"
        if shutil.which("docker") is None:
            hint = f"{process.installing('docker')} and start it, or set DOCKER_HOST to a running engine"
        raise EngineError("no Docker engine is running", details=details, hint=hint) from fault
    finally:
        if client is not None:
            client.close()


def inspect(client: Any, image: str, hint: str) -> Any:
    """Find an image, or raise an EngineError with a hint how to get it."""
    try:
        return client.images.get(image)
    except docker().errors.ImageNotFound as fault:
        raise EngineError(f"the image {image} is not on this machine", hint=hint) from fault


def discard(container: Any) -> None:
    """Remove a container in whatever state it is, also while the engine is removing it."""
    with contextlib.suppress(docker().errors.NotFound):
        try:
            container.remove(force=True, v=True)
        except docker().errors.APIError as fault:
            if "already in progress" not in str(fault.explanation):
                raise


@dataclass(frozen=True)
class Command:
    argv: list[str]  # its paths are the same in the container as here
    writable: Sequence[Path]  # folders
    readable: Sequence[Path]  # folders
    workdir: Path | None  # one of those, or one of the image
    timeout: float  # seconds
    environment: Mapping[str, str]


def run(client: Any, image: Any, command: Command) -> process.Result:
    """Run a command as the calling user, without network or capabilities, on a read-only file system.

    The engine kills it at its time limit and removes the container, even if this process was killed meanwhile.

    Raises:
        BuildError: It could not be started or ran out of time.
    """
    # A folder in both lists can be written.
    read_only = dict.fromkeys(map(_visible_path, command.readable), True)
    read_only |= dict.fromkeys(map(_visible_path, command.writable), False)
    mounts = [
        docker().types.Mount(target=path, source=path, type="bind", read_only=only)
        for path, only in sorted(read_only.items())
    ]
    container = client.containers.create(
        image.id,
        command=command.argv,
        entrypoint=["timeout", "--signal=KILL", f"{max(command.timeout, 0.001):.3f}"],
        user=f"{os.getuid()}:{os.getgid()}",
        environment={"HOME": "/tmp", "LC_ALL": "C.UTF-8", **command.environment},  # noqa: S108 - the container's own
        working_dir=str(command.workdir or "/"),
        mounts=mounts,
        labels={WORK_LABEL: "run"},
        **_RESTRICTIONS,
    )
    try:
        result = _watch(client, container, command.timeout)
    finally:
        discard(container)
    program, details = command.argv[0], shlex.join(command.argv)
    if result.returncode in _NOT_RUN and result.stderr.startswith("timeout: failed to run command"):
        tag = (*image.tags, image.id)[0]
        raise BuildError(f"{program} is not installed in the image {tag}", details=details)
    if result.returncode == _KILLED:
        raise BuildError(
            f"{program} was stopped: it took longer than {command.timeout:g} s, ran out of memory, or was killed",
            details=details,
        )
    return result


def _visible_path(path: Path) -> str:
    """Return a folder's absolute path; BuildError if it is missing, or would hide the image's own files."""
    name = os.path.abspath(path)  # noqa: PTH100 - a link's own path is the one that the command names
    if not Path(name).exists():
        raise BuildError(f"{name} does not exist, so a container cannot use it")
    hides = any(Path(folder).is_relative_to(name) for folder in _IMAGE_FOLDERS)
    if hides or any(Path(name).is_relative_to(folder) for folder in (*_IMAGE_FOLDERS, *_KERNEL_FOLDERS)):
        raise BuildError(
            f"{name} cannot be used in a container: it would hide the image's own files",
            hint="use a different folder, such as one in your home, or use --toolchain host",
        )
    return name


def _watch(client: Any, container: Any, timeout: float) -> process.Result:
    """Start a container and collect its output and its exit code."""
    patience = timeout + _GRACE_S
    output = container.attach(stdout=True, stderr=True, stream=True, demux=True)
    guard = threading.Timer(patience, output.close)
    guard.daemon = True
    # Requested before the start: afterwards a short command's container may be gone, and its exit code with it. The
    # engine's headers come at once, and show that it is listening.
    address = f"{client.api.base_url}/v{client.api.api_version}/containers/{container.id}/wait"
    timeouts = _ANSWER_S, patience
    ending = client.api.post(address, params={"condition": "removed"}, stream=True, timeout=timeouts)
    ending.raise_for_status()
    try:
        container.start()
        guard.start()
        chunks = list(output)
        code = int(ending.json()["StatusCode"])
    finally:
        guard.cancel()
        ending.close()
        output.close()
    out, err = (b"".join(chunk[side] or b"" for chunk in chunks) for side in (0, 1))
    return process.Result(code, out.decode(errors="replace"), err.decode(errors="replace"))
