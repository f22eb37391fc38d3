"""The order of the windows: a permutation that any index can be asked of, without the ones before it."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# Four rounds make a strong pseudorandom permutation of a good round function (Luby & Rackoff 1988); the cheap
# one here, and the few bits of a short epoch, are given twice as many.
_ROUNDS = 8
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)  # of the `xmxmx` mixer by P. Evensen, "Moremur", 2019
_SHIFT = np.uint64(32)
_BLOCK = 1024


def consecutive(position: int, count: int, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return what `permute` gives for the places from `position` to `position + count`.

    Sixteen places take two thirds of the time of a thousand, most of what reading a step of text takes, and
    the interpreter is locked meanwhile: so whole blocks are permuted, and kept for the next steps.
    Raises IndexError for a place that is out of range.
    """
    if not 0 <= position <= position + count <= length:
        raise IndexError(f"places {position} to {position + count} of the order lie outside [0, {length})")
    first, last = position // _BLOCK, (position + max(count, 1) - 1) // _BLOCK
    blocks = np.concatenate([_block(number, length, seed, epoch) for number in range(first, last + 1)])
    return blocks[position - first * _BLOCK :][:count]


@lru_cache(maxsize=16)
def _block(number: int, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    places = np.arange(number * _BLOCK, min((number + 1) * _BLOCK, length), dtype=np.int64)
    return permute(places, length, seed, epoch)


def permute(index: NDArray[np.int64], length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return which window stands at each place `index` of the epoch's order over `length` windows.

    index: int64, any shape, each element in [0, length); the result has the same shape, and over all indices
    it is a permutation. A pure function of its four arguments: no state, no dependence on how the indices are
    grouped. A Feistel network over the bits of `length`, walked along its cycle until it is back in range
    (Black & Rogaway 2002, "Ciphers with arbitrary finite domains"): less than two walks on average.
    Raises IndexError for an index that is out of range.
    """
    places = np.asarray(index, dtype=np.int64)
    if places.size and (int(places.min()) < 0 or int(places.max()) >= length):
        raise IndexError(f"an index of the order lies outside [0, {length})")
    # One bit at least on either side, so that every round mixes something for every length.
    bits = max(2, (length - 1).bit_length())
    keys = _round_keys(seed, epoch)
    shuffled = _encrypt(places.astype(np.uint64).reshape(-1), bits, keys)
    outside = np.flatnonzero(shuffled >= length)
    while outside.size:
        walked = _encrypt(shuffled[outside], bits, keys)
        shuffled[outside] = walked
        outside = outside[walked >= length]
    return shuffled.astype(np.int64).reshape(places.shape)


def _encrypt(values: NDArray[np.uint64], bits: int, keys: tuple[np.uint64, ...]) -> NDArray[np.uint64]:
    """Permute [0, 2**bits): the halves take turns at being mixed with a keyed hash of the other one."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = values & low_mask, values >> low_bits
    for turn, key in enumerate(keys):
        if turn % 2:
            low ^= _mix(high, key) & low_mask
        else:
            high ^= _mix(low, key) & high_mask
    return (high << low_bits) | low


def _mix(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    mixed = values ^ key
    mixed *= _MULTIPLIER
    mixed ^= mixed >> _SHIFT
    mixed *= _MULTIPLIER
    mixed >>= _SHIFT
    return mixed


def _round_keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
    state = _splitmix(_splitmix(seed & _MASK) ^ (epoch & _MASK))
    return tuple(np.uint64(_splitmix((state + _GOLDEN * turn) & _MASK)) for turn in range(_ROUNDS))


def _splitmix(state: int) -> int:
    """One output of splitmix64 (Steele, Lea & Flood 2014): neighbouring states give unrelated numbers."""
    value = (state + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
