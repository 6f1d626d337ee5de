"""Places of labgrid (https://labgrid.readthedocs.io): a place says where a device is, and the shell to it is ours.

labgrid's own SSH driver takes any host key. Ours wants the key that the place has as a tag, or one of known_hosts.
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
class Placed:
    """Where the device of a place is.

    Attributes:
        name: The place.
        user: Who logs in.
        address: Name or address.
        port: Its SSH port.
        known_hosts: A file with its host key; None where the place has none.
    """

    name: str
    user: str
    address: str
    port: int
    known_hosts: Path | None = None

    @property
    def host(self) -> str:
        """Its address as `--host` has it."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{address}:{self.port}"

    def device(self, board: str, named: Device | None = None) -> Device:
        """Return it as a device of a board type; what an entry of the lab's file says of it stays, but the address."""
        return replace(named, host=self.host) if named else Device(board=board, host=self.host)

    def ssh(self, options: SshOptions) -> SshOptions:
        """Return how it is reached: with its own host key, unless the user names files of trusted ones."""
        if options.known_hosts or self.known_hosts is None:
            return options
        return replace(options, known_hosts=(self.known_hosts,))


@contextlib.contextmanager
def acquired(name: str) -> Iterator[Placed]:
    """Acquire a place for the time of a block, and release it, however that ends.

    Args:
        name: The place's name. The coordinator's address is in `LG_COORDINATOR`, as for `labgrid-client`.

    Raises:
        BusyError: Somebody has it.
        InputError: There is no such place, it has no network service, or labgrid is not installed.
        DeviceError: The coordinator does not answer, or refuses.
        VerificationError: The tag `hostkey` is no key.
    """
    lab = _Lab(os.environ.get(_COORDINATOR) or "127.0.0.1", name)
    with contextlib.ExitStack() as stack:
        with process.signals_later():  # either it is acquired and will be released, or it is not
            me = lab.do(lab.acquire)
            stack.callback(_released, lab, me)
        folder = Path(stack.enter_context(temporary.folder()))
        yield lab.do(lambda session: lab.placed(session, folder))


def _released(lab: _Lab, me: str) -> None:
    with process.signals_later():
        lab.do(lambda session: lab.release(session, me))


class _Lab:
    """One place, at a coordinator."""

    def __init__(self, coordinator: str, name: str) -> None:
        self._address = coordinator if re.search(r":[0-9]+$", coordinator) else f"{coordinator}:{_PORT}"
        self._name = name
        self._client, self._wire = _labgrid()

    def do(self, action: Callable[[Any], Awaitable[T]]) -> T:
        """Do something in a session of its own: a connection that was lost meanwhile is none that is needed."""
        try:
            return asyncio.run(self._in_session(action))
        except (self._client.Error, TimeoutError, OSError) as fault:
            words = " ".join(map(str, fault.args))
            if "matches nothing" in words or "multiple places" in words:
                raise InputError(
                    f"labgrid has no place {self._name!r}",
                    details=words,
                    hint="list the places: `labgrid-client places`",
                ) from fault
            raise self._refused(words or f"no answer within {_ANSWER_S:g} s") from fault
        except self._client.grpc.aio.AioRpcError as fault:
            raise self._refused(str(fault.details())) from fault

    def _refused(self, words: str) -> DeviceError:
        return DeviceError(
            f"the labgrid coordinator at {self._address} does not assign place {self._name}",
            details=words[:1000],
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
        """Acquire the place; return in whose name."""
        place = session.get_place(self._name)
        if place.name != self._name and self._name not in place.aliases:  # labgrid takes any part of a name
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

    async def release(self, session: Any, me: str) -> None:
        """Release it, unless somebody else has it by now."""
        name = session.get_place(self._name).name
        await session.stub.ReleasePlace(self._wire.ReleasePlaceRequest(placename=name, fromuser=me))

    async def placed(self, session: Any, folder: Path) -> Placed:
        """Say where the device of the acquired place is."""
        place = session.get_place(self._name)
        found = [one for (_, kind), one in session.get_target_resources(place).items() if kind == _SERVICE]
        if len(found) != 1:
            raise InputError(
                f"place {self._name} has {len(found)} resources of kind {_SERVICE}, but exactly one is needed",
                hint=f"`labgrid-client -p {self._name} add-match EXPORTER/GROUP/{_SERVICE}`",
            )
        given = found[0].args
        user, address, port = str(given.get("username")), str(given.get("address")), given.get("port", 22)
        if not _WORD.fullmatch(user) or not _WORD.fullmatch(address) or not str(port).isdecimal():
            raise InputError(f"place {self._name} has no usable address", details=f"{user!r} {address!r} {port!r}")
        return Placed(self._name, user, address, int(port), self._known(place, f"[{address}]:{port}", folder))

    def _known(self, place: Any, host: str, folder: Path) -> Path | None:
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
        path.write_text("".join(f"{one} {key}\n" for one in (host, *_plain(host))), encoding="utf-8")
        return path


def _plain(host: str) -> tuple[str, ...]:
    """Return how known_hosts has a host at SSH's own port."""
    return (host[1:].removesuffix("]:22"),) if host.endswith("]:22") else ()


def _labgrid() -> tuple[Any, Any]:
    """Import labgrid's client and its messages; it puts a hook of its own in the interpreter, which is taken out.

    Raises:
        InputError: It is not installed.
    """
    before = sys.excepthook
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
        sys.excepthook = before
    return client, labgrid_coordinator_pb2
