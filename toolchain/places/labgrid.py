"""Devices from places of labgrid (https://labgrid.readthedocs.io): their addresses and host keys.

labgrid's own SSH driver accepts any host key. Here the key must be in the place's tag, or in known_hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from toolchain import process, temporary
from toolchain.devices import Device
from toolchain.errors import BusyError, DeviceError, InputError, VerificationError
from toolchain.shell import SshOptions

T = TypeVar("T")

_COORDINATOR = "LG_COORDINATOR"
_PORT = 20408
_ANSWER_S = 20.0
_SERVICE = "NetworkService"
_TAG = "hostkey"
_KEY = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]{40,2000}={0,3}")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}")


@dataclass(frozen=True)
class AcquiredPlace:
    """A place that this process has acquired, and the address of its device."""

    name: str
    user: str  # login
    address: str
    port: int
    known_hosts: Path | None = None  # a file with the host key of the place's tag

    @property
    def host(self) -> str:
        """Its address in the form of `--host`."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{address}:{self.port}"

    def device(self, board: str, entry: Device | None = None) -> Device:
        """Return it as a device of a board type; an entry of the device list keeps its other fields."""
        return replace(entry, host=self.host) if entry else Device(board=board, host=self.host)

    def ssh(self, options: SshOptions) -> SshOptions:
        """Add its host key, unless the user names known_hosts files."""
        if options.known_hosts or self.known_hosts is None:
            return options
        return replace(options, known_hosts=(self.known_hosts,))


@contextlib.contextmanager
def acquire(name: str) -> Iterator[AcquiredPlace]:
    """Acquire a place for a block, and release it afterwards.

    The coordinator's address is in `LG_COORDINATOR`, as for `labgrid-client`.

    Raises:
        BusyError: Another user has it.
        InputError: There is no such place, it has no network service, or labgrid is not installed.
        DeviceError: The coordinator does not answer, or refuses.
        VerificationError: The tag `hostkey` is not a key.
    """
    lab = _Lab(os.environ.get(_COORDINATOR) or "127.0.0.1", name)

    def release(user: str) -> None:
        with process.signals_later():
            lab.do(lambda session: lab.release(session, user))

    with contextlib.ExitStack() as stack:
        # No signal may interrupt here: a place that was acquired must be registered for its release.
        with process.signals_later():
            user = lab.do(lab.acquire)
            stack.callback(release, user)
        folder = Path(stack.enter_context(temporary.folder()))
        yield lab.do(lambda session: lab.locate(session, folder))


class _Lab:
    """One place, at a coordinator."""

    def __init__(self, coordinator: str, name: str) -> None:
        self._address = coordinator if re.search(r":[0-9]+$", coordinator) else f"{coordinator}:{_PORT}"
        self._name = name
        self._client, self._wire = _labgrid()

    def do(self, action: Callable[[Any], Awaitable[T]]) -> T:
        """Run an action in a new session: an earlier connection may have been lost."""
        try:
            return asyncio.run(self._in_session(action))
        except (self._client.Error, TimeoutError, OSError) as fault:
            message = " ".join(map(str, fault.args))
            if "matches nothing" in message or "multiple places" in message:
                raise InputError(
                    f"labgrid has no place {self._name!r}",
                    details=message,
                    hint="list the places: `labgrid-client places`",
                ) from fault
            raise self._refusal(message or f"no answer within {_ANSWER_S:g} s") from fault
        except self._client.grpc.aio.AioRpcError as fault:
            raise self._refusal(str(fault.details())) from fault

    def _refusal(self, message: str) -> DeviceError:
        return DeviceError(
            f"the labgrid coordinator at {self._address} does not assign place {self._name}",
            details=message[:1000],
            hint=f"check the coordinator in {_COORDINATOR}; `labgrid-client -p {self._name} show` describes the place",
        )

    async def _in_session(self, action: Callable[[Any], Awaitable[T]]) -> T:
        session = self._client.ClientSession(self._address, asyncio.get_running_loop())
        try:
            await asyncio.wait_for(session.start(), _ANSWER_S)
            return await asyncio.wait_for(action(session), _ANSWER_S)
        finally:
            await session.stop()
            await session.close()

    async def acquire(self, session: Any) -> str:
        """Acquire the place; return the name of the user who has it now."""
        place = session.get_place(self._name)
        if place.name != self._name and self._name not in place.aliases:  # labgrid accepts a part of a name
            raise self._client.UserError(f"place {self._name} matches nothing")
        if place.acquired:
            raise BusyError(
                f"place {self._name} is acquired by {place.acquired}",
                hint=f"run the command again later, or with --wait SECONDS; `labgrid-client -p {self._name} release`"
                " on that machine ends it",
                owner=f"{place.acquired}: place {self._name}",
            )
        await session.stub.AcquirePlace(self._wire.AcquirePlaceRequest(placename=place.name))
        return f"{session.gethostname()}/{session.getuser()}"

    async def release(self, session: Any, user: str) -> None:
        """Release the place, unless another user has it by now."""
        # The coordinator ignores a release by a user who does not have the place.
        name = session.get_place(self._name).name
        await session.stub.ReleasePlace(self._wire.ReleasePlaceRequest(placename=name, fromuser=user))

    async def locate(self, session: Any, folder: Path) -> AcquiredPlace:
        place = session.get_place(self._name)
        resources = session.get_target_resources(place).items()
        services = [resource for (_, kind), resource in resources if kind == _SERVICE]
        if len(services) != 1:
            raise InputError(
                f"place {self._name} has {len(services)} resources of kind {_SERVICE}, but exactly one is needed",
                hint=f"`labgrid-client -p {self._name} add-match EXPORTER/GROUP/{_SERVICE}`",
            )
        args = services[0].args
        user, address, port = str(args.get("username")), str(args.get("address")), args.get("port", 22)
        if not _WORD.fullmatch(user) or not _WORD.fullmatch(address) or not str(port).isdecimal():
            raise InputError(f"place {self._name} has no usable address", details=f"{user!r} {address!r} {port!r}")
        known_hosts = self._write_known_hosts(place, f"[{address}]:{port}", folder)
        return AcquiredPlace(self._name, user, address, int(port), known_hosts)

    def _write_known_hosts(self, place: Any, host: str, folder: Path) -> Path | None:
        """Write the key of the place's tag to a file of known hosts."""
        key = place.tags.get(_TAG)
        if key is None:
            return None
        if not _KEY.fullmatch(key):
            raise VerificationError(
                f"the tag {_TAG} of place {self._name} is not a valid public host key",
                details=repr(key)[:200],
                hint=f"labgrid-client -p {self._name} set-tags '{_TAG}=ssh-ed25519 AAAA...'",
            )
        path = folder / "known_hosts"
        # known_hosts names a host at port 22 without brackets and port.
        hosts = [host, host[1:].removesuffix("]:22")] if host.endswith("]:22") else [host]
        path.write_text("".join(f"{name} {key}\n" for name in hosts), encoding="utf-8")
        return path


def _labgrid() -> tuple[Any, Any]:
    """Import labgrid's client and its messages, or raise an InputError."""
    hook = sys.excepthook  # which labgrid replaces by its own
    try:
        from labgrid.remote import client  # noqa: PLC0415 - an extra, and slow to import
        from labgrid.remote.generated import labgrid_coordinator_pb2  # noqa: PLC0415
    except ImportError as fault:
        raise InputError(
            "--place needs labgrid, which is not installed",
            details=str(fault),
            hint="pip install 'labgrid>=26'",
        ) from fault
    finally:
        sys.excepthook = hook
    return client, labgrid_coordinator_pb2
