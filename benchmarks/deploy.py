"""How quick the parts around a model are: starting, uploading against OpenSSH's sftp, and deploying nothing new.

    python benchmarks/deploy.py [--json FILE]

Everything runs against an OpenSSH server on loopback that this script starts; uploads alternate with sftp's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import _ab
from tests.support import sshd
from tests.support.commands import toolchain
from toolchain.shell import SshOptions, open_shell

_MIB = 2**20
_SIZE_MIB = 100
_ROUNDS = 8


def seconds(call: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def startup() -> float:
    """Return the median time of `toolchain --help` in seconds."""
    script = Path(sys.executable).parent / "toolchain"
    return statistics.median(
        seconds(lambda: subprocess.run([script, "--help"], check=True, capture_output=True)) for _ in range(15)
    )


def uploads(server: sshd.Server, folder: Path) -> dict[str, Any]:
    """Upload the same random file in turn with our shell and with sftp, connecting included in both."""
    source = folder / "random"
    source.write_bytes(os.urandom(_SIZE_MIB * _MIB))
    options = SshOptions(identity=server.key_file, known_hosts=(server.known_hosts,))

    def ours() -> None:
        (folder / "ours").unlink(missing_ok=True)
        with open_shell(server.host, config=options) as shell:
            shell.push(source, str(folder / "ours"))

    def sftp() -> None:
        (folder / "theirs").unlink(missing_ok=True)
        command = ["sftp", "-q", "-b", "-", "-P", str(server.port), "-i", str(server.key_file)]
        command += ["-o", f"UserKnownHostsFile={server.known_hosts}", f"{server.user}@{server.address}"]
        subprocess.run(command, input=f"put {source} {folder}/theirs\n", text=True, check=True, capture_output=True)

    ours()
    sftp()
    took = _ab.in_turns({"ours": lambda: seconds(ours), "sftp": lambda: seconds(sftp)}, _ROUNDS)
    return {
        **{f"{name}_mib_s": _SIZE_MIB / statistics.median(times) for name, times in took.items()},
        "rate_ratio": _ab.ratio(*([[value] for value in took[name]] for name in ("sftp", "ours"))),
    }


def redeploys(server: sshd.Server, folder: Path) -> dict[str, object]:
    """Deploy MobileNet, then the same again, then with other weights."""
    device = ["--board", "x86_64", "--host", server.host, "-i", server.key_file]
    device += ["--known-hosts", server.known_hosts, "--root", folder / "device", "--budget", 0, "--json", "-"]
    reports = {}
    for name, source in (("first", "a"), ("unchanged", "a"), ("new params", "b")):
        if not (folder / source).exists():
            toolchain("build", "mobilenet", "--board", "x86_64", "--seed", len(reports), "-o", folder / source)
        report = json.loads(toolchain("deploy", folder / source, *device).out)
        reports[name] = {"deploy_s": report["stages_s"]["deploy"], **report["transfer"]}
    return reports


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with sshd.running(folder / "sshd") as server:
            figures = {
                "help_ms": startup() * 1000,
                "upload": uploads(server, folder),
                "deploys": redeploys(server, folder),
            }
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
