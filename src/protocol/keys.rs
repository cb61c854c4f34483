//! Keys: opaque bytes that name a block's content. Many at a time, without an allocation each.

use std::borrow::Borrow;
use std::ops::{Range, RangeInclusive};

use foldhash::quality::FixedState;
use hashbrown::HashSet;
use smallvec::SmallVec;

/// One owned key. Up to 40 bytes (vLLM's are 36) are held in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
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

/// Owned keys of any lengths, one behind the other: how keys travel inside messages.
///
/// They lie as msgpack writes the elements of an array, each behind its header, so that a message takes them in and gives
/// them out as a whole.
#[derive(Clone, Debug, Default)]
pub struct KeyBatch {
    elements: Vec<u8>,
    len: usize,
    lengths: Lengths,
}

#[derive(Clone, Debug)]
enum Lengths {
    /// All keys have this length.
    Same(usize),
    /// Where each key ends.
    Mixed(Vec<u32>),
}

impl Default for Lengths {
    fn default() -> Self {
        Lengths::Same(0)
    }
}

const BIN_8: u8 = 0xc4;
const BIN_16: u8 = 0xc5;
const BIN_32: u8 = 0xc6;

/// The header of a msgpack bin, in its shortest form.
fn header(key_len: u32) -> SmallVec<[u8; 5]> {
    let [.., high, low] = key_len.to_be_bytes();
    match key_len {
        0..=0xff => SmallVec::from_slice(&[BIN_8, low]),
        0x100..=0xffff => SmallVec::from_slice(&[BIN_16, high, low]),
        _ => {
            let mut bytes = SmallVec::from_slice(&[BIN_32]);
            bytes.extend_from_slice(&key_len.to_be_bytes());
            bytes
        }
    }
}

fn header_len(key_len: usize) -> usize {
    match key_len {
        0..=0xff => 2,
        0x100..=0xffff => 3,
        _ => 5,
    }
}

/// How many elements of a msgpack array are bins like the first one, at most `max`, and the length of each: 0 unless it is
/// below 256 and in the shortest form.
#[must_use]
pub fn count_alike(elements: &[u8], max: usize) -> (usize, usize) {
    let [BIN_8, key_len, ..] = elements else { return (0, 0) };
    let key_len = usize::from(*key_len);
    let all = elements.chunks_exact(2 + key_len).take(max);
    let alike = all.take_while(|element| element.first_chunk() == elements.first_chunk::<2>());
    (alike.count(), key_len)
}

impl KeyBatch {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `bytes`: of all keys together.
    #[must_use]
    pub fn with_capacity(keys: usize, bytes: usize) -> Self {
        let mut batch = KeyBatch::new();
        batch.reserve(keys, bytes);
        batch
    }

    /// The `len` elements of a msgpack array, if they are bins in the shortest form, all of one of these lengths.
    #[must_use]
    pub fn from_elements(elements: &[u8], len: usize, lengths: &RangeInclusive<usize>) -> Option<KeyBatch> {
        let (alike, key_len) = count_alike(elements, len);
        let is_all = alike == len && elements.len() == len * (2 + key_len);
        let is_taken = is_all && lengths.contains(&key_len) && u32::try_from(elements.len()).is_ok();
        is_taken.then(|| KeyBatch { elements: elements.to_vec(), len, lengths: Lengths::Same(key_len) })
    }

    /// The elements of a msgpack array.
    #[must_use]
    pub fn elements(&self) -> &[u8] {
        &self.elements
    }

    /// Appends a key. The total is bounded by the message size limit, far below `u32::MAX`; a key that would
    /// pass it is not taken and `false` is returned.
    #[must_use]
    pub fn push(&mut self, key: &[u8]) -> bool {
        let Ok(key_len) = u32::try_from(key.len()) else { return false };
        let end = self.elements.len() + header_len(key.len()) + key.len();
        let Ok(end) = u32::try_from(end) else { return false };
        self.note_length(key.len(), end);
        self.elements.extend_from_slice(&header(key_len));
        self.elements.extend_from_slice(key);
        self.len += 1;
        true
    }

    /// Appends keys, as long as there is room.
    pub fn append(&mut self, keys: KeysView<'_>) {
        let bytes = (2 + keys.key_len()).saturating_mul(keys.len());
        self.reserve(keys.len(), keys.as_bytes().len());
        match u8::try_from(keys.key_len()) {
            Ok(key_len) if self.is_empty() && u32::try_from(bytes).is_ok() => {
                for key in keys.iter() {
                    self.elements.extend_from_slice(&[BIN_8, key_len]);
                    self.elements.extend_from_slice(key);
                }
                self.len = keys.len();
                self.lengths = Lengths::Same(keys.key_len());
            }
            _ => self.extend(keys.iter()),
        }
    }

