"""A roll-out: a loop over deploys to many devices, group by group, which stops where too many fail, and goes on later.

`fleet` and `ansible` read which devices there are; `groups` says who comes when, and when it stops; `state` is the file
that a roll-out goes on from; `crew` works on several devices at once; `work` is what is done on one, by the deploy that
the command `deploy` runs; `loop` is the loop; `result`, `texts` and `page` tell what came of it.
"""

from __future__ import annotations

from toolchain.pipeline.rollout.groups import Share, Thresholds
from toolchain.pipeline.rollout.loop import Loop, Rules
from toolchain.pipeline.rollout.result import Rollout
from toolchain.pipeline.rollout.work import DeviceWork

__all__ = ["DeviceWork", "Loop", "Rollout", "Rules", "Share", "Thresholds"]
