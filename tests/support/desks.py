"""A folder in which the commands of the documents run as a reader types them: with a home and devices of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support import labs, nets, sshd
from tests.support.paths import ROOT
from toolchain import board

# What a device of each of these types is here: this machine, over SSH.
STAND_INS = ("rpi4", "rk3399", "x86_64-v3")
_QUICK = {
    "bench": "--budget 0.1",
    "compare": "--budget 0.5",
    "deploy": "--budget 0.1",
    "gate": "--rounds 8 --round-ms 5",
    "profile": "--runs 5",
    "rollout": "--budget 0.1",
    "tune": "--trials 4",
}
"""Options that make a command quick; what it does is the same. The last of two equal options counts."""

_SECONDS = 300
_HOSTS = "10.0.0.7 10.0.0.8 10.0.0.9 board"


@dataclass(frozen=True)
class Desk:
    """A reader's working folder.

    Attributes:
        folder: Where commands run; like a checkout, it has the Makefile and a .venv.
        device: The home of the login on the devices.
        server: The SSH server that all hosts of the documents lead to.
        variables: The environment of the commands, all of it.
    """

    folder: Path
    device: Path
    server: sshd.Server
    variables: Mapping[str, str]

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a shell script and return what became of it; the script ends at the first command that fails."""
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", script],
            cwd=self.folder, env=dict(self.variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip

    def translated(self, text: str) -> str:
        """Let a text name this desk's login and its folder on the device in place of the documents'."""
        text = re.sub(r"\b(?:me|pi|root)@(?=10\.0\.0\.\d|board)", f"{self.server.user}@", text)
        return text.replace("/home/me/", f"{self.device}/")


@contextlib.contextmanager
def open_desk(folder: Path, cache: Path) -> Iterator[Desk]:
    """Set up a desk; a farm that was started at it ends with it."""
    with sshd.running(folder / "device") as server:
        desk = Desk(folder / "work", folder / "device", server, _variables(folder, cache))
        for path in (desk.folder, folder / "home" / ".ssh", folder / "tmp"):
            path.mkdir(parents=True)
        _write_ssh(folder, server)
        _write_programs(folder)
        _write_checkout(desk.folder)
        _write_boards(desk.folder / "boards")
        _write_inputs(desk.folder)
        try:
            yield desk
        finally:
            desk.run("toolchain farm down")


def _variables(folder: Path, cache: Path) -> dict[str, str]:
    return {
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder / "tmp"),
        "TOOLCHAIN_BOARDS": str(folder / "work" / "boards"),
        "TOOLCHAIN_CACHE": str(cache),
        "TOOLCHAIN_DOCKER": str(folder / "no-docker"),
    }


def _write_ssh(folder: Path, server: sshd.Server) -> None:
    """Have every host of the documents be this machine, for the toolchain and for OpenSSH's own programs."""
    config = folder / "home" / ".ssh" / "config"
    config.write_text(
        f"Host {_HOSTS}\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {server.key_file}\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {server.known_hosts}\n  GlobalKnownHostsFile none\n"
    )
    config.chmod(0o600)
    (folder / "bin").mkdir()
    for name in ("ssh", "scp"):
        _write_program(folder / "bin" / name, f'exec /usr/bin/{name} -F {config} "$@"')


def _write_programs(folder: Path) -> None:
    cases = "\n".join(f'  {name}) set -- "$@" {options} ;;' for name, options in _QUICK.items() if name != "deploy")
    python = f"""exec {sys.executable} -c 'import sys; sys.argv[0] = "toolchain"
from toolchain.cli import main; main()' "$@\""""
    _write_program(
        folder / "bin" / "toolchain",
        f"""case "${{1-}}" in
  deploy)
    case " $* " in *" --trials "*) set -- "$@" --trials 4 ;; esac
    set -- "$@" {_QUICK["deploy"]} ;;
{cases}
esac
{python}""",
    )


def _write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _write_checkout(folder: Path) -> None:
    """Make a folder look like a checkout that is set up."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "docker", "toolchain"):
        (folder / name).symlink_to(ROOT / name)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "toolchain").symlink_to(folder.parent / "bin" / "toolchain")
    (programs / "activate").write_text("")
    (folder / ".venv" / ".ready").touch()


def _write_boards(folder: Path) -> None:
    """Copy the board types, but let some of them be this machine."""
    folder.mkdir()
    native = board.load("local").resolved()
    for path in (ROOT / "boards").glob("*.toml"):
        (folder / path.name).write_bytes(path.read_bytes())
    for name in STAND_INS:
        (folder / f"{name}.toml").write_text(
            f'description = "this machine, over SSH"\nconnection = "ssh"\ntoolchain = "host"\ncores = 2\n'
            f'{labs.ours(native)}\n[target]\nmcpu = "generic"\n'
        )


def _write_inputs(folder: Path) -> None:
    random = np.random.default_rng(0)
    nets.save(_classifier(random), folder, "model.onnx")
    (folder / "pictures").mkdir()
    for name in ("cat.png", "dog.png"):
        picture = random.integers(0, 256, (224, 224, 3), dtype=np.uint8)
        Image.fromarray(picture).save(folder / "pictures" / name)
    (folder / "labels.txt").write_text("".join(f"class {number}\n" for number in range(1000)))


def _classifier(random: np.random.Generator) -> nets.onnx.ModelProto:
    """Return a network of pictures that is built in a second: a convolution and a layer of 1000 classes."""
    weights = {
        "filters": random.standard_normal((16, 3, 8, 8)).astype(np.float32) / 8,
        "classes": random.standard_normal((16, 1000)).astype(np.float32),
    }
    nodes = [
        nets.node("Conv", ["x", "filters"], ["a"], name="conv", strides=[8, 8]),
        nets.node("Relu", ["a"], ["b"], name="relu"),
        nets.node("GlobalAveragePool", ["b"], ["c"], name="mean"),
        nets.node("Flatten", ["c"], ["d"], name="flat"),
        nets.node("MatMul", ["d", "classes"], ["y"], name="dense"),
    ]
    return nets.model(nodes, [nets.value("x", (1, 3, 224, 224))], [nets.value("y", (1, 1000))], weights)
