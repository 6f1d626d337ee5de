"""The content-addressed store on a device, driven through a shell: only POSIX sh, coreutils or busybox, and flock.

```
ROOT/lock                     the client that uses the device; held by flock, kept alive by a heartbeat
ROOT/lock.within              the same inside of a lock that is held for it, as by `farm lock NAME -- CMD`
ROOT/blobs/sha256/<digest>    complete, verified and synced
ROOT/blobs/partial/<token>/   unfinished uploads of one deploy; the next deploy resumes them
ROOT/releases/<digest>/       hard links into blobs/, named by the bundle's digest
ROOT/runners/<digest>/        the programs that run releases
ROOT/libraries/<digest>/      the library for applications
ROOT/lib                      -> libraries/<digest>
ROOT/unchecked/<digest>       marks a release whose outputs were not compared with a reference
ROOT/servers/<digest>/        the programs that measure candidates
ROOT/inputs/<digest>/         inputs of runs
ROOT/run/<token>/             outputs and times of a run, until it ends
ROOT/generations/<n>          -> ../releases/<digest>, one for each activation
ROOT/current                  -> generations/<n>, replaced by one rename
ROOT/floors/<model>           the lowest sequence of a model that the device accepts; see `trust`
ROOT/trial                    a current release whose application has not been healthy yet
ROOT/trial.log                the log of the last trial
ROOT/recover                  takes such a release back; the application's unit runs it before each start
ROOT/slots/<name>/            another model, with `releases`, `generations`, `current`, `floors` and so on of its own
```
A slot has links to what all slots share: the lock, blobs, programs, inputs and runs. See docs/decisions/0010.
Even after a crash, `current` names a complete release: data is synced before the rename that makes it visible.
Modelled on OSTree's deployments (https://ostreedev.github.io/ostree/atomic-upgrades/) and Nix profiles.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolchain import process
from toolchain.device import lock as locks
from toolchain.device import scripts
from toolchain.device.lock import Lease, Owner
from toolchain.device.probe import script as probe_script
from toolchain.device.probe.answer import Answer, number
from toolchain.device.probe.facts import DeviceFacts, read_facts
from toolchain.device.waiting import Patience, Waited
from toolchain.errors import DeviceError, InputError, did_you_mean
from toolchain.progress import reminding
from toolchain.shell import Shell
from toolchain.shell.protocol import ending_of
from toolchain.validation import SLOT

_DIGEST_CHARACTERS = 64
_SHOWN = 1000
_STATES = frozenset({"have", "partial", "damaged"})
_SLOT = re.compile(SLOT)
_GENERATION = re.compile(r"generation ([0-9]{1,9}) ([0-9a-f]{64}) (-?[0-9]{1,12}) (.*)")
_LIST = f'cd "$ROOT" 2>/dev/null || exit 0\n{scripts.LIST}'
_RECOVERED = re.compile(r"recovered [0-9]+ [0-9]+ [0-9]+")


@dataclass(frozen=True)
class Generation:
    """One activation: its number, the release, its time (seconds since 1970), and whether it is current."""

    number: int
    digest: str
    time: int
    name: str
    current: bool


@dataclass(frozen=True)
class BlobState:
    """The state of a blob on a device, with its bytes: `have`, `partial`, `damaged` (now removed), or `missing`."""

    state: str
    size: int


class Store:
    """The store of one device. Everything that changes it runs under `lock`.

    Args:
        shell: The device.
        root: Folder on it, which may begin with `~/`.
        progress: Called with what had to be repaired on the device.
        patience: How long to wait while others use the device; not at all by default.
        slot: The slot to use; empty for the store's own releases. It must exist, or be made by `Blobs.sweep`.

    Attributes:
        slot: The slot.
        blobs: The files of the store, and the folders of links to them.
        releases: The activations of releases, in the slot.
    """

    def __init__(
        self,
        shell: Shell,
        root: str,
        progress: Callable[[str], None] = lambda _line: None,
        patience: Patience | None = None,
        slot: str = "",
    ) -> None:
        self._shell = shell
        self._root = root
        self._patience = patience or Patience()
        self._lease: Lease | None = None
        self._folder = ""
        self._facts: DeviceFacts | None = None
        self.slot = slot
        self._report = progress
        self._enter = scripts.enter(slot)
        home = root.startswith("~/")
        self._set_root = f'ROOT="$HOME"/{shlex.quote(root[2:])}' if home else f"ROOT={shlex.quote(root)}"
        self.blobs = Blobs(self, shell)
        self.releases = Releases(self, progress)

    @property
    def name(self) -> str:
        """The device's name."""
        return self._shell.name

    @property
    def folder(self) -> str:
        """The store's absolute path on the device."""
        if not self._folder:
            self.facts()
        return self._folder

    @property
    def root(self) -> str:
        """The absolute path of the slot's folder; that of the store for its own releases."""
        return f"{self.folder}/slots/{self.slot}" if self.slot else self.folder

    def facts(self) -> DeviceFacts:
        """Ask the device for its facts; this also creates the root folder.

        Raises:
            DeviceError: The root folder cannot be created, or the answer is not valid.
        """
        token = secrets.token_hex(8)
        output = self.look_at_store(f'mkdir -p "$ROOT"\n{probe_script.facts(token)}')
        if f"begin={token}" not in output.split("\n"):
            raise self.invalid_answer("a description of itself", output)
        answer = Answer(output, token, self.name)
        self._folder = answer.exact("root")
        if not self._folder:
            raise self.invalid_answer("the folder of its store", output)
        self._facts = read_facts(answer, self.name)
        return self._facts

    @property
    def known_facts(self) -> DeviceFacts:
        """The last facts, without asking again: for what does not change, such as the C library."""
        return self._facts or self.facts()

    @property
    def place(self) -> str:
        """The device and the slot, for messages."""
        return f"slot {self.slot} of {self.name}" if self.slot else self.name

    # --- the lock ------------------------------------------------------------------------------------------------

    @contextmanager
    def lock(self, owner: Owner, *, within: str = "", lost: Callable[[], None] = lambda: None) -> Iterator[Lease]:
        """Hold the device for one piece of work, such as a deploy or hours of measuring; see `locks.hold`.

        A release that is on trial is taken back first: the command that tried it has ended, or it would hold the lock.
        A nested call yields the lease of the outer one, with its owner.

        Args:
            owner: The holder, for the message to others.
            within: The token of those who may work inside of the lock; see `locks.WITHIN`.
            lost: Called by another thread when the lock is lost.

        Raises:
            BusyError: Someone else holds it, for longer than we wait.
            DeviceError: The root cannot be written.
        """
        if self._lease is not None:
            yield self._lease
            return
        with contextlib.ExitStack() as stack:
            lease = self._patience.get(
                lambda: stack.enter_context(locks.hold(self._shell, self._set_root, owner, within=within, lost=lost))
            )
            self._lease = lease
            try:
                if lease.on_trial:
                    self.releases.recover()
                yield lease
            finally:
                self._lease = None

    @property
    def lease(self) -> Lease:
        """The lock that is held now; a change without it is a bug."""
        if self._lease is None:
            raise RuntimeError("the store was changed without its lock")
        return self._lease

    def check_free(self) -> None:
        """Check that the lock is free, without taking it, or wait until it is.

        Raises:
            BusyError: Someone holds it, for longer than we wait.
        """
        if self._lease is None:
            self._patience.get(lambda: locks.check_free(self._shell, self._set_root))

    @property
    def waited(self) -> tuple[Waited, ...]:
        """The waits for other users of the device so far."""
        return self._patience.waited

    def settle(self, owner: Owner) -> None:
        """End a trial that was left open, by taking the lock for a moment, so that the current release is final.

        Raises:
            BusyError: The trial is still running.
        """
        if self.look('[ ! -e "$ROOT/trial" ] || echo open'):
            with self.lock(owner):
                pass

    # --- slots ---------------------------------------------------------------------------------------------------

    def in_slot(self, slot: str) -> Store:
        """Return another slot of the store; it has the lock that is held here.

        Raises:
            InputError: There is no such slot.
        """
        other = Store(self._shell, self._root, self._report, self._patience, slot)
        other._lease = self._lease
        other.check_slot()
        return other

    def make_slot(self) -> None:
        """Make the folder of the slot, or complete it; other slots are not touched."""
        if self.slot and "new slot" in self.change_store(scripts.make_slot(self.slot)).splitlines():
            self._report(f"slot {self.slot} is new on {self.name}")

    def remove_slot(self, stop: str = ":") -> str:
        """Remove the slot with its releases; `stop` is a script that then ends its application.

        Returns:
            The output of that script.
        """
        return self.change_store(scripts.remove_slot(self.slot, stop))

    # --- scripts -------------------------------------------------------------------------------------------------

    def change(self, script: str, size: int = 0) -> str:
        """Run a script that changes the slot, under the store's lock; see `Lease.run`."""
        return self.lease.run(self._entered(script), size)

    def attempt(self, script: str, seconds: float) -> str:
        """Run a script that changes the slot and may outlive this client; see `Lease.attempt`."""
        return self.lease.attempt(self._entered(script), seconds)

    def change_store(self, script: str) -> str:
        """Run a script that changes the store itself, in its folder, under its lock; see `Lease.run`."""
        return self.lease.run(script)

    def _entered(self, script: str) -> str:
        return f'{self._enter}cd "$ROOT"\n{script}' if self.slot else script

    def look(self, script: str) -> str:
        """Run a script that only reads the slot, without the lock; return its output.

        Raises:
            DeviceError: It failed.
        """
        return self.look_at_store(f"{self._enter}{script}")

    def look_in_each_slot(self, script: str) -> dict[str, str]:
        """Run a script that only reads, in the store and in each slot.

        Returns:
            The outputs by the names of the slots, the empty one for the store. Names that no command accepts are left
            out.

        Raises:
            DeviceError: It failed.
        """
        token, outputs, name = secrets.token_hex(8), dict[str, list[str]](), None
        for line in self.look_at_store(scripts.in_each_slot(script, token)).split("\n"):
            if line.startswith(f"{token} "):
                name = line.removeprefix(f"{token} ")
                outputs[name] = []
            elif name is not None:
                outputs[name].append(line)
        return {name: "\n".join(lines) for name, lines in outputs.items() if not name or _SLOT.fullmatch(name)}

    def slots(self) -> tuple[str, ...]:
        """Return the names of the slots."""
        return tuple(name for name in self.look_in_each_slot(":") if name)

    def check_slot(self) -> None:
        """Check that the slot exists.

        Raises:
            InputError: It does not.
        """
        slots = self.slots() if self.slot else ()
        if self.slot and self.slot not in slots:
            raise InputError(
                f"{self.name} has no slot {self.slot!r}",
                details=f"its slots: {', '.join(slots)}" if slots else "it has no slots, only releases without one",
                hint=did_you_mean(self.slot, slots) or f"`toolchain deploy MODEL --slot {self.slot}` makes it",
            )

    def look_at_store(self, script: str) -> str:
        """Run a script that only reads the store, as `look`, in no slot."""
        with reminding(self._shell.report, f"{self.name}, which reads its store"):
            result = self._shell.run(f"set -eu; umask 022; {self._set_root}\n{script}", check=False)
        ending, hint = ending_of(result.returncode)
        if hint:  # it was ended by a signal, so the folder is not the cause
            raise DeviceError(f"reading the store of {self.name} {ending}", details=result.stderr, hint=hint)
        if result.returncode != 0:
            raise DeviceError(
                f"{self._shell.name} has no usable store ({self._set_root})",
                details=process.tail(result.stderr or result.stdout),
                hint="check that the folder is writable for this user, or choose another one with --root",
            )
        return result.stdout

    def read(self, path: str) -> bytes:
        """Return the content of a small text file under the root."""
        return self.look(f'cat "$ROOT"/{shlex.quote(path)}').encode()

    def invalid_answer(self, what: str, output: str) -> DeviceError:
        return DeviceError(
            f"{self._shell.name} did not return {what} in a valid form",
            details=process.tail(output)[:_SHOWN],
            hint="log in and check the device's shell, tools and store",
        )


