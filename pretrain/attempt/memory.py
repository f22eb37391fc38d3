"""What to change when the memory does not suffice, said in the settings of the run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pretrain.config import RunConfig
from pretrain.errors import OutOfMemoryRunError
from pretrain.machine.memory import is_exhausted


@contextmanager
def memory_explained(config: RunConfig, where: Callable[[], str]) -> Iterator[None]:
    """Turn exhausted memory in here into an OutOfMemoryRunError that says where it was and what needs less."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_exhausted(error):
            raise
        said = (str(error).splitlines() or [""])[0] or type(error).__name__
        # Without its traceback: that would hold every tensor of the failed step while the outcome is written.
        raise OutOfMemoryRunError(f"{where()}: {said}; {remedy(config)}") from error.with_traceback(None)


def remedy(config: RunConfig) -> str:
    """Return which settings need less memory for the same steps, with their numbers."""
    rows, times = config.training.batch_size, config.training.gradient_accumulation_steps
    length, scored = config.data.sequence_length, config.validation.batch_size
    factor = next((number for number in range(2, rows + 1) if rows % number == 0), None)
    ways = []
    if factor is not None:
        ways.append(
            f"training.batch_size={rows // factor} training.gradient_accumulation_steps={times * factor}, which takes "
            f"the same {rows * times} windows a step"
        )
    if config.training.activation_checkpointing != "full":
        ways.append("training.activation_checkpointing=full, which makes activations again in the backward pass")
    if getattr(config.task.settings, "chunk_tokens", None) == 0:
        ways.append("task.chunk_tokens=1024, which makes logits for so many positions at a time")
    ways.append(f"a shorter data.sequence_length than {length}")
    if scored is not None and scored > rows:
        ways.append(f"validation.batch_size={rows}")
    ways.append("a smaller model")
    return f"a micro-batch holds {rows} windows of {length}: start another run with {', or '.join(ways)}"
