"""What is in what we make, and how it was made, in the words that others read: CycloneDX, in-toto and SLSA."""

from toolchain.inventory.bill import BILL_TYPE, bill
from toolchain.inventory.component import Component
from toolchain.inventory.python import lock_digest, python_packages
from toolchain.inventory.statement import STATEMENT_TYPE, Build, statement

__all__ = [
    "BILL_TYPE",
    "STATEMENT_TYPE",
    "Build",
    "Component",
    "bill",
    "lock_digest",
    "python_packages",
    "statement",
]