class Blobs:
    """The files of a store, by digest, and the folders of links to them."""

    def __init__(self, store: Store, shell: Shell) -> None:
        self._store = store
        self._shell = shell

    def sweep(self) -> None:
        """Remove what a killed deploy left: half-made folders and activations that never became current.

        This also makes the slot, if it does not exist.
        """
        self._store.make_slot()
        self._store.change(scripts.SWEEP)

    def examine(self, digests: Iterable[str], size: int = 0) -> dict[str, BlobState]:
        """Hash the blobs on the device; a damaged one is removed so that it is sent again.

        `size` is the bytes of all of them.
        """
        unique = list(dict.fromkeys(digests))
        states = dict.fromkeys(unique, BlobState("missing", 0))
        for state, digest, stored in self._rows(scripts.examine(unique), columns=3, size=size):
            if digest in states and state in _STATES:
                states[digest] = BlobState(state, number(stored))
        return states

    def push(self, source: Path, digest: str, offset: int, progress: Callable[[int], None] | None) -> None:
        """Upload a blob, or the rest of one, to the folder of unchecked uploads."""
        target = f"{self._store.root}/blobs/partial/{self._store.lease.token}/{digest}"
        self._shell.push(source, target, offset=offset, progress=progress)

    def publish(self, digests: Iterable[str], *, executable: Iterable[str] = (), size: int = 0) -> tuple[str, ...]:
        """Check uploaded blobs on the device and make them part of the store.

        Args:
            digests: The blobs.
            executable: Those of them that are programs.
            size: Bytes of all of them.

        Returns:
            The blobs with a different digest on the device; they are removed, and nothing was published.
        """
        uploaded = list(digests)
        if not uploaded:
            return ()
        damaged = tuple(row[1] for row in self._rows(scripts.accept(uploaded), columns=2, size=size))
        if damaged:
            return damaged
        programs = set(executable)
        for mode, group in ((555, programs & set(uploaded)), (444, set(uploaded) - programs)):
            if group:
                self._store.change(scripts.publish(sorted(group), mode), size)
        return ()

    def install(self, kind: str, digest: str, files: Mapping[str, str]) -> str:
        """Make a folder of links to blobs, or repair an existing one.

        Args:
            kind: `releases`, `runners`, `servers`, `libraries` or `inputs`.
            digest: Name of the folder.
            files: Digest of the blob for each file name.

        Returns:
            The folder's path on the device.
        """
        self._store.change(scripts.install(kind, digest, files))
        return f"{self._store.root}/{kind}/{digest}"

    def offer(self, digest: str) -> None:
        """Make an installed library the one that applications find as `lib/`, by one rename."""
        self._store.change(scripts.offer(digest))

    def drop_inputs(self, digest: str) -> None:
        """Remove inputs that are not needed again, and their blob."""
        self._store.change(scripts.DROP_INPUTS.format(digest=digest))

    def _rows(self, script: str, *, columns: int, size: int) -> list[list[str]]:
        """Run a script that prints rows with a digest, between warnings of the device's tools; return the rows."""
        rows = [line.split() for line in self._store.change(script, size).split("\n")]
        return [row for row in rows if len(row) == columns and len(row[1]) == _DIGEST_CHARACTERS]


