"""Updates as files: what is applied on a device without a network, by a person with a USB stick or by an OTA system."""

from toolchain.export.offline import Written, check_target, write
from toolchain.export.update import Update, prepared

__all__ = ["Update", "Written", "check_target", "prepared", "write"]
