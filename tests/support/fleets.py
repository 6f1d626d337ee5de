"""Fleets that cost nothing: this machine as many devices, each with a store of its own, and some that fail by kind."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import sshd, stores
from tests.support.paths import ROOT
from tests.support.sshd import Server

BOARD = "x86_64"
_TOOLS = {
    "df": "echo Filesystem 1024-blocks Used Available Capacity Mounted on\necho none 1000 900 100 90% /\n",
    "uname": 'case $1 in -m) echo mips;; *) exec /bin/uname "$@";; esac\n',
    # What the runner wrote is read by `cat`: each byte above 127 loses a bit, and no byte of a header is one.
    "cat": "case $(readlink /proc/$$/fd/0) in\n  */run/*) /bin/cat | tr '\\200-\\377' '\\000-\\177';;\n"
    '  *) exec /bin/cat "$@";;\nesac\n',
}


@dataclass(frozen=True)
class Fleet:
    """Devices behind one SSH server or several.

    Attributes:
        folder: Where their stores and the fleet.toml lie.
        entries: What the fleet.toml says of each, by its name.
        types: What it says of the type.
        roots: The stores that lie elsewhere.
    """

    folder: Path
    entries: dict[str, str] = field(default_factory=dict)
    types: list[str] = field(default_factory=list)
    roots: dict[str, Path] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.folder / "fleet.toml"

    def write(self) -> Path:
        """Write the fleet.toml."""
        tables = [f"[devices.{name}]\n{entry}\n" for name, entry in self.entries.items()]
        self.path.write_text("\n".join([*(f"[types.{BOARD}]\n{text}\n" for text in self.types), *tables]))
        return self.path

    def root(self, name: str) -> Path:
        """Return where the store of a device lies."""
        return self.roots.get(name, self.folder / "stores" / name)

    def add(self, name: str, server: Server, more: str = "", root: Path | None = None) -> None:
        """Add a device behind a server."""
        if root:
            self.roots[name] = root
        reached = f'host = "board"\nssh_config = "{server.config}"'
        self.entries[name] = f'board = "{BOARD}"\n{reached}\nroot = "{self.root(name)}"\n{more}'

    def generations(self, name: str) -> list[str]:
        """Return the digests that were made current on a device, in order, as its store has them."""
        links = sorted((self.root(name) / "generations").glob("[0-9]*"), key=lambda link: int(link.name))
        return [link.readlink().name for link in links]


def tools(folder: Path, *names: str) -> str:
    """Return sshd's line for a device some of whose programs are others."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\n{_TOOLS[name]}")
        (folder / name).chmod(0o755)
    return f"SetEnv PATH={folder}:{os.environ['PATH']} HOME={folder}"


@contextlib.contextmanager
def running(folder: Path, count: int) -> Iterator[tuple[Fleet, Server]]:
    """Have so many well devices, called d00, d01 and so on, behind one server."""
    (folder / "stores").mkdir(parents=True)
    fleet = Fleet(folder)
    with sshd.running(folder / "sshd") as server:
        for number in range(count):
            fleet.add(f"d{number:02}", server)
        yield fleet, server


@dataclass
class Faults:
    """Devices that fail, each in its own way, until it is mended; what the fleet.toml says of them stays.

    Attributes:
        fleet: What they are part of.
        server: What lets them in, but for those that need one of their own.
        small: A small file system that is full until it is mended; a program that says so stands in for None.
        stack: What ends with the test.
        mends: What mends each, by its name.
        begins: What some of them begin to fail with.
    """

    fleet: Fleet
    server: Server
    small: Path | None
    stack: contextlib.ExitStack
    mends: dict[str, Callable[[], object]] = field(default_factory=dict)
    begins: list[Callable[[], object]] = field(default_factory=list)

    def add(self, kind: str, name: str) -> None:
        self.mends[name] = getattr(self, f"_{kind.replace(' ', '_')}")(name)

    def begin(self) -> None:
        """Let them fail from now on: they may have been deployed to before."""
        for change in self.begins:
            change()

    def mend(self) -> None:
        for change in self.mends.values():
            change()

    def _unreachable(self, name: str) -> Callable[[], object]:
        folder = self.fleet.folder / f"sshd-{name}"
        with sshd.running(folder) as server:
            self.fleet.add(name, server)
        again = sshd.running(folder, port=server.port, host_key=folder / "host_key")
        return lambda: self.stack.enter_context(again)

    def _full(self, name: str) -> Callable[[], object]:
        if self.small is None:
            return self._with_tool(name, "df")
        filler = self.small / "filler"
        self.fleet.add(name, self.server, root=self.small / "device")
        self.begins.append(lambda: _fill(filler))
        return lambda: filler.unlink(missing_ok=True)

    def _wrong_machine(self, name: str) -> Callable[[], object]:
        return self._with_tool(name, "uname")

    def _wrong_output(self, name: str) -> Callable[[], object]:
        return self._with_tool(name, "cat")

    def _with_tool(self, name: str, tool: str) -> Callable[[], object]:
        folder = self.fleet.folder / f"tools-{name}"
        line = tools(folder, tool)
        server = self.stack.enter_context(sshd.running(self.fleet.folder / f"sshd-{name}", options=line))
        self.fleet.add(name, server)
        return (folder / tool).unlink

    def _unhealthy(self, name: str) -> Callable[[], object]:
        well = self.fleet.folder / f"well-{name}"
        run = f'run = {{ restart = "true", health = "test -e {well}", within = "10s" }}'
        self.fleet.add(name, self.server, run)
        return well.touch

    def _host_key(self, name: str) -> Callable[[], object]:
        config = self.fleet.folder / f"config-{name}"
        known_hosts = self.fleet.folder / f"known-{name}"
        right = self.server.known_hosts.read_text()
        other = Path(f"{sshd.keygen(self.fleet.folder / f'other-{name}')}.pub").read_text().split()
        known_hosts.write_text(f"{right.split()[0]} {other[0]} {other[1]}\n")
        config.write_text(self.server.config.read_text().replace(str(self.server.known_hosts), str(known_hosts)))
        self.fleet.add(name, dataclasses.replace(self.server, config=config))
        return lambda: known_hosts.write_text(right)

    def _busy(self, name: str) -> Callable[[], object]:
        self.fleet.add(name, self.server)
        holder = contextlib.ExitStack()
        self.begins.append(lambda: holder.enter_context(stores.client(self.fleet.root(name))))
        self.stack.push(holder)
        return holder.close


def _fill(path: Path) -> None:
    # The device's store may have filled the disk already, so that there is no room for the file itself.
    with contextlib.suppress(OSError), path.open("wb") as stream:
        while True:
            stream.write(bytes(1 << 16))
            stream.flush()


def started(folder: Path, *arguments: Any) -> subprocess.Popen[str]:
    """Start the command in a process of its own, which may be killed."""
    argv = [sys.executable, "-c", "from toolchain.cli import main; main()", "rollout", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(argv, text=True, cwd=folder, env=environment, start_new_session=True, **pipes)
