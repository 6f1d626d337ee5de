"""What is in a product and how it was made, in standard formats: CycloneDX, in-toto and SLSA."""

from toolchain.inventory.documents import BILL_TYPE, STATEMENT_TYPE, Build, Component, bill, statement
from toolchain.inventory.python import lock_digest, python_packages

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
