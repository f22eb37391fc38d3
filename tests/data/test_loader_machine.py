"""Whatever is done to a loader, in whatever order, it hands out the steps of one plain list."""

import json
from dataclasses import asdict
from unittest import mock

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pretrain.batch import SampleIdentity
from pretrain.data import SOURCES
from pretrain.data.iq import IqSettings
from pretrain.data.loader import LoaderState, StatefulLoader
from pretrain.data.order import permute
from pretrain.data.text import TextSettings
from pretrain.errors import DataError

WINDOWS, LENGTH, SEED, BATCH_SIZE = 23, 4, 5, 2
derandomised = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=25,
    stateful_step_count=25,
    phases=[Phase.generate, Phase.shrink],
)


def text_windows(folder):
    """Windows of a real file, what each of them holds, and where it begins."""
    path, content = folder / "letters.txt", bytes(number * 7 % 251 for number in range(WINDOWS * LENGTH + 1))
    path.write_bytes(content)
    windows = SOURCES["text"].build(TextSettings(str(path)), sequence_length=LENGTH, stride=None, seed=1, name="text")
    begins = range(0, WINDOWS * LENGTH, LENGTH)
    return windows, [list(content[begin : begin + LENGTH + 1]) for begin in begins], [(str(path), n) for n in begins]


def iq_windows(folder):
    """The same of a recording."""
    path, content = folder / "recording.cu8", bytes(number * 7 % 251 for number in range(WINDOWS * LENGTH * 2))
    path.write_bytes(content)
    windows = SOURCES["iq"].build(IqSettings(str(path)), sequence_length=LENGTH, stride=None, seed=1, name="iq")
    samples = [complex((i - 128) / 128, (q - 128) / 128) for i, q in zip(content[::2], content[1::2], strict=True)]
    begins = range(0, WINDOWS * LENGTH, LENGTH)
    return windows, [samples[begin : begin + LENGTH] for begin in begins], [(str(path), 2 * n) for n in begins]


class Loading(RuleBasedStateMachine):
    """The model: every step as (epoch, position, micro-batches), in a list, and the place in it of the next one."""

    states = Bundle("states")

    def __init__(self, windows, contents, places):
        super().__init__()
        self.windows, self.contents, self.places = windows, contents, places
        self.steps, self.orders = [], []
        self.at = 0
        self.loader = None

    @initialize(
        micro_batches=st.integers(1, 4),
        warmup=st.none() | st.integers(1, WINDOWS),
        prefetch=st.sampled_from([0, 1, 4]),
        threads=st.sampled_from([1, 3]),
    )
    def begin(self, micro_batches, warmup, prefetch, threads):
        self.micro_batches, self.warmup = micro_batches, warmup
        self.open(LoaderState(), prefetch, threads)

    def open(self, state, prefetch, threads):
        self.loader = StatefulLoader(
            self.windows,
            seed=SEED,
            batch_size=BATCH_SIZE,
            gradient_accumulation_steps=self.micro_batches,
            prefetch_steps=prefetch,
            loader_threads=threads,
            state=state,
            warmup_samples=self.warmup,
        )

    def expected(self, at):
        while len(self.steps) <= at:  # one more epoch
            epoch, position = len(self.orders), 0
            self.orders.append(permute(np.arange(WINDOWS), WINDOWS, SEED, epoch).tolist())
            while position + (size := self.samples(epoch, position)) <= WINDOWS:
                self.steps.append((epoch, position, self.rows(epoch, position, size)))
                position += size
        return self.steps[at]

    def samples(self, epoch, position):
        is_growing = self.warmup is not None and epoch == 0 and position < self.warmup
        return BATCH_SIZE * (1 + position * self.micro_batches // self.warmup if is_growing else self.micro_batches)

    def rows(self, epoch, position, samples):
        rows = [self.contents[window] for window in self.orders[epoch][position : position + samples]]
        return [rows[start : start + BATCH_SIZE] for start in range(0, samples, BATCH_SIZE)]

    @invariant()
    def the_state_is_where_the_next_step_begins(self):
        if self.loader is not None:
            assert asdict(self.loader.state) == dict(zip(("epoch", "position"), self.expected(self.at), strict=False))

    @rule(count=st.integers(1, 7))
    def take(self, count):
        for _ in range(count):
            step = self.loader.next_step()
            assert found(step) == self.expected(self.at)
            assert [batch.position for batch in step.micro_batches] == [
                step.position + number * BATCH_SIZE for number in range(len(step.micro_batches))
            ]
            self.at += 1
        order = self.orders[step.epoch][step.position :][: BATCH_SIZE * len(step.micro_batches)]
        assert self.loader.identify(step) == [
            SampleIdentity(*self.places[window], step.position + row) for row, window in enumerate(order)
        ]

    @rule(target=states)
    def save(self):
        """As a checkpoint does, which holds it as JSON."""
        return json.dumps(asdict(self.loader.state)), self.at

    @rule(saved=states)
    def restore(self, saved):
        """As a rollback does."""
        self.loader.restore(LoaderState(**json.loads(saved[0])))
        self.at = saved[1]

    @rule(count=st.integers(0, 25))
    def quarantine(self, count):
        self.loader.skip_steps(count)
        self.at += count

    @rule(saved=states, beyond=st.integers(0, 9))
    def roll_back_and_quarantine(self, saved, beyond):
        """The window up to the step that did the damage, and some more, is passed over."""
        last = max(self.at, saved[1]) + beyond
        self.restore(saved)
        self.quarantine(last - self.at)

    @rule()
    def look_elsewhere(self):
        step = self.loader.elsewhere()
        samples = self.samples(*self.expected(self.at)[:2])
        assert step.epoch == self.expected(self.at)[0]
        assert found(step)[2] == self.rows(step.epoch, step.position, samples)

    @rule()
    def fail_to_read(self):
        self.loader.restore(self.loader.state)  # so that nothing is read ahead already
        with mock.patch.object(self.windows, "read", side_effect=DataError("broken")), pytest.raises(DataError):
            self.loader.next_step()
        self.take(1)

    @rule(
        saved=states,
        is_closed=st.booleans(),
        prefetch=st.sampled_from([0, 1, 4]),
        threads=st.sampled_from([1, 3]),
    )
    def resume(self, saved, is_closed, prefetch, threads):
        """A new loader, that reads ahead in another way, goes on from a state."""
        if is_closed:
            self.loader.close()
        self.at = saved[1]
        self.open(LoaderState(**json.loads(saved[0])), prefetch, threads)

    def teardown(self):
        if self.loader is not None:
            self.loader.close()


def found(step):
    return step.epoch, step.position, [batch.samples.tolist() for batch in step.micro_batches]


@pytest.mark.parametrize("source", [text_windows, iq_windows])
def test_any_operations_hand_out_the_steps_of_one_list(source, tmp_path):
    windows, contents, places = source(tmp_path)
    assert len(windows) == WINDOWS
    run_state_machine_as_test(lambda: Loading(windows, contents, places), settings=derandomised)
