//! Bytes read as a script: whatever they are, they say something.
#![allow(dead_code, reason = "each body uses its part")]

/// Gives zeros once the bytes are used up.
pub struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Script { rest: bytes }
    }

    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// `0..limit`; `limit` is at most 256.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A length and so many bytes, as far as there are.
    pub fn bytes(&mut self) -> &'a [u8] {
        let count = usize::from(self.byte()).min(self.rest.len());
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        taken
    }

    pub fn everything(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}
