"""A roll-out: deploys to many devices, group by group, which stops if too many fail and can be resumed.

`fleet` and `ansible` read the list of devices; `groups` decides who comes when, and when it stops; `state` is the file
from which a roll-out resumes; `threads` works on several devices at once; `work` is what happens on one; `loop` is the
loop; `result`, `texts` and `page` report it.
"""

from __future__ import annotations

from toolchain.pipeline.rollout.groups import Share, Thresholds
from toolchain.pipeline.rollout.loop import Loop, Rules
from toolchain.pipeline.rollout.result import Rollout
from toolchain.pipeline.rollout.work import DeviceWork

__all__ = ["DeviceWork", "Loop", "Rollout", "Rules", "Share", "Thresholds"]
