"""Test faults, off unless allowed: what a config injects at a batch for a test or a drill to watch."""

import errno
import os
import signal
from collections.abc import Collection, Sequence

import torch

from pretrain import syscalls
from pretrain.batch import Batch, StepBatch
from pretrain.errors import ConfigError
from pretrain.policy.fault_plan import Fault, FaultSettings, parse

SWITCH = "PRETRAIN_ALLOW_FAULTS"
# Kinds that end or stall a process fire in the first attempt only: a resumed one would never get past them.
_FIRST_ATTEMPT_ONLY = ("kill", "full_disk", "temperature")


class Faults:
    """The faults of a run by batch; each fires once, and what has fired is kept in the ledger."""

    def __init__(self, settings: FaultSettings, attempt: int) -> None:
        self._plan: dict[int, list[Fault]] = {}
        for fault in parse(settings.inject):
            if attempt == 1 or fault.kind not in _FIRST_ATTEMPT_ONLY:
                self._plan.setdefault(fault.batch, []).append(fault)

    def due(self, batch: int, fired: Collection[str]) -> Sequence[Fault]:
        """Return the faults of global batch `batch` that have not fired yet."""
        if batch not in self._plan:
            return ()
        return [fault for fault in self._plan[batch] if name(fault) not in fired]


def check_allowed(settings: FaultSettings) -> None:
    """Raise ConfigError unless the environment allows the faults that the config injects."""
    if not settings.inject:
        return
    if os.environ.get(SWITCH) != "1":
        raise ConfigError(f"faults.inject: faults are for tests and drills; set {SWITCH}=1 to allow them")


def name(fault: Fault) -> str:
    """Return how the ledger and the manifest name a fault that has fired."""
    return f"{fault.kind}@{fault.batch}" + ("" if fault.value is None else f"x{fault.value:g}")


def kept(faults: Sequence[Fault]) -> tuple[str, ...]:
    """Return the names that the ledger keeps: those of the faults that fire once in a lineage."""
    return tuple(name(fault) for fault in faults if fault.kind not in _FIRST_ATTEMPT_ONLY)


def temperature_of(faults: Sequence[Fault]) -> float | None:
    """Return the degrees Celsius that the GPU is to have; None = what its sensor says."""
    return next((fault.value for fault in faults if fault.kind == "temperature"), None)


def injects_temperature(settings: FaultSettings) -> bool:
    """Whether some batch is to see a temperature that no sensor said."""
    return any(fault.kind == "temperature" for fault in parse(settings.inject))


def spoil_batch(faults: Sequence[Fault], batch: StepBatch) -> StepBatch:
    """Return the batch with every sample of a corrupt one replaced by noise, drawn from its position alone.

    Here a process dies, and the disk fills up: nothing more can be written by this process.
    """
    for fault in faults:
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "full_disk":
            syscalls.system = _FullDisk()
    if not any(fault.kind == "corrupt_batch" for fault in faults):
        return batch
    return StepBatch(tuple(_noise(one) for one in batch.micro_batches), batch.epoch, batch.position)


def spoil_gradients(
    faults: Sequence[Fault], loss: torch.Tensor, parameters: Sequence[torch.nn.Parameter]
) -> torch.Tensor:
    """Spoil gradients or weights in place, as the faults say, and return the loss as they leave it."""
    for fault in faults:
        last = parameters[-1]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        match fault.kind:
            case "nan_grad":
                gradients[-1].view(-1)[0] = float("nan")
            case "huge_grad":
                assert fault.value is not None
                torch._foreach_mul_(gradients, fault.value)
            case "inf_loss":
                loss = loss * float("inf")
            case "loss_spike":
                assert fault.value is not None
                loss = loss * fault.value
                torch._foreach_mul_(gradients, fault.value)
            case "nan_weight":
                with torch.no_grad():
                    last.view(-1)[0] = float("nan")
    return loss


class _FullDisk(syscalls.System):
    def write(self, fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _noise(batch: Batch) -> Batch:
    generator = torch.Generator().manual_seed(batch.epoch * 1_000_003 + batch.position)
    samples = batch.samples
    if samples.is_complex():
        noise = torch.view_as_complex(torch.randn((*samples.shape, 2), generator=generator))
    else:
        noise = torch.randint(0, 256, samples.shape, generator=generator, dtype=samples.dtype)
    return Batch(noise, batch.epoch, batch.position, batch.labels)