class Releases:
    """The releases of a store and their activations, the generations.

    `progress` is called with what had to be repaired on the device.
    """

    def __init__(self, store: Store, progress: Callable[[str], None]) -> None:
        self._store = store
        self._report = progress

    def generations(self) -> tuple[Generation, ...]:
        """Return the activations, oldest first."""
        return self._parse(self._store.look(_LIST))

    def in_each_slot(self) -> dict[str, tuple[Generation, ...]]:
        """Return the activations of every slot by its name, the empty one for the store's own, oldest first."""
        return {name: self._parse(output) for name, output in self._store.look_in_each_slot(_LIST).items()}

    def _parse(self, output: str) -> tuple[Generation, ...]:
        lines = output.split("\n")  # not splitlines(): a name may contain its other separators
        current = next((line[8:] for line in lines if line.startswith("current ")), "")
        rows = [_GENERATION.fullmatch(line) for line in lines if line.startswith("generation ")]
        if not all(rows):
            raise self._store.invalid_answer("the list of its releases", output)
        fields = [row.groups() for row in rows if row]
        generations = [
            Generation(int(number), digest, int(seconds), name, f"generations/{number}" == current)
            for number, digest, seconds, name in fields
        ]
        return tuple(sorted(generations, key=lambda generation: generation.number))

    def current(self) -> Generation | None:
        """Return the current activation; None if nothing was ever deployed."""
        return next((generation for generation in self.generations() if generation.current), None)

    def mark(self, digest: str, *, unchecked: bool) -> None:
        """Mark a release whose outputs were not compared with a reference, or remove the mark."""
        self._store.change(scripts.mark(digest, unchecked=unchecked))

    def is_unchecked(self, digest: str) -> bool:
        """Return whether a release has that mark."""
        return "unchecked" in self._store.look(scripts.marked(digest)).split()

    def activate(self, digest: str) -> bool:
        """Make a release current, by one rename; return False if it already was."""
        return "new" in self._store.change(scripts.activate(digest)).splitlines()

    def roll_back(self) -> Generation:
        """Go back to the activation before the current one.

        Raises:
            DeviceError: There is no earlier one.
        """
        if "none" in self._store.change(scripts.roll_back()).splitlines():
            raise self.no_earlier()
        return next(generation for generation in self.generations() if generation.current)

    def no_earlier(self) -> DeviceError:
        """Return the error for a roll-back without an earlier release."""
        return DeviceError(
            f"there is no earlier release on {self._store.place}",
            hint="list the releases: `toolchain status --releases`",
        )

    def recover(self) -> None:
        """Take back the releases that are on trial, in any slot, restart their applications, and report it.

        Raises:
            DeviceError: That failed in our own slot; in another one it is reported.
        """
        output = self._store.change_store(scripts.RECOVER).split("\n")
        starts = [number for number, line in enumerate(output) if line.startswith("slot ")]
        for start, end in zip(starts, [*starts[1:], len(output)], strict=True):
            self._report_recovery(output[start].removeprefix("slot ").removeprefix("slots/"), output[start + 1 : end])

    def _report_recovery(self, slot: str, lines: list[str]) -> None:
        name = self._store.name + (f", slot {slot}," if slot else "")
        recovered = next((line for line in lines if _RECOVERED.fullmatch(line)), "")
        if any(line.startswith("unrecovered ") for line in lines):
            fault = f"a release on {name} was on trial, and could not be taken back"
            if slot == self._store.slot:
                raise DeviceError(
                    fault,
                    details=process.tail("\n".join(lines)),
                    hint="check that the folder is writable for this user and that the disk is not full",
                )
            self._report(f"{fault}: {process.tail(' '.join(lines))}")
        if not recovered:
            return
        new, old, code = recovered.split()[1:]
        back = (
            f"generation {old} is current again" if old != "0" else "there was no previous release, so none is current"
        )
        self._report(f"generation {new} on {name} was on trial, and the command that tried it has ended: {back}")
        if code != "0":
            tail = process.tail("\n".join(lines[lines.index(recovered) + 1 :]))
            self._report(f"the application there could not be restarted: {tail or f'exit code {code}'}")

    def put_recovery(self) -> None:
        """Install the script that a unit runs before its application, or repair it."""
        self._store.change(scripts.put_recovery())

    def prune(self, keep: int) -> None:
        """Remove all but the last `keep` activations, and every blob without a link."""
        self._store.change(scripts.prune(keep))
