"""The loader: ids after a restore, accumulation, epochs, read-ahead, threads and errors."""

import gc
import threading
import time

import numpy as np
import pytest
import torch

from pretrain.data.loader import LoaderState, StatefulLoader, in_order
from pretrain.data.windows import Concatenation, Part, SourceFile
from pretrain.errors import DataError


class Numbers:
    """Windows of two tokens that say which window they are; `slow` shuffles the order in which threads end."""

    kind = "tokens"
    vocabulary = 256
    remainder = 3

    def __init__(self, count, *, name="numbers", broken=(), slow=False):
        self.count, self.name, self.broken, self.slow = count, name, set(broken), slow
        self.files = (SourceFile(name, count, "0" * 64),)
        self.parts = (Part((name,), frozenset((name,)), ("tokens",), 0, 1),)

    def __len__(self):
        return self.count

    def read(self, indices):
        if self.slow:
            time.sleep(0.001 * (int(indices[0]) % 4))
        if self.broken.intersection(indices.tolist()):
            raise DataError(f"{self.name}: broken")
        return torch.from_numpy(np.stack([indices, indices], axis=1))

    def labels(self, indices):
        return tuple(f"{self.name}-{index}" for index in indices.tolist())

    def identify(self, index):
        return self.name, index * 10

    def check_unchanged(self):
        if self.broken:
            raise DataError(f"{self.name}: changed")


START = LoaderState(0, 0)


def make(windows, *, batch_size=4, k=1, seed=1, prefetch=0, threads=1, state=START, warmup=None):
    return StatefulLoader(
        windows,
        seed=seed,
        batch_size=batch_size,
        gradient_accumulation_steps=k,
        prefetch_steps=prefetch,
        loader_threads=threads,
        state=state,
        warmup_samples=warmup,
    )


def ids(step):
    return [token for batch in step.micro_batches for token in batch.samples[:, 0].tolist()]


