"""How many samples of each domain a step has read, against what the concatenated domains say of each window."""

from collections import Counter

import numpy as np
import pytest

from pretrain.data.loader import StatefulLoader
from pretrain.data.windows import Concatenation
from pretrain.monitors.mixture import Mixture
from pretrain.policy.mixture import add_counts, judge_mixture
from tests.data.test_loader import Numbers

SIZES = {"a": 5, "b": 1, "c": 40, "d": 3}


def concatenated(sizes=SIZES):
    return Concatenation([Numbers(size, name=name) for name, size in sizes.items()])


def test_every_window_is_counted_for_the_domain_that_it_is_read_from():
    windows, mixture = concatenated(), Mixture(SIZES)
    for index in range(len(windows)):
        owner, _ = windows.identify(index)
        assert mixture.counts(np.array([index])) == {name: int(name == owner) for name in SIZES}
    assert mixture.counts(np.arange(len(windows))) == SIZES


@pytest.mark.parametrize("sizes", [SIZES, {"a": 12}, {"a": 0, "b": 12}, {"a": 7, "b": 0, "c": 0, "d": 9}])
def test_the_steps_of_a_loader_are_counted_as_they_are_identified(sizes):
    filled = {name: size for name, size in sizes.items() if size}
    loader = StatefulLoader(
        concatenated(filled), seed=3, batch_size=2, gradient_accumulation_steps=2, prefetch_steps=0, loader_threads=1
    )
    mixture = Mixture(sizes)
    for _ in range(20):
        step = loader.next_step()
        identified = Counter(sample.source for sample in loader.identify(step))
        counts = mixture.counts(loader.indices(step))
        assert counts == {name: identified[name] for name in sizes}
        assert list(counts) == list(sizes)
        assert all(type(count) is int for count in counts.values())
    loader.close()


def test_the_expected_shares_are_those_of_the_windows():
    assert Mixture({"a": 1, "b": 0, "c": 3}).shares == {"a": 0.25, "b": 0.0, "c": 0.75}


def test_a_step_of_no_samples_counts_none():
    assert Mixture(SIZES).counts(np.array([], dtype=np.int64)) == dict.fromkeys(SIZES, 0)


def test_a_window_that_is_in_no_domain_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="longer"):
        Mixture(SIZES).counts(np.array([49]))


def test_a_loader_keeps_to_the_mixture_and_one_that_reads_the_wrong_windows_does_not():
    sizes = {"a": 400, "b": 90, "c": 10}
    mixture = Mixture(sizes)
    loader = StatefulLoader(
        concatenated(sizes), seed=3, batch_size=4, gradient_accumulation_steps=2, prefetch_steps=0, loader_threads=1
    )
    honest, spoiled = {}, {}
    for number in range(1, 1001):
        indices = loader.indices(loader.next_step())
        honest = add_counts(mixture.counts(indices), honest)
        spoiled = add_counts(mixture.counts(indices % 420), spoiled)
        if number % 100 == 0:
            _, seen, honest = judge_mixture(mixture.shares, honest, ())
            assert not any(one.is_out for one in seen)
            _, seen, spoiled = judge_mixture(mixture.shares, spoiled, ())
            assert [one.subject for one in seen if one.is_out] == ["a", "b"]
    loader.close()
