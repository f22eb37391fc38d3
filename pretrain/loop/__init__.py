"""The one training loop, and what it does between two steps."""

from pretrain.loop.boundary import finish_step, save, stop_here
from pretrain.loop.parts import LoopParts, show, warn
from pretrain.loop.steps import train
from pretrain.loop.storage import DiskWait
from pretrain.loop.targets import limit_targets

__all__ = ["DiskWait", "LoopParts", "finish_step", "limit_targets", "save", "show", "stop_here", "train", "warn"]
