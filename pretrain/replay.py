"""The experiments of an incident: its step run again on a copy of the model, which leaves the run as it is."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from pretrain import progress
from pretrain.batch import StepBatch
from pretrain.gradients import accumulate, block_norms, clip, global_norm, rescue
from pretrain.machine.precision import autocast
from pretrain.models import blocks
from pretrain.optimizers import flat_state, set_learning_rate
from pretrain.policy.incident import Replay
from pretrain.tasks import Task

Tensors = Mapping[str, torch.Tensor]
BuildOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class Conditions:
    """Under which a step is run again.

    rate: learning rate. max_norm: of clipping, None = none. scale: what the loss is multiplied by in float16.
    """

    task: Task
    device: torch.device
    precision: str
    rate: float
    max_norm: float | None
    scale: float = 1.0


@dataclass(frozen=True)
class Sight:
    """What a batch shows of itself and of the model: the loss of each sample, the largest magnitude of each block."""

    sample_losses: tuple[float, ...]
    activations: tuple[float, ...]


class Twin:
    """A copy of a model, which takes on any state and runs any batch; the model it was made from never changes."""

    def __init__(self, model: nn.Module, build_optimizer: BuildOptimizer, conditions: Conditions) -> None:
        self._model, self._build, self._conditions = copy.deepcopy(model), build_optimizer, conditions
        self._parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]

    @property
    def is_float32(self) -> bool:
        """Whether float32 is what the run computes in."""
        return self._conditions.precision == "float32"

    def become(self, tensors: Tensors) -> None:
        """Take on the `model.NAME` tensors of a state."""
        with torch.no_grad():
            for name, tensor in self._model.state_dict().items():
                tensor.copy_(tensors[f"model.{name}"])

    def run(self, batch: StepBatch, step: int, moments: Tensors | None = None, precision: str | None = None) -> Replay:
        """Return what the step of `batch` gives from the weights as they are, and put them back.

        step: completed steps of that state. moments: the `optimizer.NAME.KEY` tensors to take it with, and an empty
        mapping for those before any step; None = no update is made. precision: None = the run's.
        """
        on, used = self._conditions, precision or self._conditions.precision
        scale = on.scale if used == "float16" else 1.0
        loss, _ = accumulate(self._model, on.task, batch, on.device, autocast(on.device, used), scale)
        norm = float(global_norm(self._parameters))
        by_block = tuple(block_norms(blocks(self._model)).values())
        if not math.isfinite(norm):
            norm = rescue(self._parameters, None)
        update = None if moments is None else self._update_norm(moments)
        self._model.zero_grad(set_to_none=True)
        return Replay(float(loss), norm, update, step, by_block)

    def look(self, batch: StepBatch) -> Sight:
        """Return what the samples of `batch` cost, and what the blocks give."""
        on, losses, largest = self._conditions, [], []
        seen: list[torch.Tensor] = []
        hooks = [
            module.register_forward_hook(lambda _, __, output: seen.append(output.detach().abs().amax()))
            for _, module in blocks(self._model)
        ]
        try:
            for micro_batch in batch.micro_batches:
                with autocast(on.device, on.precision):
                    losses += on.task.sample_losses(self._model, micro_batch, on.device).tolist()
                largest.append(torch.stack(seen).float())
                seen.clear()
                progress.moved()
        finally:
            for hook in hooks:
                hook.remove()
        # amax passes NaN on, from each micro-batch to the whole.
        return Sight(tuple(losses), tuple(torch.stack(largest).amax(dim=0).tolist()))

    def _update_norm(self, moments: Tensors) -> float | None:
        """Return the norm of the update over the rate, with these moments and the gradients as they are."""
        on = self._conditions
        if on.rate <= 0:
            return None
        norm = float(clip(self._parameters, on.max_norm))
        if not math.isfinite(norm):
            norm = rescue(self._parameters, on.max_norm)
        if not math.isfinite(norm):
            return math.nan  # No update of such gradients is finite, and some optimizers refuse to make one.
        before = [parameter.detach().clone() for parameter in self._parameters]
        optimizer = self._build(self._model)
        with torch.no_grad():
            for name, tensor in flat_state(optimizer).items() if moments else ():
                tensor.copy_(moments[name])
        set_learning_rate(optimizer, on.rate)
        optimizer.step()
        changes = torch._foreach_sub([parameter.detach() for parameter in self._parameters], before)
        change = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(changes))))
        with torch.no_grad():
            torch._foreach_copy_([parameter.detach() for parameter in self._parameters], before)
        return change / on.rate


@dataclass(frozen=True)
class Experiments:
    """What an incident's step gave when it was run again; None where that could not be, or says nothing."""

    again: Replay | None = None
    same_batch_from_safe: Replay | None = None
    other_batch: Replay | None = None
    fresh_moments: Replay | None = None
    in_float32: Replay | None = None


def run_experiments(
    twin: Twin, batch: StepBatch, other: StepBatch, state: tuple[int, Tensors], safe: tuple[int, Tensors] | None
) -> Experiments:
    """Run the step of an incident again in every way that tells causes apart; the twin ends in that state.

    state, safe: completed steps and tensors of the state at the incident, and of a state to go back to.
    """
    step, tensors = state
    same = None
    if safe is not None:
        twin.become(safe[1])
        same = twin.run(batch, safe[0])
    twin.become(tensors)
    return Experiments(
        again=twin.run(batch, step, tensors),
        same_batch_from_safe=same,
        other_batch=twin.run(other, step),
        fresh_moments=twin.run(batch, step, {}),
        in_float32=None if twin.is_float32 else twin.run(batch, step, precision="float32"),
    )