    fn note_length(&mut self, key_len: usize, end: u32) {
        match &mut self.lengths {
            lengths @ Lengths::Same(_) if self.len == 0 => *lengths = Lengths::Same(key_len),
            Lengths::Same(same) if *same == key_len => {}
            Lengths::Same(same) => {
                let stride = header_len(*same) + *same;
                let ends = (1..=self.len).map(|count| u32::try_from(count * stride).unwrap_or(u32::MAX));
                self.lengths = Lengths::Mixed(ends.chain([end]).collect());
            }
            Lengths::Mixed(ends) => ends.push(end),
        }
    }

    /// Makes room for so many more keys of so many bytes in all, none longer than 255.
    pub fn reserve(&mut self, keys: usize, bytes: usize) {
        self.elements.reserve(bytes + 2 * keys);
        if let Lengths::Mixed(ends) = &mut self.lengths {
            ends.reserve(keys);
        }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Of all keys together, with a few for each that tell its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.elements.len()
    }

    /// Bytes that fit without another allocation.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.elements.capacity()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets the keys from this position on, and gives their memory back.
    pub fn truncate(&mut self, len: usize) {
        let Some(end) = self.element_start(len) else { return };
        self.elements.truncate(end);
        self.elements.shrink_to_fit();
        if let Lengths::Mixed(ends) = &mut self.lengths {
            ends.truncate(len);
            ends.shrink_to_fit();
        }
        self.len = len.min(self.len);
    }

    pub fn clear(&mut self) {
        self.elements.clear();
        self.len = 0;
        self.lengths = Lengths::default();
    }

    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        if let Lengths::Same(key_len) = self.lengths {
            let start = index * (header_len(key_len) + key_len) + header_len(key_len);
            return self.elements.get(start..start + key_len).filter(|_| index < self.len);
        }
        let element = self.span(&(index..index + 1))?;
        let header_len = match *element.first()? {
            BIN_8 => 2,
            BIN_16 => 3,
            _ => 5,
        };
        element.get(header_len..)
    }

    /// Where this element begins; the one behind the last begins at the end.
    fn element_start(&self, index: usize) -> Option<usize> {
        match &self.lengths {
            Lengths::Same(key_len) => (index <= self.len).then(|| index * (header_len(*key_len) + key_len)),
            Lengths::Mixed(ends) => match index.checked_sub(1) {
                Some(previous) => ends.get(previous).map(|end| *end as usize),
                None => Some(0),
            },
        }
    }

    /// The keys at these positions; as far as there are any.
    #[must_use]
    pub fn part(&self, positions: Range<usize>) -> KeyBatch {
        match (&self.lengths, self.span(&positions)) {
            (_, None) => KeyBatch::new(),
            (Lengths::Same(key_len), Some(elements)) => {
                let (elements, lengths) = (elements.to_vec(), Lengths::Same(*key_len));
                KeyBatch { elements, len: positions.len(), lengths }
            }
            (Lengths::Mixed(_), Some(_)) => positions.filter_map(|position| self.get(position)).collect(),
        }
    }

    /// Whether the keys at these positions are `other`, in the same order.
    #[must_use]
    pub fn part_is(&self, positions: &Range<usize>, other: &KeyBatch) -> bool {
        self.span(positions).is_some_and(|elements| elements == other.elements)
    }

    fn span(&self, positions: &Range<usize>) -> Option<&[u8]> {
        self.elements.get(self.element_start(positions.start)?..self.element_start(positions.end)?)
    }

    /// Whether a key is there twice.
    #[must_use]
    pub fn has_doubles(&self, hasher: FixedState) -> bool {
        let mut seen = HashSet::with_capacity_and_hasher(self.len, hasher);
        !self.iter().all(|key| seen.insert(key))
    }

    /// The keys as they cross the C API, one batch for each run of neighbours of the same length.
    pub fn runs(&self) -> impl Iterator<Item = PackedKeys> {
        let mut first = 0;
        std::iter::from_fn(move || {
            let key_len = self.get(first)?.len();
            let keys = (first..self.len).map_while(|at| self.get(at).filter(|key| key.len() == key_len));
            let mut packed = PackedKeys { data: Vec::new(), key_len };
            for key in keys {
                packed.data.extend_from_slice(key);
                first += 1;
            }
            Some(packed)
        })
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.iter_from(0)
    }

    /// The keys from this position on.
    pub fn iter_from(&self, first: usize) -> impl ExactSizeIterator<Item = &[u8]> {
        (first..self.len).map(|index| self.get(index).unwrap_or_default())
    }
}

/// Each element tells its own length: the same elements are the same keys.
impl PartialEq for KeyBatch {
    fn eq(&self, other: &Self) -> bool {
        self.elements == other.elements
    }
}

impl Eq for KeyBatch {}

/// Owned keys of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedKeys {
    data: Vec<u8>,
    key_len: usize,
}