def run(loader, steps):
    try:
        return [ids(loader.next_step()) for _ in range(steps)]
    finally:
        loader.close()


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_s1_s2_ids_after_a_restore_are_the_uninterrupted_ones(k, prefetch):
    """S1, S2: stopped after each step of three epochs, accumulation included."""
    windows = Numbers(40)
    steps = 3 * (40 // (4 * k)) + 1
    reference = run(make(windows, k=k), steps)
    for stop in range(steps):
        first = make(windows, k=k, prefetch=prefetch)
        before = [ids(first.next_step()) for _ in range(stop)]
        state = first.state
        first.close()
        after = run(make(windows, k=k, prefetch=prefetch, state=state), steps - stop)
        assert before + after == reference


def test_s2_the_position_counts_samples():
    loader = make(Numbers(100), batch_size=2, k=4)
    for done in range(1, 4):
        step = loader.next_step()
        assert [batch.samples.shape[0] for batch in step.micro_batches] == [2, 2, 2, 2]
        assert [batch.position for batch in step.micro_batches] == [8 * (done - 1) + 2 * i for i in range(4)]
        assert loader.state == LoaderState(0, 8 * done)


def test_s3_an_epoch_keeps_its_permutation_after_a_restore():
    windows = Numbers(40)
    reference = run(make(windows), 30)
    epoch_two = run(make(windows, state=LoaderState(2, 12)), 7)
    assert epoch_two == reference[23:30]


def test_s4_the_next_epoch_begins_at_its_begin_and_is_whole():
    windows = Numbers(40)
    loader = make(windows, state=LoaderState(0, 28))
    for _ in range(3):
        loader.next_step()
    assert loader.state == LoaderState(1, 0)
    second = run(loader, 10)
    assert sorted(index for step in second for index in step) == list(range(40))
    assert second == run(make(windows, state=LoaderState(1, 0)), 10)


@pytest.mark.parametrize(("prefetch", "threads"), [(0, 1), (1, 1), (1, 3), (4, 1), (4, 3)])
def test_s5_read_ahead_and_threads_change_nothing(prefetch, threads):
    windows = Numbers(101, slow=True)
    reference = run(make(windows, k=2), 40)
    loader = make(windows, k=2, prefetch=prefetch, threads=threads)
    states, found = [], []
    for _ in range(40):
        states.append(loader.state)
        found.append(ids(loader.next_step()))
    loader.close()
    assert found == reference
    assert states == [LoaderState(n // 12, 8 * (n % 12)) for n in range(40)]


def test_restore_drops_what_was_read_ahead():
    windows = Numbers(64)
    reference = run(make(windows), 20)
    loader = make(windows, prefetch=4, threads=2)
    for _ in range(9):
        loader.next_step()
    loader.restore(LoaderState(0, 8))
    assert run(loader, 18) == reference[2:20]


def test_s17_an_epoch_has_whole_steps_and_leaves_out_other_windows_each_time():
    windows = Numbers(10)
    loader = make(windows, batch_size=2, k=4)
    assert loader.steps_per_epoch == 1
    epochs = run(loader, 30)
    left_out = [set(range(10)) - set(step) for step in epochs]
    assert all(len(missing) == 2 for missing in left_out)
    assert set().union(*left_out) == set(range(10))


@pytest.mark.parametrize(("windows", "batch_size", "k"), [(7, 8, 1), (7, 2, 4), (1, 1, 2)])
def test_s17_fewer_windows_than_a_step_are_refused(windows, batch_size, k):
    with pytest.raises(DataError, match=f"found {windows} windows, expected at least {batch_size * k}"):
        make(Numbers(windows), batch_size=batch_size, k=k)


def test_exactly_one_step():
    loader = make(Numbers(8), batch_size=2, k=4)
    assert [sorted(step) for step in run(loader, 3)] == [list(range(8))] * 3


@pytest.mark.parametrize("state", [LoaderState(-1, 0), LoaderState(0, -4), LoaderState(0, 41)])
def test_a_state_outside_an_epoch_is_refused(state):
    with pytest.raises(DataError, match="position"):
        make(Numbers(40), state=state)


def test_the_rest_of_an_epoch_that_is_no_whole_step_is_left():
    assert make(Numbers(41), state=LoaderState(0, 40)).state == LoaderState(1, 0)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_an_error_reaches_the_caller_and_the_state_stays(prefetch):
    windows = Numbers(40)
    reference = run(make(windows), 10)
    windows.broken = {reference[5][2]}
    loader = make(windows, prefetch=prefetch, threads=2)
    assert [ids(loader.next_step()) for _ in range(5)] == reference[:5]
    for _ in range(2):
        with pytest.raises(DataError, match="broken"):
            loader.next_step()
        assert loader.state == LoaderState(0, 20)
    windows.broken = set()
    assert run(loader, 5) == reference[5:]


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


def test_threads_start_with_the_first_step_and_end_with_close():
    loader = make(Numbers(400), prefetch=4, threads=3)
    assert not loader_threads()
    loader.next_step()
    assert loader_threads()
    loader.close()
    assert not loader_threads()
    loader.close()


def test_a_loader_that_is_dropped_leaves_no_thread():
    loader = make(Numbers(400, slow=True), prefetch=4, threads=2)
    loader.next_step()
    threads = loader_threads()
    del loader
    gc.collect()
    for thread in threads:
        thread.join(timeout=10)
    assert not loader_threads()


def test_identify_names_every_sample_of_a_step():
    loader = make(Numbers(40), batch_size=2, k=3)
    loader.next_step()
    step = loader.next_step()
    samples = loader.identify(step)
    assert [sample.offset for sample in samples] == [10 * index for index in ids(step)]
    assert [sample.position for sample in samples] == list(range(6, 12))
    assert {sample.source for sample in samples} == {"numbers"}
    assert [label for batch in step.micro_batches for label in batch.labels] == [
        f"numbers-{index}" for index in ids(step)
    ]


def test_seeds_give_other_orders():
    assert run(make(Numbers(400), seed=1), 5) != run(make(Numbers(400), seed=2), 5)


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (4, [4]), (10, [4, 4, 2]), (12, [4, 4, 4])])
def test_s44_in_order_gives_every_window_once(count, sizes):
    batches = list(in_order(Numbers(count), 4))
    assert [batch.samples.shape[0] for batch in batches] == sizes
    assert [index for batch in batches for index in batch.samples[:, 0].tolist()] == list(range(count))
    assert [batch.position for batch in batches] == [4 * i for i in range(len(sizes))]
    assert {batch.epoch for batch in batches} == {0}


def test_concatenated_domains_are_one_sequence():
    joined = Concatenation([Numbers(5, name="a"), Numbers(3, name="b"), Numbers(4, name="c")])
    assert len(joined) == 12
    assert joined.remainder == 9
    assert [file.path for file in joined.files] == ["a", "b", "c"]
    indices = np.asarray([11, 0, 5, 4, 7, 8, 0])
    assert joined.read(indices)[:, 0].tolist() == [3, 0, 0, 4, 2, 0, 0]
    assert joined.labels(indices) == ("c-3", "a-0", "b-0", "a-4", "b-2", "c-0", "a-0")
    assert [joined.identify(index) for index in (4, 5, 8)] == [("a", 40), ("b", 0), ("c", 0)]
    assert joined.read(np.asarray([6, 7]))[:, 0].tolist() == [1, 2]
    assert joined.read(np.empty(0, dtype=np.int64)).shape == (0, 2)


def test_concatenated_domains_must_be_of_one_kind():
    other = Numbers(3)
    other.vocabulary = 1000
    with pytest.raises(DataError, match="one kind"):
        Concatenation([Numbers(3), other])
    with pytest.raises(DataError, match="at least one domain"):
        Concatenation([])


def test_concatenated_domains_are_checked_one_after_the_other():
    whole = Concatenation([Numbers(3, name="a"), Numbers(3, name="b", broken=[1])])
    assert [part.files for part in whole.parts] == [("a",), ("b",)]
    with pytest.raises(DataError, match="b: changed"):
        whole.check_unchanged()
    assert Concatenation([Numbers(3), Numbers(3)]).check_unchanged() is None


@pytest.mark.parametrize("begin", [0, 1, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 20, 100])
def test_steps_that_are_skipped_are_those_that_would_have_been_read(begin, count):
    read, skipped = make(Numbers(30)), make(Numbers(30))
    for one in (read, skipped):
        one.skip_steps(begin)
    for _ in range(count):
        read.next_step()
    skipped.skip_steps(count)
    assert skipped.state == read.state


def test_any_number_of_steps_is_skipped_at_once():
    one = make(Numbers(30))
    one.skip_steps(10**15)
    assert one.state.epoch > 10**13


def test_another_batch_is_half_an_epoch_away_and_moves_nothing():
    one = make(Numbers(30))
    one.skip_steps(1)
    before = one.state
    other = one.elsewhere()
    assert one.state == before
    assert other.position != before.position
    assert other.position % len(other.micro_batches[0].samples) == 0
