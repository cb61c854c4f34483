//! msgpack values borrowed from a byte slice. Nothing is allocated for what a header claims, and nothing recurses.

use std::fmt;
use std::ops::RangeInclusive;

use rmp::Marker;
use rmp::decode::{RmpRead, ValueReadError, read_marker};
use smallvec::SmallVec;

use crate::protocol::keys::count_alike;

/// A value read, or what was expected and what came instead.
pub(super) type Reading<T> = Result<T, String>;

/// One value; for an array or a map only its header, the elements follow in the reader.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Float,
    Text(&'a [u8]),
    Bin(&'a [u8]),
    Ext(&'a [u8]),
    /// Number of elements.
    Array(usize),
    /// Number of entries.
    Map(usize),
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Nil => f.write_str("nil"),
            Token::Bool(value) => write!(f, "{value}"),
            Token::Unsigned(value) => write!(f, "{value}"),
            Token::Negative(value) => write!(f, "{value}"),
            Token::Float => f.write_str("a float"),
            Token::Text(text) => write!(f, "str of {} bytes", text.len()),
            Token::Bin(bytes) => write!(f, "bin of {} bytes", bytes.len()),
            Token::Ext(bytes) => write!(f, "ext of {} bytes", bytes.len()),
            Token::Array(len) => write!(f, "array of {len}"),
            Token::Map(len) => write!(f, "map of {len}"),
        }
    }
}

impl<'a> Token<'a> {
    pub fn unsigned(self) -> Reading<u64> {
        match self {
            Token::Unsigned(value) => Ok(value),
            other => Err(format!("expected an integer from 0 to 2^64-1, got {other}")),
        }
    }

    pub fn integer_in(self, range: RangeInclusive<u64>) -> Reading<u64> {
        match self {
            Token::Unsigned(value) if range.contains(&value) => Ok(value),
            other => {
                Err(format!("expected an integer from {} to {}, got {other}", range.start(), range.end()))
            }
        }
    }

    pub fn boolean(self) -> Reading<bool> {
        match self {
            Token::Bool(value) => Ok(value),
            other => Err(format!("expected true or false, got {other}")),
        }
    }

