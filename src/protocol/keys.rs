//! Keys: opaque bytes that name a block's content. Many at a time, without an allocation each.

use std::borrow::Borrow;

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

    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
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
        for key in keys {
            if !batch.push(key) {
                break;
            }
        }
        batch
    }
}

impl From<KeysView<'_>> for KeyBatch {
    fn from(keys: KeysView<'_>) -> Self {
        keys.iter().collect()
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
