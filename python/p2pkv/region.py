"""Memory that holds the blocks."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Optional, Union

from ._ffi import REGION_HUGE_PAGES, check, library
from .errors import InvalidArgument


class Region:
    """Page-aligned, zeroed memory from the library. Prefer it to a ``bytearray``: tiers of one host map such memory, and
    copy blocks out of it at the speed of memory. A forked child shares it with its parent.

    The memory goes back when the region, every tier over it and every view of it are gone.
    """

    __slots__ = ("_memory", "nbytes")

    def __init__(self, memory: Any, nbytes: int):
        self._memory = memory
        self.nbytes = nbytes

    @classmethod
    def alloc(cls, nbytes: int, *, huge_pages: bool = False) -> Region:
        """``nbytes`` > 0. Raises ``OutOfResources`` when there is not so much, or not so many huge pages."""
        if nbytes < 1:
            raise InvalidArgument(f"a region of {nbytes} bytes")
        lib = library()
        base_addr = ctypes.c_void_p()
        check(lib.p2p_region_alloc(nbytes, REGION_HUGE_PAGES if huge_pages else 0, ctypes.byref(base_addr)))
        memory = (ctypes.c_char * nbytes).from_address(base_addr.value or 0)
        # Views of the memory hold `memory`, so it cannot be freed under them.
        weakref.finalize(memory, lib.p2p_region_free, base_addr.value)
        return cls(memory, nbytes)

    @property
    def view(self) -> memoryview:
        """The bytes, writable. ``numpy.frombuffer(region.view, dtype)`` makes an array over them."""
        return memoryview(self._memory).cast("B")


RegionLike = Union[Region, bytearray, memoryview, Any]


class BorrowedMemory:
    """A buffer that a tier works in: address, size, and the reference that keeps it from moving or going away."""

    __slots__ = ("address", "nbytes", "_memory")

    def __init__(self, region: RegionLike):
        memory: Optional[Any]
        if isinstance(region, Region):
            memory, self.nbytes = region._memory, region.nbytes
        else:
            memory, self.nbytes = _exported(region)
        self._memory = memory
        self.address = ctypes.addressof(memory)


def _exported(region: Any) -> tuple[Any, int]:
    try:
        with memoryview(region) as view:
            nbytes, readonly, contiguous = view.nbytes, view.readonly, view.c_contiguous
    except TypeError as error:
        raise InvalidArgument(
            f"region: {error}; expected Region, bytearray, memoryview, mmap or numpy array"
        ) from error
    if readonly or not contiguous or nbytes == 0:
        problem = "is read-only" if readonly else "is empty" if nbytes == 0 else "is not C-contiguous"
        raise InvalidArgument(f"region: the {type(region).__name__} {problem}")
    return (ctypes.c_char * nbytes).from_buffer(region), nbytes
