"""The three kinds of lines in a file of tuning records, and how they are read and written; imports no TVM."""

from __future__ import annotations

import base64
import dataclasses
import functools
import importlib.metadata
import json
import math
import re
import statistics
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from toolchain import files
from toolchain.errors import InputError
from toolchain.records.results import LEAST_S, Cause, Verdict
from toolchain.validation import FIRST_FAULT, words

USUAL: Mapping[str, int] = {"number": 3, "repeat": 3, "min_repeat_ms": 20, "cache_flush": 0}
"""The default measurement options, and those of records from before options were recorded."""

BATCH, AHEAD = 16, 16
"""Candidates of a round of tuning, and pending candidates while others are searched, for one board."""

UNTUNED = "default"
"""Instead of a trace: the untuned kernel."""

EARLIER, _SCHEMA = 1, 2
_BY = "; "
_ERROR_LENGTH = 500
_NAME_LENGTH = 200
_PLAIN_LENGTH = 2000  # a longer module is compressed
_COMPRESSED = "zlib:"
_LARGEST_MODULE = 64 << 20
_LONG, _MOST_KEYS = 1 << 16, 100
_MOST_CANDIDATES = 1 << 20
_FEW = 5

_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]


@dataclass(frozen=True)
class Key:
    """What a schedule was measured for; it is used for nothing else.

    Attributes:
        target: TVM target as canonical JSON.
        tvm: Version of TVM.
        emulated: Whether the times are an emulator's, or a model's.
        modelled: If a model computed the times: the machine, then `;` and the model. Times of two models are never
            compared.
        threads: Threads that kernels ran on; 0 for the number in the board file.
        options: Measurement options as canonical JSON; empty for the usual ones.
    """

    target: str
    tvm: str
    emulated: bool = False
    modelled: str = ""
    threads: int = 0
    options: str = ""

    @classmethod
    def of(
        cls,
        target: Mapping[str, Any],
        *,
        emulated: bool = False,
        tvm: str = "",
        modelled: str = "",
        threads: int = 0,
        options: Mapping[str, int] | None = None,
    ) -> Key:
        """Return the key of a target for the installed TVM, or for version `tvm`."""
        # Usual options are left out, so that records from before options have the same key.
        unusual = _compact(options, sort=True) if options and dict(options) != dict(USUAL) else ""
        emulated = emulated or bool(modelled)
        return cls(_compact(target, sort=True), tvm or tvm_version(), emulated, modelled, threads, unusual)

    @property
    def in_any_way(self) -> Key:
        """The same key with the usual measurement options."""
        return dataclasses.replace(self, options="")

    @property
    def mark(self) -> str:
        """The mark of its times: `modelled`, `emulated`, or empty if a board was measured."""
        return "modelled" if self.modelled else "emulated" if self.emulated else ""

    @property
    def of_any_version(self) -> Key:
        """The same key without the model."""
        return dataclasses.replace(self, modelled=self.modelled.partition(_BY)[0])

    @property
    def version(self) -> tuple[int, ...]:
        """The numbers of the model's version, which comes first in its description."""
        return tuple(map(int, re.findall(r"\d{1,18}", self.modelled.partition(_BY)[2].partition(",")[0])))

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits as a name for the command line."""
        return _key_id(self)


def modelled_by(machine: str, model: str) -> str:
    """Return the `modelled` of a key: the machine and the model."""
    return f"{machine}{_BY}{model}"


@functools.cache
def _key_id(key: Key) -> str:
    fields = dataclasses.asdict(key)
    for name in ("modelled", "threads", "options"):  # older keys, without these fields, keep their names
        if not fields[name]:
            del fields[name]
    return files.sha256_bytes(_compact(fields, sort=True).encode())[:12]


@functools.cache
def tvm_version() -> str:
    """Return the version of the installed TVM, without importing it."""
    return importlib.metadata.version("apache-tvm")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kernel, written once to a file.

    Attributes:
        workload: Structural hash of its module, in hexadecimal.
        name: Name of its task.
        flops: Floating-point operations of one call.
        module: Its module as `tvm.ir.save_json` writes it, compressed if long; see `of` and `text`.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["workload"] = "workload"
    schema: Literal[1] = 1
    workload: _Hash
    name: str
    flops: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    module: str

    @classmethod
    def of(cls, workload: str, name: str, flops: float, text: str) -> Workload:
        packed = _COMPRESSED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()
        # Short modules stay readable.
        return cls(workload=workload, name=name, flops=flops, module=text if len(text) <= _PLAIN_LENGTH else packed)

    def text(self) -> str:
        """Return the module's JSON text.

        Raises:
            InputError: It cannot be unpacked.
        """
        if not self.module.startswith(_COMPRESSED):
            return self.module
        try:
            return _unpacked(base64.b64decode(self.module.removeprefix(_COMPRESSED), validate=True)).decode()
        except (ValueError, zlib.error) as fault:
            raise InputError(f"the module of workload {self.name} is damaged", details=str(fault)) from fault


def _unpacked(data: bytes) -> bytes:
    """Decompress a module, up to a limit: a small line could otherwise expand to more than the memory."""
    unpacker = zlib.decompressobj()
    module = unpacker.decompress(data, _LARGEST_MODULE)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError(f"it is truncated, or has more than {_LARGEST_MODULE} bytes")
    return module


@dataclass(frozen=True, kw_only=True)
class Record:
    """One trial: a candidate with its latency, or the cause of its failure; or the decision of a final.

    Records of schema 1 have no measurement options: they stand for the usual options and for the number of threads in
    the board file. There were no finals then, so the fastest of them decides; of later records only a final does.

    Attributes:
        workload: Structural hash of the kernel's module, in hexadecimal.
        target: TVM target that it was built for.
        tvm: Version of TVM that built it.
        emulated: Whether the times are an emulator's, or a model's.
        modelled: See `Key`; empty if something ran.
        candidate: Structural hash of the scheduled module, in hexadecimal.
        trace: The schedule, as the JSON text of `Trace.as_json()`.
        samples_s: Seconds of one run, one value per sample; empty if it failed.
        cause: Why it failed; empty if it did not.
        error: The message of the compiler or the board, or the reason for a decision; 500 characters at most.
        board: Name of the board it was measured on.
        run: Name of the tuning run that it is a part of.
        tuner: Name of the search.
        seed: Seed of the search.
        round: Round of the run, from 0.
        index: Place in the round, from 0.
        of: Candidates of the round.
        time: When it was measured, in seconds since 1970 (UTC).
        threads: Threads that the kernel ran on; 0 for the number in the board file.
        options: Measurement options as in `USUAL`; empty in records of schema 1.
        verdict: What a final decided; empty for a trial.
        base_s: In a decision: seconds of one run of the untuned kernel, in the same turns as each of `samples_s`.
        among: In a decision: the candidates of the final; the first is the untuned kernel.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["trial"] = "trial"
    schema: Literal[1, 2] = 2
    workload: _Hash
    target: Mapping[str, Any]
    tvm: str
    emulated: bool = False
    modelled: Annotated[str, Field(max_length=_NAME_LENGTH)] = ""
    candidate: _Hash
    trace: str
    samples_s: Annotated[tuple[float, ...], FIRST_FAULT] = ()
    cause: Cause = ""
    error: str = ""
    board: str = ""
    run: str = ""
    tuner: str = ""
    seed: int = 0
    round: int = 0
    index: int = 0
    of: int = 0
    time: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    threads: Annotated[int, Field(ge=0)] = 0
    options: Mapping[str, int] = dataclasses.field(default_factory=dict)
    verdict: Verdict = ""
    base_s: Annotated[tuple[float, ...], FIRST_FAULT] = ()
    among: tuple[_Hash, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.samples_s) == bool(self.cause):
            raise ValueError("a trial has either samples or a cause")
        if self.verdict and self.cause:
            raise ValueError("a failed trial cannot have a verdict")
        if self.schema == EARLIER and any(getattr(self, name) for name in _SINCE_2):
            raise ValueError("records of schema 1 have no measurement method and no verdict")
        if self.modelled and not self.emulated:
            raise ValueError("a modelled time must also be marked as emulated")
        if not all(0 < sample < math.inf for sample in (*self.samples_s, *self.base_s)):
            raise ValueError("samples must be positive numbers of seconds")
        if not _is_plain(self.target):
            _compact(self.target)  # raises for a number that JSON lacks, such as infinity
        if len(self.error) > _ERROR_LENGTH:
            object.__setattr__(self, "error", self.error[:_ERROR_LENGTH])

    @functools.cached_property
    def latency_s(self) -> float:
        """Median of the samples in seconds; infinite if there are none."""
        return statistics.median(self.samples_s) if self.samples_s else math.inf

    @functools.cached_property
    def key(self) -> Key:
        return Key.of(
            self.target,
            emulated=self.emulated,
            tvm=self.tvm,
            modelled=self.modelled,
            threads=self.threads,
            options=self.options,
        )

    @property
    def is_final(self) -> bool:
        """Whether it is of a final, which decided or failed, and not of a trial."""
        return bool(self.verdict or self.among)

    @property
    def is_possible(self) -> bool:
        """Whether its times are possible: none is shorter than a call."""
        return min(self.samples_s, default=LEAST_S) >= LEAST_S

    @property
    def base_latency_s(self) -> float | None:
        """Median latency of the untuned kernel in the same turns; None if that was not measured."""
        return statistics.median(self.base_s) if self.base_s else None

    def canonical(self) -> Record:
        """Return it without fields that differ between two searches with the same result: who, where and when."""
        return Record(
            schema=self.schema,
            workload=self.workload,
            target=self.target,
            tvm=self.tvm,
            emulated=self.emulated,
            modelled=self.modelled,
            candidate=self.candidate,
            trace=self.trace,
            samples_s=self.samples_s,
            cause=self.cause,
            threads=self.threads,
            options=self.options,
            verdict=self.verdict,
            base_s=self.base_s,
        )


