//! What an ended round held, on its way back: pins, and the keys that it wanted. It can be much, and then it is let go a
//! slice at a time; nobody finds the round any more meanwhile. Its memory goes along: to free very much of it at once takes
//! long, too.

use crate::protocol::context::Context;
use crate::protocol::directory::Pin;
use crate::protocol::ids::{BlockIndex, WaiterId};
use crate::protocol::keys::KeyBatch;
use crate::protocol::steps::{KEY, Slice};

use super::supply::Source;
use super::unmet::Unmet;

#[derive(Debug)]
pub struct Remains {
    pub supply: Vec<(BlockIndex, Source)>,
    pub pins: Vec<Pin>,
    pub unmet: Unmet,
    /// Under which the keys of `unmet` are wanted.
    pub waiter: Option<WaiterId>,
    /// Of a fetch that has been matched.
    pub spent: KeyBatch,
}

impl Remains {
    /// In the units of a slice.
    pub fn size(&self) -> usize {
        KEY * (self.supply.len() + self.pins.len() + self.unmet.len() + self.spent.len())
    }

    pub fn let_go(&mut self, cx: &mut Context, slice: &mut Slice) {
        while !slice.is_spent() && self.let_go_one(cx) {
            slice.spend(KEY);
        }
        let some = self.spent.len().min(slice.left());
        slice.spend(KEY * some);
        self.spent.truncate(self.spent.len() - some);
        self.supply.shrink_to_fit();
        self.pins.shrink_to_fit();
        self.unmet.shrink();
    }

    pub fn let_go_all(mut self, cx: &mut Context) {
        while self.let_go_one(cx) {}
    }

    fn let_go_one(&mut self, cx: &mut Context) -> bool {
        if let Some(pin) = self.pins.pop() {
            cx.directory.unpin(pin);
            return true;
        }
        if let Some((_, source)) = self.supply.pop() {
            if let Source::Directory(pin) = source {
                cx.directory.unpin(pin);
            }
            return true;
        }
        let Some(waiting) = self.unmet.forget_last() else { return false };
        if let (Some(key), Some(waiter)) = (waiting, self.waiter) {
            cx.wanted.remove(key, waiter);
        }
        true
    }
}
