"""Packages by way of a registry: what container images are kept in keeps bundles, under the same digests."""

from toolchain.registry.access import SCHEME, Access, Address, Login, is_address, parse
from toolchain.registry.repository import Pushed, check_tag, pull, push

__all__ = ["SCHEME", "Access", "Address", "Login", "Pushed", "check_tag", "is_address", "parse", "pull", "push"]
