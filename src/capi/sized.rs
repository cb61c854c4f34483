//! Structs that may grow: a caller and a library of different versions still understand each other.
//!
//! Two forms. **Size first**: the struct begins with its own size. **Elements**: arrays whose element size is a
//! parameter. Both only ever grow at the end.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::guard::Failure;
use super::status::p2p_status;

/// # Safety
/// `repr(C)`, the first field is `struct_size: usize`, and all bytes zero is a valid value.
pub(super) unsafe trait SizeFirst: Copy {
    /// Its name in C, and the function that prepares one.
    const C_NAME: &'static str;
    const ADVICE: &'static str;
}

/// # Safety
/// `repr(C)` without padding.
pub(super) unsafe trait Element: Copy {
    const C_NAME: &'static str;
    /// Its size in the first release: no caller can know a smaller one.
    const FIRST_SIZE: usize;
}

/// A size beyond this is not a struct of a later version but memory that nobody initialised.
const MAX_STRUCT_SIZE: usize = 4096;

/// Reads a struct of any version: short = the rest is zero; long = fine while what we do not know is zero.
///
/// # Safety
/// `pointer` must point to at least a `usize`, and if that is a plausible size, to that many bytes.
pub(super) unsafe fn read<T: SizeFirst>(pointer: *const T, parameter: &str) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { pointer.cast::<usize>().read() };
    check_size::<T>(given, parameter)?;
    let ours = size_of::<T>();
    if given > ours {
        // SAFETY: `given` bytes were promised.
        let tail = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>().add(ours), given - ours) };
        if let Some(at) = tail.iter().position(|&byte| byte != 0) {
            return Err(Failure::new(
                p2p_status::UNSUPPORTED,
                format!(
                    "{parameter} has a field at byte {} that is set; this library's {} ends at {ours}. Leave it 0 or \
                     use a newer library",
                    ours + at,
                    T::C_NAME
                ),
            ));
        }
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both sides have `min` bytes; a `T` of zeros with any prefix of a `T` is a `T` (see `SizeFirst`).
    unsafe {
        value.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(pointer.cast::<u8>(), given.min(ours));
        Ok(value.assume_init())
    }
}

/// Zeroes `size` bytes and writes `size` at their beginning.
///
/// # Safety
/// `pointer` must point to `size` writable bytes, if that is a plausible size.
pub(super) unsafe fn init<T: SizeFirst>(
    pointer: *mut T,
    size: usize,
    size_parameter: &str,
) -> Result<(), Failure> {
    if !(size_of::<usize>()..=MAX_STRUCT_SIZE).contains(&size) {
        return Err(Failure::invalid(format!("{size_parameter} is {size}, expected sizeof({})", T::C_NAME)));
    }
    // SAFETY: the caller's promise.
    unsafe {
        pointer.cast::<u8>().write_bytes(0, size);
        pointer.cast::<usize>().write(size);
    }
    Ok(())
}

/// A struct to be written over one whose size the caller has set.
pub(super) struct OutSizeFirst<T> {
    to: NonNull<u8>,
    size: usize,
    value: PhantomData<T>,
}

impl<T: SizeFirst> OutSizeFirst<T> {
    /// # Safety
    /// As [`read`], and writable until `set`.
    pub(super) unsafe fn new(pointer: NonNull<T>, parameter: &str) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let size = unsafe { pointer.cast::<usize>().read() };
        check_size::<T>(size, parameter)?;
        Ok(OutSizeFirst { to: pointer.cast(), size, value: PhantomData })
    }

    /// Writes what fits, zeroes what the caller has beyond it, and leaves `struct_size` as it is.
    pub(super) fn set(self, value: &T) {
        let head = size_of::<usize>();
        let common = self.size.min(size_of::<T>());
        // SAFETY: `size` writable bytes were promised, `head <= common <= size`; zero bytes and copies of a valid
        // `T` are what the caller expects there.
        unsafe {
            let from = (&raw const *value).cast::<u8>();
            self.to.as_ptr().add(head).copy_from_nonoverlapping(from.add(head), common - head);
            self.to.as_ptr().add(common).write_bytes(0, self.size - common);
        }
    }
}

