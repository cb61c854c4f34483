//! Pointers from C, checked and turned into what Rust can use.

use std::ptr::NonNull;

use super::guard::Failure;
use super::sized::{Element, SizeFirst};
use super::strings::p2p_str;
use crate::protocol::keys::KeysView;

/// Many keys of one length, one behind the other.
///
/// `count` 0 with `data` NULL is no keys. Key *i* is the `key_len` bytes at `data + i * key_len`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct p2p_keys {
    /// `count * key_len` bytes; borrowed for the call that they are given to.
    pub data: *const u8,
    /// Bytes of each key, at least 1 and at most the tier's `max_key_len`.
    pub key_len: usize,
    /// How many keys.
    pub count: usize,
}

/// Stands for the promise that every C caller makes: pointers are NULL, or point to what the documentation of
/// their parameter says, aligned, for as long as the call lasts. Borrows handed out here cannot outlive it.
pub(super) struct Caller(());

impl Caller {
    /// # Safety
    /// Only pointers that keep the promise above may be passed to the methods of the result, and the result must
    /// not outlive the call that the pointers came with.
    pub(super) unsafe fn trust() -> Self {
        Caller(())
    }

    /// One struct to read; NULL is an error.
    pub(super) fn reference<T>(&self, pointer: *const T, parameter: &str) -> Result<&T, Failure> {
        let pointer = non_null(pointer.cast_mut(), parameter)?;
        // SAFETY: not NULL, aligned (checked); the caller's promise covers the rest.
        Ok(unsafe { pointer.as_ref() })
    }

    /// One value to write.
    pub(super) fn out<T>(&self, pointer: *mut T, parameter: &str) -> Result<Out<T>, Failure> {
        non_null(pointer, parameter).map(Out)
    }

    /// An array to read; NULL is fine when `len` is 0.
    pub(super) fn array<T>(&self, data: *const T, len: usize, parameter: &str) -> Result<&[T], Failure> {
        let Some(data) = array_start(data.cast_mut(), len, parameter)? else { return Ok(&[]) };
        // SAFETY: not NULL, aligned, not too long (checked); the caller's promise covers the rest.
        Ok(unsafe { std::slice::from_raw_parts(data.as_ptr(), len) })
    }

    /// An array to write; NULL is fine when `len` is 0.
    pub(super) fn out_array<T>(
        &self,
        data: *mut T,
        len: usize,
        parameter: &str,
    ) -> Result<OutArray<T>, Failure> {
        let start = array_start(data, len, parameter)?;
        Ok(OutArray { start: start.unwrap_or(NonNull::dangling()), len: start.map_or(0, |_| len) })
    }

    /// An array to write whose elements the caller believes to be `element_size` bytes.
    pub(super) fn out_elements<T: Element>(
        &self,
        data: *mut T,
        element_size: usize,
        size_parameter: &str,
        capacity: usize,
        parameter: &str,
    ) -> Result<OutElements<T>, Failure> {
        if element_size < T::FIRST_SIZE {
            return Err(Failure::invalid(format!(
                "{size_parameter} is {element_size}, expected sizeof({}), at least {}",
                T::C_NAME,
                T::FIRST_SIZE
            )));
        }
        let too_long = || {
            Failure::invalid(format!("{capacity} {parameter} of {element_size} bytes are more than memory"))
        };
        let bytes = capacity.checked_mul(element_size).ok_or_else(too_long)?;
        let start = array_start(data.cast::<u8>(), bytes, parameter)?;
        Ok(OutElements { start, element_size, capacity, element: std::marker::PhantomData })
    }

    /// A struct that begins with its size: zero-filled if short, refused if it says something we do not know.
    pub(super) fn size_first<T: SizeFirst>(&self, pointer: *const T, parameter: &str) -> Result<T, Failure> {
        let pointer = non_null(pointer.cast_mut(), parameter)?;
        // SAFETY: the caller promised a struct of the size that it begins with.
        unsafe { super::sized::read(pointer.as_ptr(), parameter) }
    }

    /// Writes `value` over such a struct, as much of it as the caller has room for.
    pub(super) fn out_size_first<T: SizeFirst>(
        &self,
        pointer: *mut T,
        parameter: &str,
    ) -> Result<super::sized::OutSizeFirst<T>, Failure> {
        let pointer = non_null(pointer, parameter)?;
        // SAFETY: as in `size_first`, and writable.
        unsafe { super::sized::OutSizeFirst::new(pointer, parameter) }
    }

    /// Prepares such a struct: zeros, and its size in front.
    pub(super) fn init_size_first<T: SizeFirst>(
        &self,
        pointer: *mut T,
        parameter: &str,
        size: usize,
        size_parameter: &str,
    ) -> Result<(), Failure> {
        let pointer = non_null(pointer, parameter)?;
        // SAFETY: the caller promised `size` writable bytes.
        unsafe { super::sized::init(pointer.as_ptr(), size, size_parameter) }
    }

    /// Text; `None` if empty.
    pub(super) fn text(&self, text: &p2p_str, parameter: &str) -> Result<Option<&str>, Failure> {
        // SAFETY: the caller's promise.
        unsafe { super::strings::read(text, parameter) }
    }

