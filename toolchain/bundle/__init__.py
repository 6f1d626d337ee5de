"""Bundles: a compiled network with all that a board needs to run it; read, checked, and packed into one file."""

from toolchain.bundle.archive import is_archive
from toolchain.bundle.folder import Bundle, check_board, check_target, load, records, reference_record, replacing
from toolchain.bundle.manifest import (
    BILL,
    GRAPH,
    GRAPH_TEXT,
    LIBRARY,
    MANIFEST,
    PARAMS,
    PROVENANCE,
    RECORDS,
    REFERENCE,
    SIGNATURES,
    STATEMENT,
    FileRecord,
    Manifest,
    Modelled,
    Tuned,
    read_manifest,
)
from toolchain.bundle.oci import ARTIFACT, LAYERS, oci_manifest
from toolchain.bundle.package import at_hand, check_package_target, open_bundle, pack, unpack
from toolchain.bundle.reference import Reference, save_expected

__all__ = [
    "ARTIFACT",
    "BILL",
    "GRAPH",
    "GRAPH_TEXT",
    "LAYERS",
    "LIBRARY",
    "MANIFEST",
    "PARAMS",
    "PROVENANCE",
    "RECORDS",
    "REFERENCE",
    "SIGNATURES",
    "STATEMENT",
    "Bundle",
    "FileRecord",
    "Manifest",
    "Modelled",
    "Reference",
    "Tuned",
    "at_hand",
    "check_board",
    "check_package_target",
    "check_target",
    "is_archive",
    "load",
    "oci_manifest",
    "open_bundle",
    "pack",
    "read_manifest",
    "records",
    "reference_record",
    "replacing",
    "save_expected",
    "unpack",
]
