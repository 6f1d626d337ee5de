"""Labs of tests: devices that are this host, a cache of their own, and what is seen of a farm that serves them."""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import sshd
from tests.support.commands import toolchain
from toolchain import files
from toolchain.board import Board
from toolchain.farm import client
from toolchain.native import programs

HERE = platform.machine()
SOON_S = 60.0


@dataclass(frozen=True)
class Lab:
    """Two devices on this host, each with an SSH server of its own, and a cache with nobody else's farm."""

    folder: Path
    cache: Path
    servers: tuple[sshd.Server, ...]


def cache(folder: Path, native: Board) -> Path:
    """Return a folder that is a cache with nobody else's farm; what takes minutes to build is the user's."""
    programs.build(programs.BOARD_SERVER, native.triple, native.machine)
    for name in ("device", "zig"):
        (folder / name).symlink_to(files.cache_root() / name)
    return folder


def board_types(folder: Path, connection: str, kinds: Mapping[str, str]) -> None:
    """Write board types that are this machine, or nearly.

    Args:
        folder: The lab's.
        way: How they are reached, in words.
        kinds: What each file says besides.
    """
    (folder / "boards").mkdir()
    for name, more in kinds.items():
        (folder / "boards" / f"{name}.toml").write_text(
            f'description = "this machine, {connection}"\nconnection = "ssh"\ncores = 1\n'
            f'toolchain = "host"\n{more}\n[target]\nmcpu = "generic"\n'
        )


def ours(native: Board) -> str:
    """Return what the file of a board type says that is this machine."""
    return f'machine = "{HERE}"\ntriple = "{native.triple}"'


def until(condition: Callable[[], object], seconds: float = SOON_S) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def status() -> dict[str, dict[str, Any]]:
    """Return what the farm says of each board."""
    outcome = toolchain("farm", "status", "--json")
    assert outcome.code == 0, outcome.err
    return {board["name"]: board for board in json.loads(outcome.out)["boards"]}


def states() -> dict[str, str]:
    """Return the state of each board of the farm."""
    return {name: row["state"] for name, row in status().items()}


def daemon() -> int:
    """Return the process of the farm's daemon."""
    with client.open_link() as link:
        return link.peer_pid


def command(pid: int) -> bytes:
    """Return the command line of a process, as the kernel has it; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def runs(pid: int) -> bool:
    """Tell whether a process runs; one that only waits for its parent to notice its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def board_servers(lab: Lab, name: str = "") -> list[int]:
    """Name the processes of the board servers on the devices, or on one."""
    mark = f"{lab.folder}/{name}".encode()
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [
        pid
        for pid in pids
        if (command_line := command(pid)).startswith(mark) and b"--socket" in command_line and runs(pid)
    ]


def listeners(pids: set[int]) -> set[tuple[str, str]]:
    """Name what processes listen on, as the kernel writes it."""
    mine = set()
    for path in [path for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir()]:
        with contextlib.suppress(OSError):  # it was closed meanwhile
            mine.add(str(path.readlink()))
    sockets = set()
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        sockets |= {tuple(row[1].split(":")) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine}
    return sockets
