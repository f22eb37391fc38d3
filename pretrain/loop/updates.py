"""The norm of an update: how far a step has moved the weights, measured at every so many steps."""

import torch

from pretrain.policy.cadence import is_due
from pretrain.policy.spikes import UPDATE_EVERY_N_STEPS


class UpdateNorm:
    """Measures the change of the parameters, on the CPU in memory that is kept from one time to the next.

    There the pages of new memory cost several times what the copy does; a GPU has the memory of the last copies ready,
    and needs it for activations in between.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._now: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        self._is_due = self._is_wanted = False
        self.by_parameter: torch.Tensor | None = None

    @property
    def bytes_held(self) -> int:
        """Return the memory that the copies take at the moment."""
        return sum(copy.nbytes for copy in self._before)

    def before(self, step: int, *, wanted: bool = False) -> None:
        """Copy the parameters, where the update of `step` is one that is measured; wanted: by somebody else too."""
        self._is_due, self._is_wanted = is_due(step, UPDATE_EVERY_N_STEPS), wanted
        if not self._is_due and not wanted:
            return
        # Asked for anew each time: between two steps the parameters may have moved to another device.
        self._now = [parameter.detach() for parameter in self._parameters]
        if not self._before:
            self._before = [torch.empty_like(parameter) for parameter in self._now]
        torch._foreach_copy_(self._before, self._now)

    def after(self) -> float | None:
        """Return the norm of the change since, None where the step is not one of its own; waits for the device.

        `by_parameter` then holds the norm of each parameter, [parameters], where somebody wanted it, else None.
        """
        self.by_parameter = None
        if not self._is_due and not self._is_wanted:
            return None
        # In place of the copies, since another set of them would cost as much again; a norm does not see the sign.
        torch._foreach_sub_(self._before, self._now)
        norms = torch.stack(torch._foreach_norm(self._before))
        self.by_parameter = norms if self._is_wanted else None
        if any(parameter.device.type != "cpu" for parameter in self._now):
            self._before = []
        self._now = []
        return float(torch.linalg.vector_norm(norms)) if self._is_due else None
