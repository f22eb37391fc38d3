"""A batch that grows at the begin of the data: the same steps from wherever the loader goes on."""

import pytest

from pretrain.data.loader import LoaderState
from pretrain.errors import DataError
from tests.data.test_loader import Numbers, ids, make, run


def growing(windows: Numbers, **how):
    return make(windows, batch_size=2, k=4, warmup=32, **how)


# The steps of 100 windows: 4 of 2 until position 8, then 4, 6 and 8 samples.
SIZES = [2, 2, 2, 2, 4, 4, 6, 6, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]


def test_steps_grow_by_micro_batches_and_lie_end_to_end():
    loader, place = growing(Numbers(100)), 0
    sizes = []
    while loader.state.epoch == 0:
        step = loader.next_step()
        assert step.position == place
        assert [batch.position for batch in step.micro_batches] == list(range(place, place + len(ids(step)), 2))
        sizes.append(len(ids(step)))
        place += sizes[-1]
    assert sizes[: len(SIZES)] == SIZES[: len(sizes)]
    assert 100 - place < 8
    assert [len(ids(loader.next_step())) for _ in range(12)] == [8] * 12  # later epochs are full from their begin
    assert loader.state.epoch == 2


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_restore_gives_the_same_steps(prefetch: int):
    windows = Numbers(100)
    reference = run(growing(windows), 40)
    assert sorted(token for step in reference[:15] for token in step)  # no window twice in the first epoch
    assert len({token for step in reference[:15] for token in step}) == sum(map(len, reference[:15]))
    for stop in (0, 1, 4, 5, 7, 9, 14, 15, 16, 30):
        first = growing(windows, prefetch=prefetch)
        before = [ids(first.next_step()) for _ in range(stop)]
        state = first.state
        first.close()
        assert before + run(growing(windows, prefetch=prefetch, state=state), 40 - stop) == reference


def test_steps_that_are_skipped_are_those_that_would_have_been_read():
    windows = Numbers(100)
    for done in (0, 3, 8, 13):
        for count in (0, 1, 2, 6, 9, 25):
            read, skipped = growing(windows), growing(windows)
            for _ in range(done):
                read.next_step()
                skipped.next_step()
            for _ in range(count):
                read.next_step()
            skipped.skip_steps(count)
            assert skipped.state == read.state, (done, count)


def test_another_batch_is_as_large_as_the_one_that_comes_and_is_identified():
    loader = growing(Numbers(100))
    for _ in range(30):
        step = loader.next_step()
        assert [one.offset for one in loader.identify(step)] == [10 * token for token in ids(step)]
        before = loader.state
        other, following = loader.elsewhere(), growing(Numbers(100), state=before).next_step()
        assert len(ids(other)) == len(ids(following))
        assert not set(ids(other)) & set(ids(following))
        assert loader.state == before


def test_a_warmup_longer_than_the_data_is_refused():
    with pytest.raises(DataError, match=r"fewer than training.batch_warmup_samples, 101"):
        make(Numbers(100), k=4, warmup=101)
    assert make(Numbers(100), k=4, warmup=100).state == LoaderState(0, 0)
