"""Boards of a farm that are served on paper: they do at once what they are asked for."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from toolchain.errors import BusyError
from toolchain.farm.pool import Pool
from toolchain.farm.protocol import ServedDevice
from toolchain.farm.served_board import Claim
from toolchain.native.programs import Program
from toolchain.shell import SshOptions

PROGRAM = Program(Path("/cache/board_server"), "ab" * 32, "2.28", "x86_64", {})
BUSY = BusyError("me@board is busy: in use by ann@desk: deploy", owner="ann@desk: deploy")


class Paper:
    """A board that is served on paper: it does at once what it is asked for."""

    def __init__(self, served, changed):
        self.served, self.changed = served, changed
        self.state, self.fault, self.session_since = "connecting", None, None
        self.key, self.wanted, self.busy = None, Claim(), False
        self.quiet, self.cuts, self.stopped, self.obeys, self.dials = False, 0, False, True, 0
        self.celsius, self.occupied = 41.5, None

    def start(self):
        self.become("ready")

    def become(self, state, fault=None):
        self.state, self.fault = state, fault
        self.key = self.wanted.key if state == "ready" else None
        threading.Thread(target=self.changed, daemon=True).start()

    def offer(self, claim, *, quiet=False):
        self.wanted, self.quiet = claim, quiet
        if self.obeys and self.state == "ready" and not self.busy:
            self.key = claim.key
        self.fault = BUSY if self.busy and claim.owner else None

    def free(self):
        """Somebody else's work on it has ended."""
        self.busy = False
        self.offer(self.wanted)
        threading.Thread(target=self.changed, daemon=True).start()

    @property
    def is_busy(self):
        return self.fault is BUSY

    def dial(self, timeout_s):
        assert timeout_s > 0
        self.dials += 1
        if self.state != "ready":
            raise self.fault
        here, there = socket.socketpair()
        there.close()
        return here

    def rest(self, *, quiet):
        self.quiet = quiet

    @property
    def settled(self):
        return self.state == "ready" and self.key == self.wanted.key and not self.is_busy

    def cut(self):
        self.cuts += 1
        self.session_since = None

    def stop(self):
        self.stopped = True

    def join(self, timeout):
        assert timeout <= 7.0


def served(name, kind, **more):
    host = more.get("host", name)
    return ServedDevice(name, kind, host, "~/store", emulated=False, program=PROGRAM, ssh=SshOptions())


def board(pool: Pool, name: str) -> Paper:
    return pool._slots[name].board


def states(pool: Pool) -> dict[str, str]:
    return {board["name"]: board["state"] for board in pool.status()["boards"]}
