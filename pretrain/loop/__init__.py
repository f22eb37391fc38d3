"""The one training loop, and what it does between two steps."""

from pretrain.loop.boundary import finish_step, save, stop_here
from pretrain.loop.parts import LoopParts, show
from pretrain.loop.steps import train

__all__ = ["LoopParts", "finish_step", "save", "show", "stop_here", "train"]
