"""`--memory-snapshot STEP`: what holds the memory at the end of a step, left in the attempt's folder."""

import torch

from pretrain import files
from pretrain.errors import StorageError
from pretrain.loop import LoopParts, show, warn
from pretrain.telemetry.memory_held import NAME, described, encoded, missed
from pretrain.telemetry.sink import Event, Note, StepRow


class MemorySnapshot:
    """A sink that publishes memory.json once `step` is taken for the first time; None = never."""

    def __init__(self, parts: LoopParts, step: int | None) -> None:
        self._parts, self._step = parts, step

    def emit(self, event: Event) -> None:
        """Take the snapshot after the row of its step, which is the last that the step does."""
        if self._step is None or not isinstance(event, StepRow) or (event.step, event.action) != (self._step, "accept"):
            return
        with self._parts.spent.during("observing"):
            self._take(event.step)

    def close(self) -> None:
        """Say where the step was never taken; nothing is open."""
        step, self._step = self._step, None
        if step is not None:
            warn(self._parts, missed(step))

    def _take(self, step: int) -> None:
        self._step = None
        state = self._parts.state
        copies = {
            f"step {at}: {name}": tensor
            for at, copy in self._parts.memory.items()
            for name, tensor in copy.tensors.items()
        }
        parameters: dict[str, torch.Tensor] = dict(state.model.named_parameters())
        named: dict[str, dict[str, torch.Tensor]] = {
            "parameters": parameters,
            "buffers": dict(state.model.named_buffers()),
            "gradients": {name: one.grad for name, one in parameters.items() if one.grad is not None},
            "optimizer": {name: one for name, one in state.state_tensors().items() if name.startswith("optimizer.")},
            "rollback copies": copies,
        }
        path = self._parts.writer.folder / NAME
        try:
            files.publish(path, encoded(described(step, named, state.device)))
        except StorageError as error:  # It is for eyes, and the training goes on without it.
            warn(self._parts, f"there is no {NAME} of this attempt: {error}")
            return
        show(self._parts, Note(kind="saved", text=f"what holds the memory at the end of step {step} in {path}"))
