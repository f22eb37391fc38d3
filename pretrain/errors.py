"""One class per way to fail, each with the exit code that a script sees."""

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class PretrainError(Exception):
    """An expected fault: its text says where, what was expected, what was found and what to do.

    lines: of the text, one for most. What a name from a config, a path or a record brings along is shown escaped, so
    that it neither begins a line nor speaks to a terminal.
    """

    exit_code = 1
    verdict = "failed"
    advice = "look at the reason; `pretrain resume` goes on from the last durable checkpoint"
    resumable = True  # whether going on from the last checkpoint can lead to another end

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)

    def __str__(self) -> str:
        return "\n".join(_CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line) for line in self.args)


class ConfigError(PretrainError):
    """A usage or configuration fault: the key, what was expected, a near name."""

    exit_code = 2


class DataError(ConfigError):
    """Training or validation data that cannot be used: the file and the offset."""


class IntegrityError(PretrainError):
    """A record, checkpoint, stream or parent that does not verify, or is not there."""

    exit_code = 3


class MeasurementError(PretrainError):
    """A measured figure that cannot be, so that a number it is made of is wrong."""

    advice = "mend the number that the reason names, or report it; the checkpoints are whole"


class DivergedError(PretrainError):
    """The budget of rejected steps is spent, or the state itself is no longer finite."""

    exit_code = 4
    verdict = "diverged"
    advice = "the same data and rules end here again: lower optimizer.lr or lengthen the warmup, and start another run"
    resumable = False


class ProjectionError(DivergedError):
    """The gradient of a matrix has no singular vectors to project it on."""

    advice = (
        "the same gradient has no basis again: set optimizer.use_galore=false, or another optimizer.galore_rank or "
        "optimizer.galore_update_interval, and start another run"
    )


class ThermalError(PretrainError):
    """The GPU is too hot, or its temperature can no longer be read; what was reached is saved."""

    exit_code = 5
    verdict = "thermal"
    advice = "see to the cooling of the GPU, or its sensor, and wait until it is cool; resume goes on to the same bytes"


class StorageError(PretrainError):
    """The disk is full, or the system reported an I/O error while writing.

    is_full: space is what lacks, nothing of what was refused is left, and it can be tried again once there is some.
    """

    exit_code = 6
    verdict = "storage"
    advice = "free space or mend the disk, then resume"

    def __init__(self, *lines: str, is_full: bool = False) -> None:
        super().__init__(*lines)
        self.is_full = is_full


class DisplacedError(StorageError):
    """The folder of the run is no longer where it was, or its lock is gone: a path leads into another run, or none."""

    advice = "find out where the run lies now, and who writes it; then resume it there"
    resumable = False  # by the path that the process knows


class BusyError(PretrainError):
    """Another process writes this run."""

    exit_code = 7


class StalledError(PretrainError):
    """Nothing has moved for as long as the watchdog waits."""

    exit_code = 8
    verdict = "stalled"
    advice = (
        "see to what the reason and the stacks on stderr say it hangs on, or raise training.watchdog_timeout_seconds; "
        "resume goes on to the same bytes"
    )


class OutOfMemoryRunError(PretrainError):
    """The memory of the device or of the host does not suffice for what the run does."""

    exit_code = 9
    verdict = "out_of_memory"
    advice = "the checkpoints are whole: resume goes on where there is more memory, with the same bytes"


class RunInterruptedError(PretrainError):
    """A signal asked the run to stop; what was reached is saved and `resume` continues."""

    exit_code = 75
    verdict = "interrupted"
    advice = "resume goes on to the same bytes"

    def __init__(self, message: str, signal_name: str) -> None:
        super().__init__(message)
        self.signal_name = signal_name
