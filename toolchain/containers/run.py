"""The Docker engine: how it is reached, and one command in a container that can do nothing but compute."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain import process
from toolchain.errors import BuildError, EngineError, reason

WORK_LABEL = "edge-toolchain.work"
"""Label of every container that this toolchain makes for one command."""

_ANSWER_S = 60.0
_SOCKET = "/var/run/docker.sock"
# The engine ends a command by itself; this much later it counts as broken.
_GRACE_S = 60.0
_KILLED = 137
_NOT_RUN = frozenset({125, 126, 127})
# Mounted over one of these, a folder of this machine would hide what the image brings.
_IMAGES_OWN = ("/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr/bin", "/usr/lib", "/usr/sbin", "/opt/ndk")
_KERNELS_OWN = ("/proc", "/sys")

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
    """Connect to the Docker engine that $DOCKER_HOST names, or this machine's.

    Args:
        timeout: Seconds that one answer may take.

    Raises:
        EngineError: There is none, or this user may not use it.
        BuildError: It refuses what the block asks of it.
    """
    import requests  # noqa: PLC0415 - as docker

    client = None
    try:
        client = docker().from_env(timeout=timeout)
        yield client
    except docker().errors.APIError as fault:
        raise BuildError("the Docker engine refused", details=str(fault.explanation or reason(fault))) from fault
    except (docker().errors.DockerException, requests.RequestException) as fault:
        raise _unreachable(fault) from fault
    finally:
        if client is not None:
            client.close()


def _unreachable(fault: Exception) -> BuildError:
    details = f"{os.environ.get('DOCKER_HOST') or _SOCKET}: {reason(fault)}"
    if "PermissionError" in str(fault) or "Permission denied" in str(fault):
        hint = "sudo usermod -aG docker $USER, then log in again"
        return EngineError("this user may not use the Docker engine", details=details, hint=hint)
    hint = "start Docker, or set DOCKER_HOST to a running engine"
    if shutil.which("docker") is None:
        hint = f"{process.installing('docker')} and start it, or set DOCKER_HOST to a running engine"
    return EngineError("no Docker engine is running", details=details, hint=hint)


def inspect(client: Any, image: str, hint: str) -> Any:
    """Find an image.

    Raises:
        EngineError: It is not here; `hint` says how to get it.
    """
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


def run(  # noqa: PLR0913 - each is an independent property of one command
    client: Any,
    image: Any,
    words: Sequence[str],
    *,
    writable: Sequence[Path],
    readable: Sequence[Path],
    workdir: Path | None,
    timeout: float,
    environment: Mapping[str, str],
) -> process.Result:
    """Run a command as the calling user, without network or capabilities, on a read-only file system.

    The engine ends it at its time limit and removes the container, even if this process was killed meanwhile.

    Raises:
        BuildError: It could not be started or ran out of time.
    """
    container = client.containers.create(
        image.id,
        command=list(words),
        entrypoint=["timeout", "--signal=KILL", f"{max(timeout, 0.001):.3f}"],
        user=f"{os.getuid()}:{os.getgid()}",
        environment={"HOME": "/tmp", "LC_ALL": "C.UTF-8", **environment},  # noqa: S108 - the container's own
        working_dir=str(workdir or "/"),
        mounts=_mounts(writable, readable),
        labels={WORK_LABEL: "run"},
        **_RESTRICTIONS,
    )
    try:
        result = _watched(client, container, timeout)
    finally:
        discard(container)
    return _judged((*image.tags, image.id)[0], list(words), result, timeout)


def _mounts(writable: Sequence[Path], readable: Sequence[Path]) -> list[Any]:
    """Mount folders on the paths they have here. What is named both ways can be written."""
    read_only = {_checked(path): True for path in readable} | {_checked(path): False for path in writable}
    return [
        docker().types.Mount(target=path, source=path, type="bind", read_only=only)
        for path, only in sorted(read_only.items())
    ]


def _checked(path: Path) -> str:
    """Return a folder's absolute path, if a container can see it there.

    Raises:
        BuildError: It is missing, or would hide the image's own files.
    """
    name = os.path.abspath(path)  # noqa: PTH100 - a link's own path is the one that the command names
    if not Path(name).exists():
        raise BuildError(f"{name} does not exist, so a container cannot use it")
    hides = any(Path(own).is_relative_to(name) for own in _IMAGES_OWN)
    if hides or any(Path(name).is_relative_to(own) for own in (*_IMAGES_OWN, *_KERNELS_OWN)):
        raise BuildError(
            f"{name} cannot be used in a container: it would hide the image's own files",
            hint="use a different folder, such as one in your home, or use --toolchain host",
        )
    return name


def _watched(client: Any, container: Any, timeout: float) -> process.Result:
    """Start a container and collect what it writes and its exit code."""
    patience = timeout + _GRACE_S
    output = container.attach(stdout=True, stderr=True, stream=True, demux=True)
    guard = threading.Timer(patience, output.close)
    guard.daemon = True
    # Asked before the start: afterwards a short command's container may be gone, and its exit code with it.
    ending = _ending(client, container, patience)
    try:
        container.start()
        guard.start()
        parts = list(output)
        code = int(ending.json()["StatusCode"])
    finally:
        guard.cancel()
        ending.close()
        output.close()
    out, err = (b"".join(part[side] or b"" for part in parts) for side in (0, 1))
    return process.Result(code, out.decode(errors="replace"), err.decode(errors="replace"))


def _ending(client: Any, container: Any, patience: float) -> Any:
    """Ask for a container's exit code; the engine's headers, which come at once, say that it is listening."""
    api = client.api
    address = f"{api.base_url}/v{api.api_version}/containers/{container.id}/wait"
    answer = api.post(address, params={"condition": "removed"}, stream=True, timeout=(_ANSWER_S, patience))
    answer.raise_for_status()
    return answer


def _judged(image: str, words: list[str], result: process.Result, timeout: float) -> process.Result:
    """Tell an exit code of the command from those of what runs it."""
    if result.returncode in _NOT_RUN and result.stderr.startswith("timeout: failed to run command"):
        raise BuildError(f"{words[0]} is not installed in the image {image}", details=shlex.join(words))
    if result.returncode == _KILLED:
        raise BuildError(
            f"{words[0]} was stopped: it took longer than {timeout:g} s, ran out of memory, or was killed",
            details=shlex.join(words),
        )
    return result
