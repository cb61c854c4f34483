from __future__ import annotations

import array
import gc
import mmap
import unittest

import p2pkv
from p2pkv.keys import block_indexes_for
from p2pkv.region import BorrowedMemory

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]


class KeysTest(unittest.TestCase):
    def test_keys_read_back_as_they_were_given(self) -> None:
        given = [bytes([i]) * 36 for i in range(5)]
        keys = p2pkv.Keys(given)
        self.assertEqual(list(keys), given)
        self.assertEqual(keys[-1], given[-1])
        self.assertEqual(keys[1:3], given[1:3])
        self.assertEqual((keys.key_len, len(keys)), (36, 5))
        self.assertEqual(list(p2pkv.Keys.from_packed(b"".join(given), 36)), given)

    def test_keys_of_several_lengths_are_refused(self) -> None:
        with self.assertRaisesRegex(p2pkv.InvalidArgument, "key 1 has 3 bytes, key 0 has 2"):
            p2pkv.Keys([b"ab", b"abc"])

    def test_keys_that_are_not_bytes_are_refused(self) -> None:
        with self.assertRaisesRegex(p2pkv.InvalidArgument, "key 0 is str, expected bytes"):
            p2pkv.Keys(["ab"])  # type: ignore[list-item]

    def test_packed_bytes_must_be_whole_keys(self) -> None:
        with self.assertRaises(p2pkv.InvalidArgument):
            p2pkv.Keys.from_packed(b"abcde", 2)

    def test_block_indexes_come_from_any_sequence_of_integers(self) -> None:
        keys = p2pkv.Keys([b"a", b"b"])
        for indexes in ([7, 8], (7, 8), range(7, 9), array.array("I", [7, 8])):
            self.assertEqual(list(block_indexes_for(keys, indexes)), [7, 8])

    def test_block_indexes_that_are_too_few_or_out_of_range_are_refused(self) -> None:
        keys = p2pkv.Keys([b"a", b"b"])
        for indexes in ([1], [1, 2, 3], [0, -1], [0, 2**32], [0, 0.5]):
            with self.subTest(indexes=indexes), self.assertRaises(p2pkv.InvalidArgument):
                block_indexes_for(keys, indexes)  # type: ignore[arg-type]


class RegionTest(unittest.TestCase):
    def test_writable_buffers_are_taken_where_they_are(self) -> None:
        with mmap.mmap(-1, 8192) as mapped:
            for region in (bytearray(8192), memoryview(bytearray(8192)), p2pkv.Region.alloc(8192)):
                self.assertEqual(BorrowedMemory(region).nbytes, 8192)
            borrowed = BorrowedMemory(mapped)
            self.assertEqual(borrowed.address % mmap.PAGESIZE, 0)
            del borrowed

    def test_a_borrowed_bytearray_cannot_be_resized(self) -> None:
        region = bytearray(8192)
        borrowed = BorrowedMemory(region)
        with self.assertRaises(BufferError):
            region.append(0)
        del borrowed
        region.append(0)

    def test_memory_that_cannot_be_a_region_is_refused(self) -> None:
        backwards = memoryview(bytearray(64))[::-1]
        for region, why in (
            (bytes(64), "read-only"),
            (bytearray(), "empty"),
            (backwards, "contiguous"),
            (5, "expected"),
        ):
            with self.subTest(why), self.assertRaisesRegex(p2pkv.InvalidArgument, why):
                BorrowedMemory(region)

    def test_allocated_memory_is_zero_aligned_and_lives_as_long_as_its_views(self) -> None:
        region = p2pkv.Region.alloc(3 * mmap.PAGESIZE)
        self.assertEqual(BorrowedMemory(region).address % mmap.PAGESIZE, 0)
        view = region.view
        del region
        gc.collect()
        self.assertEqual(bytes(view), bytes(3 * mmap.PAGESIZE))
        view[:3] = b"abc"
        self.assertEqual(bytes(view[:4]), b"abc\0")

    def test_a_region_of_no_bytes_is_refused(self) -> None:
        with self.assertRaises(p2pkv.InvalidArgument):
            p2pkv.Region.alloc(0)

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy_arrays_are_regions_and_views_of_regions(self) -> None:
        pool = numpy.zeros((4, 1024), dtype=numpy.float32)
        self.assertEqual(BorrowedMemory(pool).address, pool.ctypes.data)
        with self.assertRaisesRegex(p2pkv.InvalidArgument, "contiguous"):
            BorrowedMemory(pool[:, ::2])
        self.assertEqual(numpy.frombuffer(p2pkv.Region.alloc(64).view, dtype=numpy.uint8).sum(), 0)


if __name__ == "__main__":
    unittest.main()
