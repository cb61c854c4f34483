"""Keys and block indexes in the form in which the library reads them."""

from __future__ import annotations

import array
import ctypes
from typing import Any, Iterator, Sequence, Union

from ._ffi import P2pKeys
from .errors import InvalidArgument


class Keys(Sequence[bytes]):
    """Keys of one length, packed once. Every call that takes keys takes a plain sequence of ``bytes`` too and packs
    it; make ``Keys`` yourself where the same ones are used again, as in lookups that are repeated each step.

    vLLM's keys are 32 bytes of block hash and 4 bytes of KV-cache-group index, big-endian.
    """

    __slots__ = ("_packed", "key_len", "_count", "struct")

    def __init__(self, keys: Sequence[bytes]):
        key_len = len(keys[0]) if len(keys) > 0 else 0
        for position, key in enumerate(keys):
            if not isinstance(key, (bytes, bytearray, memoryview)):
                raise InvalidArgument(f"key {position} is {type(key).__name__}, expected bytes")
            if len(key) != key_len:
                raise InvalidArgument(f"key {position} has {len(key)} bytes, key 0 has {key_len}: one length per call")
        self._set(b"".join(keys), key_len, len(keys))

    @classmethod
    def from_packed(cls, packed: bytes, key_len: int) -> Keys:
        """Keys that lie one behind the other already."""
        if key_len < 1 or len(packed) % key_len != 0:
            raise InvalidArgument(f"{len(packed)} bytes are not a whole number of keys of {key_len} bytes")
        keys = cls.__new__(cls)
        keys._set(bytes(packed), key_len, len(packed) // key_len)
        return keys

    def _set(self, packed: bytes, key_len: int, count: int) -> None:
        self._packed = packed
        self.key_len = key_len
        self._count = count
        address = ctypes.cast(ctypes.c_char_p(packed), ctypes.c_void_p).value if count else None
        self.struct = P2pKeys(address, key_len, count)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(self._count))]
        if position < 0:
            position += self._count
        if not 0 <= position < self._count:
            raise IndexError(f"key {position} of {self._count}")
        return self._packed[position * self.key_len : (position + 1) * self.key_len]

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(self._count))


KeysLike = Union[Keys, Sequence[bytes]]


def packed(keys: KeysLike) -> Keys:
    return keys if isinstance(keys, Keys) else Keys(keys)


def block_indexes_for(keys: Keys, block_indexes: Sequence[int]) -> Any:
    """A C array of ``uint32_t``, one for each key."""
    if len(block_indexes) != len(keys):
        raise InvalidArgument(f"{len(keys)} keys, but {len(block_indexes)} block indexes")
    try:
        values = array.array("I", block_indexes)
    except (OverflowError, TypeError) as error:
        raise InvalidArgument(f"block indexes are integers from 0 to 2**32 - 1: {error}") from error
    c_array = ctypes.c_uint32 * len(values)
    return c_array.from_buffer(values) if len(values) else c_array()


def keys_of_struct(struct: P2pKeys) -> list[bytes]:
    """Copies keys out of memory that the library lends for the time of a callback."""
    packed_bytes = ctypes.string_at(struct.data, struct.key_len * struct.count) if struct.count else b""
    return [packed_bytes[i * struct.key_len : (i + 1) * struct.key_len] for i in range(struct.count)]
