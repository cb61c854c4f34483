//! The fields of one map by name, each checked for its type when it is taken.

use smallvec::SmallVec;

use super::reader::{Reader, Reading, Token};

/// Where the known fields of one map lie. What is not known is left out, so the size is bounded by the names.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    /// Path of the map, for errors: empty or ending in a dot.
    within: &'static str,
    found: SmallVec<[(&'static str, &'a [u8]); 10]>,
}

impl<'a> Fields<'a> {
    pub fn new(within: &'static str) -> Self {
        Fields { within, found: SmallVec::new() }
    }

    /// Reads one map, with at most `levels` arrays and maps inside one another in its values. After an error,
    /// what was found before it is there.
    pub fn fill(&mut self, reader: &mut Reader<'a>, names: &[&'static str], levels: usize) -> Reading<()> {
        let entries = match reader.token()? {
            Token::Map(entries) => entries,
            other => return Err(format!("expected a map, got {other}")),
        };
        for _ in 0..entries {
            let key = reader.raw_value(levels)?;
            let Some(name) = known_name(key, names) else {
                reader.raw_value(levels)?;
                continue;
            };
            let path = self.within;
            let value = reader.raw_value(levels).map_err(|why| format!("`{path}{name}`: {why}"))?;
            if self.optional(name).is_some() {
                return Err(format!("expected `{path}{name}` once, got it twice"));
            }
            self.found.push((name, value));
        }
        Ok(())
    }

    pub fn optional(&self, name: &'static str) -> Option<Value<'a>> {
        let raw = self.found.iter().find(|(found, _)| *found == name).map(|(_, raw)| *raw)?;
        Some(Value { within: self.within, name, raw })
    }

    pub fn required(&self, name: &'static str) -> Reading<Value<'a>> {
        self.optional(name).ok_or_else(|| format!("expected `{}{name}`, got a map without it", self.within))
    }
}

fn known_name(key: &[u8], names: &[&'static str]) -> Option<&'static str> {
    match Reader::new(key).token() {
        Ok(Token::Text(text)) => names.iter().find(|name| name.as_bytes() == text).copied(),
        _ => None,
    }
}

/// One field's value, structurally sound but of any type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'a> {
    within: &'static str,
    name: &'static str,
    raw: &'a [u8],
}

impl<'a> Value<'a> {
    /// Reads it as what `take` wants, as in `value.read(Token::unsigned)`.
    pub fn read<T>(self, take: impl FnOnce(Token<'a>) -> Reading<T>) -> Reading<T> {
        Reader::new(self.raw).token().and_then(take).map_err(|why| self.named(&why))
    }

    /// An array of at most `max` elements.
    pub fn array(self, max: usize) -> Reading<Elements<'a>> {
        let mut reader = Reader::new(self.raw);
        match reader.token()? {
            Token::Array(len) if len <= max => Ok(Elements { of: self, len, taken: 0, reader }),
            other => Err(self.named(&format!("expected an array of at most {max}, got {other}"))),
        }
    }

    /// A map. `path`: this value's own, ending in a dot.
    pub fn map(self, path: &'static str, names: &[&'static str], levels: usize) -> Reading<Fields<'a>> {
        let mut fields = Fields::new(path);
        fields.fill(&mut Reader::new(self.raw), names, levels).map_err(|why| self.named(&why))?;
        Ok(fields)
    }

    fn named(self, why: &str) -> String {
        format!("`{}{}`: {why}", self.within, self.name)
    }
}

/// The elements of one array, one after the other.
#[derive(Debug)]
pub(super) struct Elements<'a> {
    of: Value<'a>,
    len: usize,
    taken: usize,
    reader: Reader<'a>,
}

impl<'a> Elements<'a> {
    /// How many there are in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes in which the elements still to come lie.
    pub fn left(&self) -> &'a [u8] {
        self.reader.rest()
    }

    /// Reads all of them as integers from 0 up.
    pub fn unsigned(mut self) -> Reading<Vec<u64>> {
        let mut values = Vec::with_capacity(self.len);
        for _ in 0..self.len {
            match self.reader.short_unsigned() {
                Some(value) => {
                    self.taken += 1;
                    values.push(value);
                }
                None => values.push(self.next(Token::unsigned)?),
            }
        }
        Ok(values)
    }

    /// Reads the next one as what `take` wants.
    pub fn next<T>(&mut self, take: impl FnOnce(Token<'a>) -> Reading<T>) -> Reading<T> {
        let index = self.taken;
        self.taken += 1;
        self.reader.token().and_then(take).map_err(|why| self.of.named(&format!("[{index}]: {why}")))
    }
}
