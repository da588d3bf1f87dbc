"""Intern byte strings as small numbers: an open-addressing hash table in numpy arrays, driven by compiled loops.

A table holds every distinct string once, end to end in one array of bytes, and numbers them in order of first
appearance. A slot holds a string's first eight bytes beside its number, so that most look-ups touch one cache line.
"""

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Bytes, Ids, Indices
from glovewire.common.runtime.compiled import compiled

Eights = npt.NDArray[np.uint64]
"""Array whose elements are eight bytes, read as one little-endian number."""

Mask = npt.NDArray[np.bool_]

_FIRST_SLOTS = 1 << 12
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_TAG_SHIFT = np.uint64(40)
# Second element of an empty slot. In a slot with a string, its low 32 bits are the string's number, and its high 32
# bits are a tag made of hash and length.
_FREE = np.uint64(0xFFFFFFFFFFFFFFFF)
_INLINE = 8


@compiled
def _hashes(eights: Eights, starts: Indices, stops: Indices) -> Eights:
    """Return 64-bit hashes of strings: eight bytes at a time, multiplied and folded."""
    out = np.empty(len(starts), np.uint64)
    for n in range(len(out)):
        start = starts[n]
        length = stops[n] - start
        h = np.uint64(length)
        for at in range(0, length, _INLINE):
            h = (h ^ _low_bytes(eights[start + at], length - at)) * _MULTIPLIER
            h ^= h >> _HALF
        out[n] = h
    return out


@compiled
def _low_bytes(eight: np.uint64, count: int) -> np.uint64:
    """Return the first `count` of eight bytes, or all, with zeros in place of the others."""
    return eight if count >= _INLINE else eight & ((np.uint64(1) << np.uint64(8 * count)) - np.uint64(1))


@compiled
def _intern(
    eights: Eights,
    starts: Indices,
    stops: Indices,
    hashes: Eights,
    done: int,
    ids: Ids,
    slots: Eights,
    offsets: Indices,
    arena: Bytes,
    kept: Eights,
    count: int,
    adding: bool,
) -> tuple[int, int]:
    """Number the strings from index `done` on; return (next index, table's size), early if an array is full.

    Without `adding`, an unknown string gets -1. This is the hottest loop of the package: what it calls is inlined.
    """
    mask = len(slots) - 1
    for n in range(done, len(starts)):
        start = starts[n]
        length = stops[n] - start
        h = hashes[n]
        word = _low_bytes(eights[start], length)
        tag = ((h >> _TAG_SHIFT) << np.uint64(8)) | np.uint64(min(length, 255))
        slot = np.int64(h) & mask
        number = np.int64(-1)
        while slots[slot, 1] != _FREE:
            if slots[slot, 0] == word and slots[slot, 1] >> _HALF == tag:
                number = np.int64(slots[slot, 1] & _LOW)
                if length <= _INLINE:
                    break
                base = offsets[number]
                same = offsets[number + 1] - base == length
                for at in range(_INLINE, length if same else 0, _INLINE):
                    same = same and _low_bytes(kept[base + at] ^ eights[start + at], length - at) == 0
                if same:
                    break
                number = np.int64(-1)
            slot = (slot + 1) & mask
        if number < 0 and adding:
            base = offsets[count]
            if 2 * count >= len(slots) or count + 2 > len(offsets) or base + length + _INLINE > len(arena):
                return n, count
            for at in range(0, length, _INLINE):
                piece = eights[start + at]
                for byte in range(min(_INLINE, length - at)):
                    arena[base + at + byte] = (piece >> np.uint64(8 * byte)) & np.uint64(255)
            number = np.int64(count)
            count += 1
            offsets[count] = base + length
            slots[slot, 0], slots[slot, 1] = word, (tag << _HALF) | np.uint64(number)
        ids[n] = number
    return len(starts), count


@compiled
def _gather(arena: Bytes, offsets: Indices, ids: Indices, after: Bytes, out: Bytes, ends: Indices) -> None:
    at = 0
    for n in range(len(ids)):
        for byte in range(offsets[ids[n]], offsets[ids[n] + 1]):
            out[at] = arena[byte]
            at += 1
        for byte in range(len(after)):
            out[at] = after[byte]
            at += 1
        ends[n] = at


@compiled
def _consist_of(kind: Mask, arena: Bytes, offsets: Indices, ids: Indices) -> Mask:
    out = np.empty(len(ids), np.bool_)
    for n in range(len(ids)):
        good = True
        for at in range(offsets[ids[n]], offsets[ids[n] + 1]):
            good = good and kind[arena[at]]
        out[n] = good
    return out