fn check_size<T: SizeFirst>(given: usize, parameter: &str) -> Result<(), Failure> {
    if (size_of::<usize>()..=MAX_STRUCT_SIZE).contains(&given) {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "{parameter}.struct_size is {given}, expected sizeof({}) = {}; {}",
        T::C_NAME,
        size_of::<T>(),
        T::ADVICE
    )))
}

#[cfg(test)]
mod tests {
    use super::super::pointers::Caller;
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Now {
        struct_size: usize,
        old: u64,
        new: u64,
    }

    // SAFETY: three integers.
    unsafe impl SizeFirst for Now {
        const C_NAME: &'static str = "now";
        const ADVICE: &'static str = "set it";
    }
    // SAFETY: three integers of one size.
    unsafe impl Element for Now {
        const C_NAME: &'static str = "now";
        const FIRST_SIZE: usize = 16;
    }

    fn caller() -> Caller {
        // SAFETY: the tests pass pointers to live arrays of the size they say.
        unsafe { Caller::trust() }
    }

    fn read_words(words: &[usize]) -> Result<Now, Failure> {
        caller().size_first(words.as_ptr().cast::<Now>(), "now")
    }

    #[test]
    fn a_short_struct_is_filled_up_with_zeros() {
        assert_eq!(read_words(&[16, 7, 999]).unwrap(), Now { struct_size: 16, old: 7, new: 0 });
    }

    #[test]
    fn an_equal_struct_is_taken_as_it_is() {
        assert_eq!(read_words(&[24, 7, 8]).unwrap(), Now { struct_size: 24, old: 7, new: 8 });
    }

    #[test]
    fn a_long_struct_is_taken_while_its_tail_is_zero() {
        assert_eq!(read_words(&[40, 7, 8, 0, 0]).unwrap(), Now { struct_size: 40, old: 7, new: 8 });
    }

    #[test]
    fn a_long_struct_with_a_set_tail_is_unsupported() {
        let failure = read_words(&[40, 7, 8, 0, 1]).unwrap_err();
        assert_eq!(failure.status, p2p_status::UNSUPPORTED);
        assert!(failure.message.contains("byte 32"), "{}", failure.message);
    }

    #[test]
    fn a_size_that_cannot_be_one_is_refused_before_the_rest_is_read() {
        for size in [0, 7, 4097, usize::MAX] {
            let failure = read_words(&[size]).unwrap_err();
            assert_eq!(failure.status, p2p_status::INVALID_ARGUMENT);
            assert!(failure.message.contains("now.struct_size"), "{}", failure.message);
        }
    }

    #[test]
    fn an_output_struct_gets_what_fits_and_zeros_behind() {
        let value = Now { struct_size: 24, old: 1, new: 2 };
        for (size, expected) in
            [(8usize, [8, 9, 9, 9]), (16, [16, 1, 9, 9]), (24, [24, 1, 2, 9]), (32, [32, 1, 2, 0])]
        {
            let mut words = [size, 9, 9, 9];
            caller().out_size_first(words.as_mut_ptr().cast::<Now>(), "now").unwrap().set(&value);
            assert_eq!(words, expected);
        }
    }

    #[test]
    fn elements_are_cut_or_padded_to_the_callers_size() {
        let values = [Now { struct_size: 1, old: 2, new: 3 }, Now { struct_size: 4, old: 5, new: 6 }];
        let write = |size: usize| {
            let mut words = [9usize; 9];
            let out =
                caller().out_elements(words.as_mut_ptr().cast::<Now>(), size, "size", 2, "out").unwrap();
            assert_eq!(out.set(values), 2);
            words
        };
        assert_eq!(write(16), [1, 2, 4, 5, 9, 9, 9, 9, 9]);
        assert_eq!(write(24), [1, 2, 3, 4, 5, 6, 9, 9, 9]);
        assert_eq!(write(32), [1, 2, 3, 0, 4, 5, 6, 0, 9]);
    }

    #[test]
    fn elements_smaller_than_the_first_release_are_refused() {
        let mut words = [0usize; 4];
        let out = caller().out_elements(words.as_mut_ptr().cast::<Now>(), 8, "result_size", 1, "out");
        assert!(out.err().unwrap().message.contains("result_size is 8"));
        let out = caller().out_elements(words.as_mut_ptr().cast::<Now>(), 24, "size", usize::MAX, "out");
        assert!(out.err().unwrap().message.contains("more than memory"));
    }
}
