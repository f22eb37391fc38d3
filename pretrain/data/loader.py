"""Hands out the batches of each step in an order that depends on seed, epoch and position alone."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from pretrain import progress
from pretrain.batch import Batch, SampleIdentity, StepBatch
from pretrain.data.order import consecutive
from pretrain.data.windows import Indices, Windows
from pretrain.errors import DataError
from pretrain.policy.batch_size import micro_batches_at


@dataclass(frozen=True)
class LoaderState:
    """Where the next step begins: its epoch, and the samples of that epoch's order that were handed out."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True)
class _Plan:
    """How a step is built from a state: everything here stays the same for the life of the loader."""

    windows: Windows
    seed: int
    batch_size: int
    micro_batches: int
    warmup_samples: int | None

    @property
    def full_step(self) -> int:
        """The samples of a step once the batch has grown to its full size."""
        return self.batch_size * self.micro_batches

    def samples_at(self, state: LoaderState) -> int:
        """The samples of the step that begins at a state."""
        return self.batch_size * micro_batches_at(state.epoch, state.position, self.micro_batches, self.warmup_samples)

    def is_growing_at(self, state: LoaderState) -> bool:
        return self.warmup_samples is not None and state.epoch == 0 and state.position < self.warmup_samples

    def first(self, state: LoaderState) -> LoaderState:
        """The state itself, or the begin of the next epoch when no whole step is left of this one."""
        if state.position + self.samples_at(state) > len(self.windows):
            return LoaderState(state.epoch + 1, 0)
        return state

    def after(self, state: LoaderState) -> LoaderState:
        return self.first(LoaderState(state.epoch, state.position + self.samples_at(state)))

    def order(self, epoch: int, position: int, count: int) -> Indices:
        return consecutive(position, count, len(self.windows), self.seed, epoch)

    def build(self, state: LoaderState) -> StepBatch:
        return self.build_step(state, self.samples_at(state))

    def build_step(self, state: LoaderState, samples_: int) -> StepBatch:
        indices = self.order(state.epoch, state.position, samples_)
        micro_batches = []
        for start in range(0, samples_, self.batch_size):
            chosen = indices[start : start + self.batch_size]
            samples, labels = self.windows.read(chosen), self.windows.labels(chosen)
            micro_batches.append(Batch(samples, state.epoch, state.position + start, labels))
            progress.moved()
        return StepBatch(tuple(micro_batches), state.epoch, state.position)