class StringTable:
    """Distinct byte strings, numbered 0, 1, 2 ... in order of first appearance."""

    def __init__(self) -> None:
        self.count = 0
        self._slots = np.full((_FIRST_SLOTS, 2), _FREE, np.uint64)
        self._offsets = np.zeros(_FIRST_SLOTS, np.int64)
        self._arena = np.zeros(8 * _FIRST_SLOTS, np.uint8)

    @property
    def nbytes(self) -> int:
        """Return the memory held, in bytes."""
        return self._slots.nbytes + self._offsets.nbytes + self._arena.nbytes

    def intern(self, data: Bytes, starts: Indices, stops: Indices, *, adding: bool = True) -> Ids:
        """Return the numbers of the strings data[starts[n]:stops[n]], int32 (len(starts),); add the new strings.

        Without `adding`, unknown strings have number -1.
        """
        ids = np.empty(len(starts), np.int32)
        eights = _eights(padded(data, stops))
        hashes = _hashes(eights, starts, stops)
        done = 0
        while True:
            arrays = (self._slots, self._offsets, self._arena, _eights(self._arena))
            done, self.count = _intern(eights, starts, stops, hashes, done, ids, *arrays, self.count, adding)
            if done == len(starts):
                return ids
            self._grow(int(stops[done] - starts[done]))

    def intern_group(self, data: Bytes, starts: Indices, stops: Indices, group: int, groups: int) -> tuple[Mask, Ids]:
        """Intern the strings that hash to `group` of `groups`; return which, bool (len(starts),), and their numbers."""
        chosen = np.ones(len(starts), np.bool_)
        if groups > 1:
            chosen = _hashes(_eights(padded(data, stops)), starts, stops) % np.uint64(groups) == np.uint64(group)
        return chosen, self.intern(data, starts[chosen], stops[chosen])

    def look_up(self, data: Bytes, starts: Indices, stops: Indices) -> Ids:
        """Return numbers as `intern` does, but -1 for unknown strings; add nothing."""
        return self.intern(data, starts, stops, adding=False)

    def string(self, number: int) -> bytes:
        """Return the string with this number."""
        return self._arena[self._offsets[number] : self._offsets[number + 1]].tobytes()

    def strings(self, ids: Indices, after: bytes = b"") -> tuple[Bytes, Indices]:
        """Return the strings of `ids` end to end, each followed by `after`, and their bounds, int64 (len(ids) + 1,)."""
        return take(self._arena, self._offsets, ids, after)

    def consist_of(self, kind: Mask, ids: Indices) -> Mask:
        """Return which of these strings hold only bytes of a kind, bool (len(ids),); `kind` says which, bool (256,)."""
        return _consist_of(kind, self._arena, self._offsets, ids)

    def _grow(self, needed_bytes: int) -> None:
        """Enlarge the arrays that are full, so that one more string of `needed_bytes` fits."""
        if 2 * self.count >= len(self._slots):
            bounds, self.count = self._offsets[: self.count + 1], 0
            self._slots = np.full((2 * len(self._slots), 2), _FREE, np.uint64)
            self.intern(self._arena, bounds[:-1], bounds[1:])  # they get the numbers and places that they have
        if self.count + 2 > len(self._offsets):
            self._offsets = np.concatenate([self._offsets, np.empty_like(self._offsets)])
        if self._offsets[self.count] + needed_bytes + _INLINE > len(self._arena):
            more = np.empty(len(self._arena) + needed_bytes, np.uint8)
            self._arena = np.concatenate([self._arena, more])


def take(data: Bytes, bounds: Indices, chosen: Indices, after: bytes = b"") -> tuple[Bytes, Indices]:
    """Return the strings data[bounds[n]:bounds[n + 1]] of the n in `chosen` as `StringTable.strings` does."""
    size = int((bounds[chosen + 1] - bounds[chosen]).sum()) + len(after) * len(chosen)
    out, out_bounds = np.empty(size, np.uint8), np.zeros(len(chosen) + 1, np.int64)
    _gather(data, bounds, chosen, np.frombuffer(after, np.uint8), out, out_bounds[1:])
    return out, out_bounds


def padded(data: Bytes, stops: Indices) -> Bytes:
    """Return `data` with at least eight bytes after the last string, so that eight can be read at any place in it."""
    if len(stops) == 0 or int(stops.max()) + _INLINE <= len(data):
        return data
    return np.concatenate([data, np.zeros(_INLINE, np.uint8)])


def _eights(data: Bytes) -> Eights:
    """Return an unaligned view of `data` in which element n is data[n:n + 8] as one number."""
    return np.ndarray((max(0, len(data) - _INLINE + 1),), "<u8", data, strides=(1,))


def packed(strings: list[bytes]) -> tuple[Bytes, Indices, Indices]:
    """Return byte strings as (bytes end to end, starts, stops)."""
    bounds = np.zeros(len(strings) + 1, np.int64)
    np.cumsum([len(string) for string in strings], out=bounds[1:])
    return np.frombuffer(b"".join(strings), np.uint8), bounds[:-1], bounds[1:]
