"""A Dask cluster on loopback: a real scheduler, and real workers in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.paths import ROOT

_SOON_S = 300.0
_QUIET = ("--no-dashboard", "--host", "127.0.0.1")


def until(holds: Callable[[], object], label: str) -> None:
    end = time.monotonic() + _SOON_S
    while not holds():
        assert time.monotonic() < end, label
        time.sleep(0.05)


@dataclass
class Cluster:
    """A scheduler and its workers.

    Attributes:
        folder: Where they put what they write.
        address: The scheduler's, as Dask names it.
        tls: Options of Dask's commands for TLS.
        workers: The workers' processes.
    """

    folder: Path
    address: str
    tls: tuple[str, ...] = ()
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def option(self) -> str:
        return self.address.replace("tcp://", "dask://")

    def start(self, count: int = 1, threads: int = 1, preload: str = "") -> None:
        """Start workers, which join when they are ready."""
        for _ in range(count):
            command = [self.address, "--nthreads", str(threads), "--no-nanny", "--local-directory", str(self.folder)]
            command += ["--preload", preload] if preload else []
            self.workers.append(_started("worker", [*command, *_QUIET, *self.tls], self.folder))

    def await_workers(self, count: int) -> None:
        """Wait until the scheduler knows so many."""
        import distributed

        security = distributed.Security(**self.security) if self.tls else None
        with distributed.Client(self.address, security=security, set_as_default=False) as client:
            until(lambda: len(client.nthreads()) == count, f"{count} workers")

    @property
    def security(self) -> dict[str, str]:
        ca, cert, key = self.tls[1::2]
        return {"tls_ca_file": ca, "tls_client_cert": cert, "tls_client_key": key}

    def end(self, workers: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        """Kill some workers; all without a word of which."""
        for worker in list(workers) or list(self.workers):
            worker.kill()
            worker.wait()
            self.workers.remove(worker)


def _started(kind: str, arguments: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    number = len(list(folder.glob(f"{kind}-*.log")))
    argv = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / f"{kind}-{number}.log").open("wb") as log:
        return subprocess.Popen(argv, cwd=folder, env=environment, stdout=log, stderr=log)


@contextlib.contextmanager
def cluster(folder: Path, workers: int, tls: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """Yield a scheduler with so many workers, of one thread each, that have joined."""
    file = folder / "scheduler.json"
    options = ["--port", "0", "--scheduler-file", str(file), *_QUIET, *tls]
    scheduler = _started("scheduler", [*options, "--protocol", "tls"] if tls else options, folder)
    started_cluster = None
    try:
        until(lambda: file.exists() and file.read_text().endswith("}"), "the scheduler")
        started_cluster = Cluster(folder, json.loads(file.read_text())["address"], tls)
        started_cluster.start(workers)
        started_cluster.await_workers(workers)
        yield started_cluster
    finally:
        if started_cluster:
            started_cluster.end()
        scheduler.kill()
        scheduler.wait()


def certificates(folder: Path) -> tuple[str, ...]:
    """Make an authority and one certificate of it, for all; return Dask's options for them."""
    paths = {name: str(folder / name) for name in ("ca.pem", "ca.key", "cert.pem", "key.pem", "request.pem")}
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for command in (
        ("req", "-x509", *curve, "-subj", "/CN=authority", "-keyout", paths["ca.key"], "-out", paths["ca.pem"]),
        ("req", *curve, "-subj", "/CN=builder", "-keyout", paths["key.pem"], "-out", paths["request.pem"]),
        ("x509", "-req", "-in", paths["request.pem"], "-CA", paths["ca.pem"], "-CAkey", paths["ca.key"],
         "-set_serial", "7", "-days", "2", "-out", paths["cert.pem"]),
    ):  # fmt: skip
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return (
        "--tls-ca-file",
        paths["ca.pem"],
        "--tls-cert",
        paths["cert.pem"],
        "--tls-key",
        paths["key.pem"],
    )