class StatefulLoader:
    """The steps of a run, one after the other, and two numbers that say where the next one begins.

    An epoch has floor(windows / samples per step) steps; what is left of its order is not used in it, and the next
    epoch leaves out others. In a warmup at the begin of the first epoch steps are smaller. Up to `prefetch_steps`
    steps are read ahead by `loader_threads` threads (0 = no thread); neither changes what is handed out, and the
    state moves only when a step is handed out.
    """

    def __init__(
        self,
        windows: Windows,
        *,
        seed: int,
        batch_size: int,
        gradient_accumulation_steps: int,
        prefetch_steps: int,
        loader_threads: int,
        state: LoaderState = LoaderState(),
        warmup_samples: int | None = None,
    ) -> None:
        """Raises DataError when the windows do not fill one step, or the state lies outside an epoch."""
        self._plan = _Plan(windows, seed, batch_size, gradient_accumulation_steps, warmup_samples)
        if warmup_samples is not None and warmup_samples > len(windows):
            raise DataError(
                f"data.train: found {len(windows)} windows, fewer than training.batch_warmup_samples, "
                f"{warmup_samples}: the batch grows within the first epoch; lower it"
            )
        if len(windows) < self._plan.full_step:
            raise DataError(
                f"data.train: found {len(windows)} windows, expected at least {self._plan.full_step} "
                f"(batch_size {batch_size} x gradient_accumulation_steps {gradient_accumulation_steps}); "
                "lower either, shorten data.sequence_length, or set a smaller data.stride"
            )
        self._prefetch_steps = prefetch_steps
        self._threads: ThreadPoolExecutor | None = None
        if prefetch_steps > 0:
            # Threads start with the first read-ahead. Each task is one step and none waits for another, so a
            # loader that is dropped, or a process that ends, never waits for more than the steps read ahead.
            self._threads = ThreadPoolExecutor(loader_threads, thread_name_prefix="loader")
        self._ahead: deque[tuple[LoaderState, Future[StepBatch]]] = deque()
        self.restore(state)

    @property
    def state(self) -> LoaderState:
        """Where the next step begins."""
        return self._state

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps in one pass over the windows, without a warmup of the batch."""
        return len(self._plan.windows) // self._plan.full_step

    def restore(self, state: LoaderState) -> None:
        """Go on from `state`; what was read ahead is dropped. Raises DataError outside an epoch."""
        windows = len(self._plan.windows)
        if state.epoch < 0 or not 0 <= state.position <= windows:
            raise DataError(f"data.train: expected a position of at most {windows} windows, found {state}")
        self._drop_ahead()
        self._state = self._plan.first(state)

    def next_step(self) -> StepBatch:
        """Return the next step and move the state past it.

        Raises what reading the windows raises, from whichever thread; the state stays, and the next call
        reads that step again.
        """
        if self._threads is None:
            step = self._plan.build(self._state)
        else:
            self._read_ahead(self._threads)
            _, future = self._ahead.popleft()
            try:
                step = future.result()
            except BaseException:  # A signal too: what was read ahead of the step that failed must be read again.
                self._drop_ahead()
                raise
        self._state = self._plan.after(self._state)
        if self._threads is not None:
            self._read_ahead(self._threads)
        return step

    def skip_steps(self, count: int) -> None:
        """Move the state past `count` steps without reading them; an epoch ends where it would have ended."""
        state, each = self._state, self._plan.full_step
        while count and self._plan.is_growing_at(state):
            state, count = self._plan.after(state), count - 1
        left = (len(self._plan.windows) - state.position) // each
        if count < left:
            state = LoaderState(state.epoch, state.position + count * each)
        else:
            epochs, steps = divmod(count - left, self.steps_per_epoch)
            state = LoaderState(state.epoch + 1 + epochs, steps * each)
        self.restore(state)

    def elsewhere(self) -> StepBatch:
        """Return the step half an epoch from here, read now; the state, and what was read ahead, stay as they are."""
        state, each = self._state, self._plan.full_step
        begin = (state.position + self.steps_per_epoch // 2 * each) % (self.steps_per_epoch * each)
        samples = self._plan.samples_at(state)
        # After a warmup steps do not begin at multiples of their size.
        return self._plan.build_step(LoaderState(state.epoch, min(begin, len(self._plan.windows) - samples)), samples)

    def indices(self, step: StepBatch) -> Indices:
        """Return the number of the window of each sample of a step, in the order of its rows."""
        return self._plan.order(step.epoch, step.position, sum(len(batch.samples) for batch in step.micro_batches))

    def identify(self, step: StepBatch) -> list[SampleIdentity]:
        """Return where each sample of a step comes from, in the order of its rows."""
        return [
            SampleIdentity(*self._plan.windows.identify(index), step.position + row)
            for row, index in enumerate(self.indices(step).tolist())
        ]

    def close(self) -> None:
        """Drop what was read ahead and wait for the threads; the loader cannot be used afterwards."""
        self._drop_ahead()
        if self._threads is not None:
            self._threads.shutdown(wait=True)

    def _read_ahead(self, threads: ThreadPoolExecutor) -> None:
        state = self._plan.after(self._ahead[-1][0]) if self._ahead else self._state
        while len(self._ahead) < self._prefetch_steps:
            self._ahead.append((state, threads.submit(self._plan.build, state)))
            state = self._plan.after(state)

    def _drop_ahead(self) -> None:
        while self._ahead:
            self._ahead.pop()[1].cancel()


def in_order(windows: Windows, batch_size: int) -> Iterator[Batch]:
    """Yield every window once, in the order of the data; the last batch holds what is left."""
    for position in range(0, len(windows), batch_size):
        indices = np.arange(position, min(position + batch_size, len(windows)), dtype=np.int64)
        yield Batch(windows.read(indices), 0, position, windows.labels(indices))
