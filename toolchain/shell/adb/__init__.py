"""A device over Android's debug bridge: a Shell whose commands are run by the `adb` client of this host."""

from __future__ import annotations
