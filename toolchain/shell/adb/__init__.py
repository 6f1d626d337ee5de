"""Devices over Android's debug bridge: a Shell that uses the `adb` client of this host."""

from __future__ import annotations