impl PackedKeys {
    /// `None` if the keys have no bytes.
    #[must_use]
    pub fn view(&self) -> Option<KeysView<'_>> {
        KeysView::new(&self.data, self.key_len)
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
        let mut batch = KeyBatch::new();
        batch.append(keys);
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
    fn keys_of_every_length_come_back_whether_alike_or_not() {
        for lengths in [[1, 1, 1], [36, 36, 255], [255, 256, 257], [300, 300, 300], [70_000, 1, 70_000]] {
            let keys: Vec<Vec<u8>> = lengths.iter().zip(1..).map(|(len, fill)| vec![fill; *len]).collect();
            let mut batch: KeyBatch = keys.iter().map(Vec::as_slice).collect();
            assert_eq!(batch.iter().collect::<Vec<_>>(), keys);
            assert_eq!((batch.len(), batch.get(3)), (3, None));
            assert_eq!(batch.part(1..3).iter().collect::<Vec<_>>(), keys[1..]);
            assert_eq!(batch.part(1..1), KeyBatch::new());
            batch.clear();
            assert!(batch.is_empty() && batch.push(b"anew") && batch.get(0) == Some(b"anew"));
        }
    }

    #[test]
    fn keys_that_are_appended_together_lie_as_those_that_come_one_by_one() {
        let long = [7; 600];
        for (data, key_len) in [(&b"aabb"[..], 2), (&b""[..], 2), (&long[..], 300), (&long[..], 255 - 55)] {
            let view = KeysView::new(data, key_len).unwrap();
            let one_by_one: KeyBatch = view.iter().collect();
            let mut batch = KeyBatch::from(view);
            assert_eq!(batch, one_by_one);
            assert_eq!(batch.iter().collect::<Vec<_>>(), view.iter().collect::<Vec<_>>());
            batch.append(KeysView::new(b"xyz", 3).unwrap());
            assert_eq!(batch.get(view.len()), Some(&b"xyz"[..]));
        }
    }

    #[test]
    fn elements_are_taken_as_a_whole_only_if_they_are_alike_and_allowed() {
        let alike: KeyBatch = [b"ab", b"cd", b"ef"].into_iter().map(<[u8; 2]>::as_slice).collect();
        let taken = |elements: &[u8], len| KeyBatch::from_elements(elements, len, &(1..=4));
        let whole = taken(alike.elements(), 3).unwrap();
        assert_eq!((&whole, whole.get(2), whole.get(3)), (&alike, Some(&b"ef"[..]), None));
        assert_eq!(taken(alike.elements(), 2), None, "more bytes than elements");
        assert_eq!(taken(alike.elements(), 4), None, "fewer");
        assert_eq!(KeyBatch::from_elements(alike.elements(), 3, &(3..=4)), None, "too short");
        assert_eq!(taken(&[BIN_16, 0, 1, b'a'], 1), None, "not the shortest form");
        assert_eq!(taken(&[BIN_8, 1, b'a', BIN_8, 2, b'b', b'c'], 2), None, "of two lengths");
        assert_eq!(taken(&[BIN_8, 2, b'a'], 1), None, "cut off");
        assert_eq!(taken(&[BIN_8, 0], 1), None, "without a byte");
    }

    #[test]
    fn a_part_is_the_keys_at_its_positions() {
        let keys: [&[u8]; 4] = [b"aa", b"b", b"ccc", b"d"];
        let batch: KeyBatch = keys.into_iter().collect();
        for (start, end) in [(0, 0), (0, 4), (1, 3), (3, 4), (4, 4)] {
            let part = batch.part(start..end);
            assert_eq!(part.iter().collect::<Vec<_>>(), keys[start..end]);
            assert!(batch.part_is(&(start..end), &part));
        }
        assert!(batch.part(3..5).is_empty());
        let same_bytes: KeyBatch = [&b"bc"[..], b"cc"].into_iter().collect();
        assert!(!batch.part_is(&(1..3), &same_bytes));
        assert!(!batch.part_is(&(1..4), &batch.part(1..3)));
    }

    #[test]
    fn runs_are_neighbours_of_one_length() {
        let keys: [&[u8]; 5] = [b"aa", b"bb", b"c", b"d", b"ee"];
        let batch: KeyBatch = keys.into_iter().collect();
        let runs: Vec<PackedKeys> = batch.runs().collect();
        let packed = |data: &[u8], key_len| PackedKeys { data: data.to_vec(), key_len };
        assert_eq!(runs, [packed(b"aabb", 2), packed(b"cd", 1), packed(b"ee", 2)]);
    }

    #[test]
    fn view_wants_whole_keys() {
        assert!(KeysView::new(b"abcd", 3).is_none());
        assert!(KeysView::new(b"abcd", 0).is_none());
        assert_eq!(KeysView::new(b"abcd", 2).unwrap().iter().collect::<Vec<_>>(), [b"ab", b"cd"]);
    }
}
