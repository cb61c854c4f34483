//! Keys: opaque bytes that name a block's content. Many at a time, without an allocation each.

use std::borrow::Borrow;
use std::ops::Range;

use smallvec::SmallVec;

/// One owned key. Up to 40 bytes (vLLM's are 36) are held in place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(SmallVec<[u8; 40]>);

impl Key {
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Key(SmallVec::from_slice(bytes))
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

// As the bytes hash, so that a table keyed by `Key` can be asked with `&[u8]`.
impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// Borrowed keys of one length, one behind the other: how keys cross the C API.
#[derive(Clone, Copy, Debug)]
pub struct KeysView<'a> {
    data: &'a [u8],
    key_len: usize,
}

impl<'a> KeysView<'a> {
    pub const EMPTY: KeysView<'static> = KeysView { data: &[], key_len: 1 };

    /// `None` unless `data` is a whole number of keys of `key_len` > 0 bytes.
    #[must_use]
    pub fn new(data: &'a [u8], key_len: usize) -> Option<Self> {
        (key_len > 0 && data.len().is_multiple_of(key_len)).then_some(KeysView { data, key_len })
    }

    /// All keys, one behind the other.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.data
    }

    #[must_use]
    pub fn key_len(&self) -> usize {
        self.key_len
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len() / self.key_len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.data.chunks_exact(self.key_len)
    }
}

/// Owned keys of any lengths in two allocations: how keys travel inside messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyBatch {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl KeyBatch {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn with_capacity(keys: usize, bytes: usize) -> Self {
        KeyBatch { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(keys) }
    }

    /// Appends a key. The total is bounded by the message size limit, far below `u32::MAX`; a key that would
    /// pass it is not taken and `false` is returned.
    #[must_use]
    pub fn push(&mut self, key: &[u8]) -> bool {
        let Ok(end) = u32::try_from(self.bytes.len() + key.len()) else { return false };
        self.bytes.extend_from_slice(key);
        self.ends.push(end);
        true
    }

    /// Makes room for so many more keys of so many bytes in all.
    pub fn reserve(&mut self, keys: usize, bytes: usize) {
        self.ends.reserve(keys);
        self.bytes.reserve(bytes);
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Of all keys together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = match index.checked_sub(1) {
            Some(previous) => *self.ends.get(previous)? as usize,
            None => 0,
        };
        self.bytes.get(start..end)
    }

    /// A copy of the keys at these positions; as far as there are any.
    #[must_use]
    pub fn part(&self, positions: Range<usize>) -> KeyBatch {
        let Some((start, bytes, ends)) = self.span(positions) else { return KeyBatch::new() };
        KeyBatch { bytes: bytes.to_vec(), ends: ends.iter().map(|end| end - start).collect() }
    }

    /// Whether the keys at these positions are `other`, in the same order.
    #[must_use]
    pub fn part_is(&self, positions: Range<usize>, other: &KeyBatch) -> bool {
        self.span(positions).is_some_and(|(start, bytes, ends)| {
            let same_lengths = || ends.iter().zip(&other.ends).all(|(ours, theirs)| ours - start == *theirs);
            ends.len() == other.ends.len() && bytes == other.bytes && same_lengths()
        })
    }

    /// Where the keys at these positions begin, their bytes, and where each ends.
    fn span(&self, positions: Range<usize>) -> Option<(u32, &[u8], &[u32])> {
        let start = match positions.start.checked_sub(1) {
            Some(previous) => *self.ends.get(previous)?,
            None => 0,
        };
        let ends = self.ends.get(positions)?;
        let end = ends.last().copied().unwrap_or(start);
        Some((start, self.bytes.get(start as usize..end as usize)?, ends))
    }

    /// The keys as views, one for each run of neighbours of the same length.
    pub fn runs(&self) -> impl Iterator<Item = KeysView<'_>> {
        let mut first = 0;
        std::iter::from_fn(move || {
            let key_len = self.get(first)?.len();
            let same =
                (first..self.len()).take_while(|at| self.get(*at).is_some_and(|key| key.len() == key_len));
            let count = same.count();
            let start = first
                .checked_sub(1)
                .map_or(0, |previous| self.ends.get(previous).map_or(0, |end| *end as usize));
            first += count;
            KeysView::new(self.bytes.get(start..start + count * key_len)?, key_len)
        })
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let key = self.bytes.get(start..end as usize).unwrap_or_default();
            start = end as usize;
            key
        })
    }
}

impl<'a> FromIterator<&'a [u8]> for KeyBatch {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(keys: I) -> Self {
        let mut batch = KeyBatch::new();
        batch.extend(keys);
        batch
    }
}

/// Takes keys as long as there is room.
impl<'a> Extend<&'a [u8]> for KeyBatch {
    fn extend<I: IntoIterator<Item = &'a [u8]>>(&mut self, keys: I) {
        for key in keys {
            if !self.push(key) {
                break;
            }
        }
    }
}

impl From<KeysView<'_>> for KeyBatch {
    fn from(keys: KeysView<'_>) -> Self {
        let mut batch = KeyBatch::with_capacity(keys.len(), keys.as_bytes().len());
        batch.extend(keys.iter());
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_gives_back_what_was_pushed() {
        let keys: [&[u8]; 4] = [b"a", b"", b"long key", b"b"];
        let batch: KeyBatch = keys.into_iter().collect();
        assert_eq!(batch.len(), 4);
        assert_eq!(batch.iter().collect::<Vec<_>>(), keys);
        assert_eq!((0..4).map(|i| batch.get(i).unwrap()).collect::<Vec<_>>(), keys);
        assert_eq!(batch.get(4), None);
    }

    #[test]
    fn a_part_is_the_keys_at_its_positions() {
        let keys: [&[u8]; 4] = [b"aa", b"b", b"ccc", b"d"];
        let batch: KeyBatch = keys.into_iter().collect();
        for (start, end) in [(0, 0), (0, 4), (1, 3), (3, 4), (4, 4)] {
            let part = batch.part(start..end);
            assert_eq!(part.iter().collect::<Vec<_>>(), keys[start..end]);
            assert!(batch.part_is(start..end, &part));
        }
        assert!(batch.part(3..5).is_empty());
        let same_bytes: KeyBatch = [&b"bc"[..], b"cc"].into_iter().collect();
        assert!(!batch.part_is(1..3, &same_bytes));
        assert!(!batch.part_is(1..4, &batch.part(1..3)));
    }

    #[test]
    fn runs_are_neighbours_of_one_length() {
        let keys: [&[u8]; 5] = [b"aa", b"bb", b"c", b"d", b"ee"];
        let batch: KeyBatch = keys.into_iter().collect();
        let runs: Vec<Vec<&[u8]>> = batch.runs().map(|run| run.iter().collect()).collect();
        assert_eq!(runs, [vec![&b"aa"[..], b"bb"], vec![b"c", b"d"], vec![b"ee"]]);
    }

    #[test]
    fn view_wants_whole_keys() {
        assert!(KeysView::new(b"abcd", 3).is_none());
        assert!(KeysView::new(b"abcd", 0).is_none());
        assert_eq!(KeysView::new(b"abcd", 2).unwrap().iter().collect::<Vec<_>>(), [b"ab", b"cd"]);
    }
}
