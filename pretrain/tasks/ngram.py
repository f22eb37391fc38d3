"""Bigram and trigram tables of token windows: what a model of the text must beat."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Keys that wait before they are merged into the sorted table: 64 MiB of them.
_PENDING_LIMIT = 1 << 23


class KeyCounts:
    """How often each integer key was seen, as sorted arrays; memory follows the number of distinct keys."""

    def __init__(self) -> None:
        self.keys: Tokens = np.empty(0, dtype=np.int64)
        self.counts: Tokens = np.empty(0, dtype=np.int64)
        self._pending: list[Tokens] = []
        self._waiting = 0

    def add(self, keys: Tokens) -> None:
        self._pending.append(keys.ravel())
        self._waiting += keys.size
        if self._waiting >= _PENDING_LIMIT:
            self.merge()

    def merge(self) -> None:
        """Bring `keys` and `counts` up to date."""
        if not self._pending:
            return
        fresh, counts = np.unique(np.concatenate(self._pending), return_counts=True)
        self._pending, self._waiting = [], 0
        self.keys, places = np.unique(np.concatenate([self.keys, fresh]), return_inverse=True)
        weights = np.concatenate([self.counts, counts])
        self.counts = np.bincount(places, weights=weights, minlength=len(self.keys)).astype(np.int64)


@dataclass(frozen=True)
class Order:
    """The n-grams of one order by key, context * vocabulary + token; total and variety by context."""

    keys: Tokens
    counts: Floats
    contexts: Tokens
    totals: Floats
    variety: Floats

    def probability(self, context: Tokens, token: Tokens, lower: Floats, vocabulary: int) -> Floats:
        """Return p(token | context), interpolated with `lower`, that of the shorter context.

        Witten and Bell 1991, method C: (count + variety * lower) / (total + variety), where the variety is
        the number of distinct tokens seen after the context. A context never seen leaves the lower order as
        it is.
        """
        count = _look_up(self.keys, self.counts, context * vocabulary + token)
        total = _look_up(self.contexts, self.totals, context)
        variety = _look_up(self.contexts, self.variety, context)
        seen = total > 0
        mixed: Floats = np.where(seen, (count + variety * lower) / np.where(seen, total + variety, 1.0), lower)
        return mixed


@dataclass(frozen=True)
class NgramTables:
    """Orders 1 to 3 over one vocabulary."""

    vocabulary: int
    unigram: Order
    bigram: Order
    trigram: Order

    def nats(self, windows: npt.NDArray[Any]) -> dict[str, Floats]:
        """Return -log p of tokens 1 to L of each window, [B, L + 1] to [B, L], under `bigram` and `trigram`.

        The first of them has one token of context only: there the trigram table answers as the bigram table.
        """
        windows = windows.astype(np.int64, copy=False)
        before, token = windows[:, :-1], windows[:, 1:]
        uniform = np.full(token.shape, 1.0 / self.vocabulary)
        one = self.unigram.probability(np.zeros_like(token), token, uniform, self.vocabulary)
        two = self.bigram.probability(before, token, one, self.vocabulary)
        three = two.copy()
        pair = before[:, :-1] * self.vocabulary + before[:, 1:]
        three[:, 1:] = self.trigram.probability(pair, token[:, 1:], two[:, 1:], self.vocabulary)
        return {"bigram": -np.log(two), "trigram": -np.log(three)}


def fit_ngrams(windows: Iterable[npt.NDArray[Any]], vocabulary: int) -> NgramTables:
    """Return tables counted over [B, L + 1] token windows; exact for vocabularies up to 2 million."""
    one, two, three = KeyCounts(), KeyCounts(), KeyCounts()
    for rows in windows:
        tokens = rows.astype(np.int64, copy=False)
        # As in scoring, the first token of a window is context only: it is the last target of the one before.
        one.add(tokens[:, 1:])
        two.add(tokens[:, :-1] * vocabulary + tokens[:, 1:])
        three.add((tokens[:, :-2] * vocabulary + tokens[:, 1:-1]) * vocabulary + tokens[:, 2:])
    return NgramTables(vocabulary, _order(one, vocabulary), _order(two, vocabulary), _order(three, vocabulary))


def _order(counted: KeyCounts, vocabulary: int) -> Order:
    counted.merge()
    contexts, places, variety = np.unique(counted.keys // vocabulary, return_inverse=True, return_counts=True)
    totals = np.bincount(places, weights=counted.counts, minlength=len(contexts)).astype(np.float64)
    return Order(counted.keys, counted.counts.astype(np.float64), contexts, totals, variety.astype(np.float64))


def _look_up(keys: Tokens, values: Floats, wanted: Tokens) -> Floats:
    """Return the value of each wanted key, 0 where it is not among the sorted keys."""
    if len(keys) == 0:
        return np.zeros(wanted.shape)
    places = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    found: Floats = np.where(keys[places] == wanted, values[places], 0.0)
    return found