    /// The keys of a call; every function calls that parameter `keys`.
    pub(super) fn keys(&self, keys: *const p2p_keys) -> Result<KeysView<'_>, Failure> {
        let keys = self.reference(keys, "keys")?;
        if keys.count == 0 {
            return Ok(KeysView::EMPTY);
        }
        if keys.key_len == 0 {
            let message = format!("keys.key_len is 0 with {} keys, expected at least 1", keys.count);
            return Err(Failure::invalid(message));
        }
        let bytes = keys.count.checked_mul(keys.key_len).ok_or_else(|| {
            Failure::invalid(format!(
                "keys: {} keys of {} bytes are more than memory",
                keys.count, keys.key_len
            ))
        })?;
        let data = self.array(keys.data, bytes, "keys.data")?;
        Ok(KeysView::new(data, keys.key_len).unwrap_or(KeysView::EMPTY))
    }
}

/// One value that a call gives back.
pub(super) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    pub(super) fn set(self, value: T) {
        // SAFETY: made by `Caller::out` from a pointer that the caller promised to be writable.
        unsafe { self.0.as_ptr().write(value) }
    }
}

/// An array that a call gives back.
pub(super) struct OutArray<T> {
    start: NonNull<T>,
    len: usize,
}

impl<T> OutArray<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Writes the values in order, never more than there is room for.
    pub(super) fn set(self, values: impl IntoIterator<Item = T>) {
        for (index, value) in values.into_iter().take(self.len).enumerate() {
            // SAFETY: `index < len`; the caller promised `len` writable elements.
            unsafe { self.start.as_ptr().add(index).write(value) }
        }
    }
}

/// An array that a call gives back, in steps of the size that the caller knows.
pub(super) struct OutElements<T> {
    start: Option<NonNull<u8>>,
    element_size: usize,
    capacity: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> OutElements<T> {
    /// Writes the values in order, never more than there is room for: each cut to the caller's size, or padded
    /// with zeros up to it. Gives how many were written.
    pub(super) fn set(self, values: impl IntoIterator<Item = T>) -> usize {
        let Some(start) = self.start else { return 0 };
        let mut written = 0;
        for (index, value) in values.into_iter().take(self.capacity).enumerate() {
            let common = self.element_size.min(size_of::<T>());
            // SAFETY: `index < capacity` and the caller promised `capacity * element_size` writable bytes; `T` has
            // no padding (see `Element`), so all of its bytes may be read.
            unsafe {
                let to = start.as_ptr().add(index * self.element_size);
                to.copy_from_nonoverlapping((&raw const value).cast::<u8>(), common);
                to.add(common).write_bytes(0, self.element_size - common);
            }
            written += 1;
        }
        written
    }
}

fn non_null<T>(pointer: *mut T, parameter: &str) -> Result<NonNull<T>, Failure> {
    let pointer = NonNull::new(pointer).ok_or_else(|| Failure::invalid(format!("{parameter} is NULL")))?;
    if !pointer.is_aligned() {
        return Err(Failure::invalid(format!(
            "{parameter} is at {pointer:?}, not a multiple of {}",
            align_of::<T>()
        )));
    }
    Ok(pointer)
}

fn array_start<T>(data: *mut T, len: usize, parameter: &str) -> Result<Option<NonNull<T>>, Failure> {
    if len == 0 {
        return Ok(None);
    }
    if data.is_null() {
        return Err(Failure::invalid(format!("{parameter} is NULL, expected {len} elements")));
    }
    let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
    if bytes.is_none() {
        return Err(Failure::invalid(format!("{parameter} has {len} elements, more than memory")));
    }
    non_null(data, parameter).map(Some)
}

/// `len` copies of `value`. A length that cannot be had is a failure, not an abort of the host.
pub(super) fn filled<T: Copy>(value: T, len: usize) -> Result<smallvec::SmallVec<[T; 128]>, Failure> {
    let mut values = smallvec::SmallVec::new();
    values.try_reserve_exact(len).map_err(|_| {
        Failure::new(super::status::p2p_status::OUT_OF_RESOURCES, format!("no memory for {len} states"))
    })?;
    values.resize(len, value);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use std::ptr::null;

    use super::*;

    fn caller() -> Caller {
        // SAFETY: the tests pass NULL, or pointers to live locals.
        unsafe { Caller::trust() }
    }

    #[test]
    fn no_keys_need_no_data_but_some_keys_do() {
        let keys = |data, key_len, count| p2p_keys { data, key_len, count };
        let caller = caller();
        assert!(caller.keys(&keys(null(), 0, 0)).unwrap().is_empty());
        let message = |keys: p2p_keys| caller.keys(&keys).unwrap_err().message;
        assert!(message(keys(null(), 36, 1)).contains("keys.data is NULL"));
        assert!(message(keys([0].as_ptr(), 0, 1)).contains("key_len is 0"));
        assert!(message(keys([0].as_ptr(), usize::MAX, 2)).contains("more than memory"));
        assert!(message(keys([0].as_ptr(), usize::MAX / 2, 2)).contains("more than memory"));
        assert!(caller.keys(null()).unwrap_err().message.contains("keys is NULL"));
        let data = [1, 2, 3, 4];
        let view = caller.keys(&keys(data.as_ptr(), 2, 2)).unwrap();
        assert_eq!(view.iter().collect::<Vec<_>>(), [[1, 2], [3, 4]]);
    }

    #[test]
    fn an_array_at_an_odd_address_is_refused() {
        let words = [0u32; 2];
        let odd = words.as_ptr().wrapping_byte_add(1);
        assert!(caller().array(odd, 1, "block_indexes").unwrap_err().message.contains("block_indexes is at"));
    }
}
