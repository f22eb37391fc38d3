"""The n-gram tables: equal to a slow count by dictionary, and at the known figures on a known text."""

import math
from collections import Counter, defaultdict
from pydoc_data.topics import topics

import numpy as np
import pytest

from pretrain.tasks import ngram
from pretrain.tasks.ngram import fit_ngrams

VOCABULARY = 5


def windows(seed: int, rows: int = 20, length: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (rows, length)) ** 2 % VOCABULARY


class Slowly:
    """Witten and Bell's interpolation, one context at a time."""

    def __init__(self, rows: np.ndarray) -> None:
        self.seen: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for row in rows.tolist():
            for place in range(1, len(row)):
                for order in (0, 1, 2):
                    if place >= order:
                        self.seen[tuple(row[place - order : place])][row[place]] += 1

    def probability(self, context: tuple[int, ...], token: int) -> float:
        lower = self.probability(context[1:], token) if context else 1 / VOCABULARY
        counts = self.seen.get(context)
        if not counts:
            return lower
        return (counts[token] + len(counts) * lower) / (counts.total() + len(counts))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_tables_equal_a_slow_count(seed: int) -> None:
    slow, table = Slowly(windows(seed)), fit_ngrams([windows(seed)], VOCABULARY)
    scored = windows(seed + 10)
    nats = table.nats(scored)
    assert nats["bigram"].shape == nats["trigram"].shape == (20, 8)
    for row, tokens in enumerate(scored.tolist()):
        for place in range(1, 9):
            two = slow.probability((tokens[place - 1],), tokens[place])
            three = slow.probability(tuple(tokens[max(0, place - 2) : place]), tokens[place])
            assert nats["bigram"][row, place - 1] == pytest.approx(-math.log(two), rel=1e-12)
            assert nats["trigram"][row, place - 1] == pytest.approx(-math.log(three), rel=1e-12)


def test_probabilities_add_up_to_one_after_seen_and_unseen_contexts() -> None:
    table = fit_ngrams([np.array([[0, 1, 2, 0, 1, 3]])], VOCABULARY)
    contexts = np.array([[a, b] for a in range(VOCABULARY) for b in range(VOCABULARY)])
    for kind in ("bigram", "trigram"):
        total = sum(
            np.exp(-table.nats(np.column_stack([contexts, np.full(len(contexts), token)]))[kind][:, 1])
            for token in range(VOCABULARY)
        )
        np.testing.assert_allclose(total, 1.0, rtol=1e-12)


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_neither_batches_nor_merges_change_the_tables(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit_ngrams([windows(1)], VOCABULARY).nats(windows(2))
    monkeypatch.setattr(ngram, "_PENDING_LIMIT", limit)
    parts = fit_ngrams(np.array_split(windows(1), 6), VOCABULARY).nats(windows(2))
    for kind, values in whole.items():
        assert values.tobytes() == parts[kind].tobytes()


def test_nothing_to_count_leaves_the_uniform_guess() -> None:
    nats = fit_ngrams([], VOCABULARY).nats(windows(1))
    np.testing.assert_allclose(nats["trigram"], math.log(VOCABULARY))
    np.testing.assert_allclose(nats["bigram"], math.log(VOCABULARY))


def test_windows_of_two_tokens_have_bigrams_only() -> None:
    table = fit_ngrams([windows(1, length=2)], VOCABULARY)
    nats = table.nats(windows(2, length=2))
    assert nats["trigram"].tobytes() == nats["bigram"].tobytes()


def test_on_the_topics_of_pydoc_they_are_at_their_known_figures() -> None:
    text = np.frombuffer("".join(topics[key] for key in sorted(topics)).encode(), dtype=np.uint8)
    cut = len(text) * 9 // 10

    def windowed(part: np.ndarray) -> np.ndarray:
        return np.lib.stride_tricks.sliding_window_view(part, 129)[::128]

    nats = fit_ngrams([windowed(text[:cut])], 256).nats(windowed(text[cut:]))
    assert nats["bigram"].mean() == pytest.approx(2.3, abs=0.1)
    assert nats["trigram"].mean() == pytest.approx(1.7, abs=0.1)