@dataclass(frozen=True, kw_only=True)
class Start:
    """The beginning of a tuning run. The lines before it are the earlier records that the run knew.

    Attributes:
        run: Name of the run.
        time: When it began, in seconds since 1970 (UTC).
        fresh: Whether it ignores earlier records of its kernels.
        batch: Candidates of its rounds.
        ahead: Pending candidates while others are searched.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["run"] = "run"
    schema: Literal[2] = 2
    run: str
    time: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    fresh: bool = False
    batch: Annotated[int, Field(ge=2, le=_MOST_CANDIDATES)] = BATCH
    ahead: Annotated[int, Field(ge=0, le=_MOST_CANDIDATES)] = AHEAD


Line = Workload | Record | Start
_READER: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])
_SINCE_2 = ("threads", "options", "verdict", "base_s", "among")
# Every line begins with this; a torn line may be shorter.
_START = b'{"kind":"'


def _compact(value: Any, *, sort: bool = False) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=sort, ensure_ascii=False, allow_nan=False)


def _is_plain(value: Any) -> bool:
    """Whether a value certainly is JSON. To try by writing it would take a third of the time of reading a line."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, str | int)


def encoded(item: Line) -> bytes:
    """Return an item as one line of a file, its newline included."""
    fields = {entry.name: getattr(item, entry.name) for entry in dataclasses.fields(item)}
    empty = {"modelled", "verdict", "base_s", "among"} if item.schema > EARLIER else {"modelled", *_SINCE_2}
    for name in empty:  # older toolchains read lines of schema 1, and reject unknown keys
        if not fields.get(name):
            fields.pop(name, None)
    return (_compact(fields) + "\n").encode()


