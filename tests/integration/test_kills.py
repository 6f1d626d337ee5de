"""Deploys that are killed at random instants: the device runs the old release or the new one, and nobody repairs it.

TOOLCHAIN_KILLS is the number of kills, 12 by default.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests.support import bundles, deploy_client, sshd
from tests.support.slots import SLOTS, folder_of, own
from toolchain import tensors
from toolchain.device import runner, verification
from toolchain.device.rate import Rate
from toolchain.errors import ToolchainError
from toolchain.native.programs import Program
from toolchain.shell import LocalShell

KILLS = int(os.environ.get("TOOLCHAIN_KILLS", "12"))
WAYS = {"local client": KILLS // 2, "client over SSH": KILLS // 4, "session of sshd": KILLS // 4}
LOCK_FREE_S = 4.0  # two seconds for a script to end by itself, then TERM, then KILL
RUN_EVERY = 4


@dataclass
class Tally:
    """What was found after each kill, and what went wrong in words."""

    found: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_lock: float = 0.0

    def __str__(self) -> str:
        counts = ", ".join(f"{self.found[name]} {name}" for name in ("kills", "old", "new", "neither", "repairs"))
        return f"{counts}; the lock was free after {self.slowest_lock:.1f} s at most"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sshd")
    # Another home: a killed login shell must not leave a mess in what this user's dot files start.
    with sshd.running(folder, options=f"SetEnv HOME={folder}") as running:
        yield running


@pytest.mark.parametrize("kill_kind", WAYS)
def test_kills(kill_kind, bulky, program, tmp_path, request, capsys):
    server = None if kill_kind == "local client" else request.getfixturevalue("server")
    ssh = (server.host, _config(server)) if server else ()
    root = tmp_path / "device"
    deploy_client.plain_deploy(bulky[0], program, root, ssh)
    seconds = deploy_client.duration(bulky[1], root, ssh)
    tally, stream = Tally(), random.Random(kill_kind)  # noqa: S311 - seeded, so that a failure comes again
    for index in range(WAYS[kill_kind]):
        old, new = bulky[(index + 1) % 2], bulky[index % 2]
        with deploy_client.started(new, root, ssh) as client:
            deploy_client.begin(client)
            time.sleep(stream.uniform(0, 1.05 * seconds))
            _kill(client, server if kill_kind == "session of sshd" else None)
        tally.slowest_lock = max(tally.slowest_lock, _until_free(root))
        _judge(root, {old.digest: "old", new.digest: "new"}, tally)
        if index % RUN_EVERY == 0:
            _run_current(root, program, {bundle.digest: bundle for bundle in bulky})
        _deploy_again(tally, lambda release=new: deploy_client.plain_deploy(release, program, root, ssh))
        assert bundles.whole_release(root) == new.digest
    with capsys.disabled():
        print(f"\n{kill_kind}: {tally}; a deploy takes {seconds:.2f} s")  # noqa: T201 - the figure that is asked for
    assert tally.wrong == []
    assert tally.slowest_lock < LOCK_FREE_S


def test_kills_in_one_slot_beside_models_that_run(bulky, program, tmp_path, capsys):
    """The models of the other slots are run by the real runner, ten times a second, and are never disturbed."""
    root, others, tally = tmp_path / "device", [slot for slot in SLOTS if slot != "detector"], Tally()
    for slot in SLOTS:
        deploy_client.plain_deploy(bulky[0], program, root, slot=slot)
    seconds, stream = deploy_client.duration(bulky[1], root, slot="detector"), random.Random("slots")  # noqa: S311
    with contextlib.ExitStack() as stack:
        running = {slot: stack.enter_context(_running(root, slot, program, bulky[0], tmp_path)) for slot in others}
        before = {slot: own(root, slot) for slot in others}
        for index in range(max(2, KILLS // 4)):
            old, new = bulky[(index + 1) % 2], bulky[index % 2]
            with deploy_client.started(new, root, slot="detector") as client:
                deploy_client.begin(client)
                time.sleep(stream.uniform(0, 1.05 * seconds))
                _kill(client, None)
            _until_free(root)
            _judge(root / "slots" / "detector", {old.digest: "old", new.digest: "new"}, tally)
            _deploy_again(
                tally, lambda release=new: deploy_client.plain_deploy(release, program, root, slot="detector")
            )
            assert {slot: own(root, slot) for slot in others} == before
            assert {slot: process.poll() for slot, process in running.items()} == dict.fromkeys(others)
    with capsys.disabled():
        print(f"\none of three slots: {tally}")  # noqa: T201
    assert tally.wrong == []


@contextlib.contextmanager
def _running(root: Path, slot: str, program: Program, made: bundles.Bundle, folder: Path):
    """Run the current release of a slot for as long as the block takes."""
    inputs, out = folder / f"given-{slot}", folder / f"out-{slot}"
    for path in (inputs, out):
        path.mkdir()
    tensors.save(inputs / runner.INPUTS, verification.samples_of(made).inputs)
    plan = runner.Plan(budget_s=0.0, min_runs=1, max_runs=1, rate=Rate(0.1, 3600.0, 0.1))
    folders = {"runners": str(program.path.parent), "inputs": str(inputs)}
    argv = runner.command(folders, str(folder_of(root, slot) / "current"), str(out), plan, threads=1)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def _config(server: sshd.Server) -> str:
    """Write an ssh_config for the server's address, where its own has an alias."""
    path = server.config.with_name("by_address")
    path.write_text(server.config.read_text().replace("Host board", f"Host {server.address}"))
    return str(path)


def _kill(client, server) -> None:
    """End the client, or what serves it on the device; then the client must end by itself, in good order."""
    if server is None:
        client.kill()
        client.wait()
        return
    server.kill_sessions()
    assert client.wait(30) in {0, 4}, client.stderr.read()


def _until_free(root: Path) -> float:
    """Wait for the end of whatever the kill left running; return how many seconds it held the lock."""
    start = time.monotonic()
    with (root / "lock").open("ab") as lock:
        while time.monotonic() - start < 2 * LOCK_FREE_S:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.01)
    return time.monotonic() - start


def _judge(root: Path, names: dict[str, str], tally: Tally) -> None:
    tally.found["kills"] += 1
    try:
        tally.found[names[bundles.whole_release(root)]] += 1
    except (AssertionError, KeyError, OSError) as fault:
        tally.found["neither"] += 1
        tally.wrong.append(repr(fault))


def _run_current(root: Path, program: Program, releases: dict[str | None, bundles.Bundle]) -> None:
    """Run what the device would run after this kill."""
    samples = verification.samples_of(releases[bundles.whole_release(root)])
    inputs = root.parent / "given"
    inputs.mkdir(exist_ok=True)
    tensors.save(inputs / runner.INPUTS, samples.inputs)
    folders = {"runners": str(program.path.parent), "inputs": str(inputs)}
    release = str(root / "current")
    outputs = releases[bundles.whole_release(root)].manifest.outputs
    settings = {"release": release, "threads": 1, "plan": runner.SMOKE, "outputs": outputs}
    run = runner.call(LocalShell(), str(root.parent), folders, **settings)
    assert np.allclose(run.outputs["y"], samples.expected["y"], rtol=1e-3, atol=1e-3)


def _deploy_again(tally: Tally, plain_deploy) -> None:
    try:
        plain_deploy()
    except ToolchainError as fault:
        tally.found["repairs"] += 1
        tally.wrong.append(f"{fault.message}: {fault.details}")
        time.sleep(1)
        plain_deploy()