    /// UTF-8 text whose length in bytes is one of `lengths`.
    pub fn text(self, lengths: RangeInclusive<usize>) -> Reading<&'a str> {
        match self {
            Token::Text(text) if lengths.contains(&text.len()) => std::str::from_utf8(text).map_err(|why| {
                format!("expected UTF-8 text, got other bytes from byte {} on", why.valid_up_to())
            }),
            other => Err(format!("expected str of {}, got {other}", in_bytes(&lengths))),
        }
    }

    pub fn bin(self, lengths: RangeInclusive<usize>) -> Reading<&'a [u8]> {
        match self {
            Token::Bin(bytes) if lengths.contains(&bytes.len()) => Ok(bytes),
            other => Err(format!("expected bin of {}, got {other}", in_bytes(&lengths))),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// How many bytes are still to be read.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// What is still to be read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub fn token(&mut self) -> Reading<Token<'a>> {
        match self.short_value() {
            Some(token) => Ok(token),
            None => self.any_token(),
        }
    }

    /// The forms that nearly all of a large message is made of: a key, a block index, a hit. Tried first, each costs a
    /// third of what any value may.
    #[inline]
    fn short_value(&mut self) -> Option<Token<'a>> {
        let (token, rest) = match self.rest {
            [value @ ..=0x7f, rest @ ..] => (Token::Unsigned((*value).into()), rest),
            [0xc2, rest @ ..] => (Token::Bool(false), rest),
            [0xc3, rest @ ..] => (Token::Bool(true), rest),
            [0xc4, len, rest @ ..] => {
                let (bytes, rest) = rest.split_at_checked((*len).into())?;
                (Token::Bin(bytes), rest)
            }
            [0xcd, high, low, rest @ ..] => (Token::Unsigned(u16::from_be_bytes([*high, *low]).into()), rest),
            _ => return None,
        };
        self.rest = rest;
        Some(token)
    }

    /// An integer in one of the forms that nearly all block indexes have.
    #[inline]
    pub fn short_unsigned(&mut self) -> Option<u64> {
        let (value, rest) = match self.rest {
            [0xcd, high, low, rest @ ..] => (u16::from_be_bytes([*high, *low]).into(), rest),
            [0xce, a, b, c, d, rest @ ..] => (u32::from_be_bytes([*a, *b, *c, *d]), rest),
            [value @ ..=0x7f, rest @ ..] => (u32::from(*value), rest),
            _ => return None,
        };
        self.rest = rest;
        Some(value.into())
    }

    fn any_token(&mut self) -> Reading<Token<'a>> {
        let marker = read_marker(&mut self.rest).map_err(|_| ends_early())?;
        Ok(match marker {
            Marker::Null => Token::Nil,
            Marker::False => Token::Bool(false),
            Marker::True => Token::Bool(true),
            Marker::FixPos(value) => Token::Unsigned(value.into()),
            Marker::U8 => Token::Unsigned(whole(self.rest.read_data_u8())?.into()),
            Marker::U16 => Token::Unsigned(whole(self.rest.read_data_u16())?.into()),
            Marker::U32 => Token::Unsigned(whole(self.rest.read_data_u32())?.into()),
            Marker::U64 => Token::Unsigned(whole(self.rest.read_data_u64())?),
            Marker::FixNeg(value) => signed(value.into()),
            Marker::I8 => signed(whole(self.rest.read_data_i8())?.into()),
            Marker::I16 => signed(whole(self.rest.read_data_i16())?.into()),
            Marker::I32 => signed(whole(self.rest.read_data_i32())?.into()),
            Marker::I64 => signed(whole(self.rest.read_data_i64())?),
            Marker::F32 => self.bytes(4).map(|_| Token::Float)?,
            Marker::F64 => self.bytes(8).map(|_| Token::Float)?,
            Marker::FixStr(len) => Token::Text(self.bytes(len.into())?),
            Marker::Str8 => Token::Text(self.len8().and_then(|len| self.bytes(len))?),
            Marker::Str16 => Token::Text(self.len16().and_then(|len| self.bytes(len))?),
            Marker::Str32 => Token::Text(self.len32().and_then(|len| self.bytes(len))?),
            Marker::Bin8 => Token::Bin(self.len8().and_then(|len| self.bytes(len))?),
            Marker::Bin16 => Token::Bin(self.len16().and_then(|len| self.bytes(len))?),
            Marker::Bin32 => Token::Bin(self.len32().and_then(|len| self.bytes(len))?),
            Marker::FixArray(len) => self.array(len.into())?,
            Marker::Array16 => self.len16().and_then(|len| self.array(len))?,
            Marker::Array32 => self.len32().and_then(|len| self.array(len))?,
            Marker::FixMap(len) => self.map(len.into())?,
            Marker::Map16 => self.len16().and_then(|len| self.map(len))?,
            Marker::Map32 => self.len32().and_then(|len| self.map(len))?,
            Marker::FixExt1 => self.ext(1)?,
            Marker::FixExt2 => self.ext(2)?,
            Marker::FixExt4 => self.ext(4)?,
            Marker::FixExt8 => self.ext(8)?,
            Marker::FixExt16 => self.ext(16)?,
            Marker::Ext8 => self.len8().and_then(|len| self.ext(len))?,
            Marker::Ext16 => self.len16().and_then(|len| self.ext(len))?,
            Marker::Ext32 => self.len32().and_then(|len| self.ext(len))?,
            Marker::Reserved => return Err("expected a msgpack value, got the reserved byte c1".to_owned()),
        })
    }

    /// The bytes of one whole value, of any kind, with at most `levels` arrays and maps inside one another.
    pub fn raw_value(&mut self, levels: usize) -> Reading<&'a [u8]> {
        let start = self.rest;
        self.skip(levels)?;
        let len = start.len().saturating_sub(self.rest.len());
        start.get(..len).ok_or_else(ends_early)
    }

    /// Every turn of the loop takes at least a byte, so the input's length bounds it whatever the headers claim.
    fn skip(&mut self, levels: usize) -> Reading<()> {
        // Values still to come: at the level being read, and at those around it.
        let mut pending = 1;
        let mut around: SmallVec<[usize; 8]> = SmallVec::new();
        loop {
            while pending == 0 {
                match around.pop() {
                    Some(outer) => pending = outer,
                    None => return Ok(()),
                }
            }
            pending -= self.skip_alike(pending - 1);
            while pending > 1 && self.short_value().is_some() {
                pending -= 1;
            }
            pending -= 1;
            let inside = match self.token()? {
                Token::Array(len) => len,
                // No overflow: `map` let it pass because that many bytes are there.
                Token::Map(len) => len * 2,
                _ => continue,
            };
            if around.len() >= levels {
                return Err(
                    "expected fewer arrays and maps inside one another, got more than the nesting limit"
                        .to_owned(),
                );
            }
            around.push(pending);
            pending = inside;
        }
    }

    /// Passes over neighbours that are bins of one length, as keys mostly are, and tells their number.
    fn skip_alike(&mut self, max: usize) -> usize {
        let (alike, len) = count_alike(self.rest, max);
        self.rest = self.rest.get(alike * (2 + len)..).unwrap_or_default();
        alike
    }

    fn len8(&mut self) -> Reading<usize> {
        Ok(whole(self.rest.read_data_u8())?.into())
    }

    fn len16(&mut self) -> Reading<usize> {
        Ok(whole(self.rest.read_data_u16())?.into())
    }

    fn len32(&mut self) -> Reading<usize> {
        let len = whole(self.rest.read_data_u32())?;
        usize::try_from(len).map_err(|_| format!("expected a length below 2^{}, got {len}", usize::BITS))
    }

    fn bytes(&mut self, len: usize) -> Reading<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or_else(|| {
            format!("expected {len} more bytes as a header claims, got {} up to the end", self.rest.len())
        })?;
        self.rest = rest;
        Ok(bytes)
    }

    /// An element takes at least a byte: a header that claims more than is there is refused before anyone believes it.
    fn array(&self, len: usize) -> Reading<Token<'a>> {
        if len > self.left() {
            return Err(format!(
                "expected an array's {len} elements, got only {} bytes for them",
                self.left()
            ));
        }
        Ok(Token::Array(len))
    }

    fn map(&self, len: usize) -> Reading<Token<'a>> {
        if len > self.left() / 2 {
            return Err(format!("expected a map's {len} entries, got only {} bytes for them", self.left()));
        }
        Ok(Token::Map(len))
    }

    /// The data, without the byte before it that names its kind.
    fn ext(&mut self, len: usize) -> Reading<Token<'a>> {
        self.bytes(1)?;
        Ok(Token::Ext(self.bytes(len)?))
    }
}

fn signed(value: i64) -> Token<'static> {
    u64::try_from(value).map_or(Token::Negative(value), Token::Unsigned)
}

fn whole<T>(read: Result<T, ValueReadError>) -> Reading<T> {
    read.map_err(|_| ends_early())
}

fn ends_early() -> String {
    "expected more bytes, got the end of the message".to_owned()
}

fn in_bytes(lengths: &RangeInclusive<usize>) -> String {
    match (lengths.start(), lengths.end()) {
        (least, most) if least == most => format!("{most} bytes"),
        (0, most) => format!("at most {most} bytes"),
        (least, most) => format!("{least} to {most} bytes"),
    }
}