def encode(items: Iterable[Line]) -> bytes:
    """Return the bytes of a file of some lines."""
    return b"".join(encoded(item) for item in items)


def parse(data: bytes, where: str) -> Iterator[Line]:
    """Yield the lines of the bytes of a file.

    Raises:
        InputError: A line is damaged; a torn last line of a killed writer is ignored.
    """
    *lines, tail = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        yield parsed(line, number, where)
    if tail and not is_torn(tail):
        yield parsed(tail, len(lines) + 1, where)


def parsed(line: bytes, number: int, where: str) -> Line:
    """Read a line.

    Args:
        line: The line without its newline.
        number: Its number in the file, from 1.
        where: What errors call the file.

    Raises:
        InputError: It is not a valid line.
    """
    if len(line) > _LONG and _has_many_keys(line):
        raise _damaged(line, number, where, "it has unknown keys")
    try:
        return _READER.validate_json(line)
    except ValidationError as fault:
        raise _damaged(line, number, where, words(fault, _FEW)) from fault


def _has_many_keys(line: bytes) -> bool:
    """Whether validation would report very many unknown keys: it collects all faults in memory first."""
    try:
        return len(json.loads(line)) > _MOST_KEYS
    except (TypeError, ValueError, RecursionError):
        return False


def _damaged(line: bytes, number: int, where: str, details: str) -> InputError:
    schema = _schema_of(line)
    if schema not in {None, EARLIER, _SCHEMA}:
        return InputError(
            f"line {number} of {where} has schema version {schema}, but this toolchain reads up to {_SCHEMA}",
            hint="use the toolchain that wrote it, or pass another file",
        )
    return InputError(
        f"line {number} of {where} is not a valid tuning record",
        details=details,
        hint=f"pass a file of tuning records; if it is one, remove line {number}: the others are valid"
        if number > 1
        else "pass a file of tuning records from `toolchain tune`",
    )


def _schema_of(line: bytes) -> int | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    schema = document.get("schema") if isinstance(document, dict) else None
    return schema if isinstance(schema, int) else None


def is_torn(tail: bytes) -> bool:
    """Whether a last line is incomplete, unlike a complete one without its newline, or one of another format."""
    text = tail.rstrip(b"\0")  # after a power cut the file may have its new length but zeros as content
    if not _START.startswith(text[: len(_START)]):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return False
