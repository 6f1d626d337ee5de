"""The store of a device on this machine: what is put there, and others who hold its lock."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

from toolchain.device.lock import Owner
from toolchain.device.store import Store

# A client that takes the lock, says so, and then runs the code it is given; each line it reads lets it go on.
CLIENT = """
import sys
from toolchain.device import lock
from toolchain.device.lock import Owner
from toolchain.errors import ToolchainError
from toolchain.shell import LocalShell
from toolchain.device.store import Store
lock._HEARTBEAT_S = 0.2
store = Store(LocalShell(), sys.argv[1])
store.facts()
with store.lock(Owner("the other one", "a deploy")):
    store.blobs.sweep()
    print("held", flush=True)
    try:
        {body}
    except ToolchainError as fault:
        print(fault.message, flush=True)
"""


@contextlib.contextmanager
def locked(store):
    store.facts()
    with store.lock(Owner("tester", "tests")):
        store.blobs.sweep()
        yield


@contextlib.contextmanager
def client(root: Path, body: str = "sys.stdin.readline()"):
    """Another process that holds the lock."""
    argv = [sys.executable, "-c", CLIENT.format(body=body), str(root)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def blob(tmp_path: Path, data: bytes) -> tuple[Path, str]:
    digest = hashlib.sha256(data).hexdigest()
    path = tmp_path / digest
    path.write_bytes(data)
    return path, digest


def put(store: Store, tmp_path: Path, data: bytes) -> str:
    """Upload and publish a blob."""
    path, digest = blob(tmp_path, data)
    if store.blobs.examine([digest])[digest].state != "have":
        store.blobs.push(path, digest, 0, None)
        assert store.blobs.publish([digest]) == ()
    return digest


def release(store: Store, tmp_path: Path, name: str) -> str:
    """Install a release of two files and make it current."""
    digest = installed(store, tmp_path, name)
    store.releases.activate(digest)
    return digest


def installed(store: Store, tmp_path: Path, name: str) -> str:
    """Install a release of two files."""
    manifest = json.dumps({"name": name, "nested": {"name": "no"}}, indent=2).encode() + b"\n"
    files = {"manifest.json": put(store, tmp_path, manifest), "data": put(store, tmp_path, b"data of " + name.encode())}
    digest = hashlib.sha256(manifest).hexdigest()
    store.blobs.install("releases", digest, files)
    return digest


def soon(condition, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def holder(root: Path) -> int:
    """Return the process that holds a store's lock, as its file tells."""
    return int((root / "lock").read_text().split()[1].partition("/")[0])


def lock_free(root: Path, seconds: float = 10.0) -> bool:
    """Wait for the end of whatever holds a store's lock: what a killed client left on the device takes its time."""

    def taken() -> bool:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    with (root / "lock").open("ab") as lock:
        return soon(taken, seconds)
