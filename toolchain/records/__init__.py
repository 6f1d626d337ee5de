"""Tuning records: one JSON line for each trial, in a file that survives a crash of its writer; imports no TVM.

A file is only ever appended to. A killed writer leaves at most a torn last line, which readers ignore and the next
writer removes. Records of one target, TVM version, emulator or number of threads are never used for another. Trials
only nominate candidates: the last final of a kernel decides.
"""

from __future__ import annotations

from toolchain.records.file import SHIPPED, RecordFile, Written, default_path, write
from toolchain.records.lines import Key, Line, Record, Start, Workload, encode, parse, tvm_version
from toolchain.records.queries import EXPIRY_S, RecordFilter, Records, RunStart, Tell, best_bytes, silent

__all__ = [
    "EXPIRY_S",
    "SHIPPED",
    "Key",
    "Line",
    "Record",
    "RecordFile",
    "RecordFilter",
    "Records",
    "RunStart",
    "Start",
    "Tell",
    "Workload",
    "Written",
    "best_bytes",
    "default_path",
    "encode",
    "parse",
    "silent",
    "tvm_version",
    "write",
]
