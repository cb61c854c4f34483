//! What the peer asks of this role, in the order in which it came: what is large is done a slice at a time, and what
//! comes meanwhile waits behind it.
//!
//! ```text
//!            fetch, lookup, end of an id                all of it done
//!   (idle) ──────────────────────────────► Task ──────────────────────────► (idle), or the next that waits
//!                                          │  ▲
//!                                          └──┘ a slice: some keys of it, some rounds
//! ```
//!
//! A task holds nothing that others do not see too: the round of a fetch has its demand from the first slice on, and
//! stores, publications, transfers and the end of the producer's request find it as they find any other. If the round ends
//! in between, the rest of the fetch is dropped.

use crate::protocol::context::{Cause, Context};
use crate::protocol::ids::{BlockIndex, BlockPair, KvRequestId, RoundSeq, ServeId};
use crate::protocol::job::Outcome;
use crate::protocol::keys::KeyBatch;
use crate::protocol::message::Message;
use crate::protocol::mutation::{self, Mutation};
use crate::protocol::steps::{ITEM, KEY, Slice};

use super::lookups::LookupTask;
use super::remains::Remains;
use super::round::Reply;
use super::unmet::Unmet;
use super::{ServerRole, Violation};

#[derive(Debug)]
pub enum Task {
    EndOfId { id: KvRequestId, after: Option<RoundSeq> },
    Fetch(FetchTask),
    Lookup(LookupTask),
}

#[derive(Debug)]
pub struct FetchTask {
    pub name: (KvRequestId, RoundSeq),
    pub keys: KeyBatch,
    pub blocks: Vec<BlockIndex>,
    /// Why what nothing meets now will not be met later; `None` if it may.
    pub refusal: Option<String>,
    /// The last of the round's lookups that was settled.
    pub settled: ServeId,
    /// So many keys were matched, and this is what they gave that is not written yet.
    pub matched: usize,
    pub pairs: Vec<BlockPair>,
}

impl ServerRole {
    /// The peer has to wait before more of this role can be asked.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.task.is_some() || !self.waiting.is_empty()
    }

    /// Takes a message that has to wait. It counts as what it asks for will.
    pub fn wait(&mut self, cx: &Context, message: Message) -> Result<(), Violation> {
        self.check_room(cx)?;
        let keys = keys_of(&message);
        self.check_keys(cx, keys)?;
        self.keys_waiting += keys;
        self.waiting.push_back(message);
        Ok(())
    }

    /// The message whose turn it is, and what it costs to take it.
    pub fn next_waiting(&mut self) -> Option<(Message, usize)> {
        if self.task.is_some() {
            return None;
        }
        let message = self.waiting.pop_front()?;
        let keys = keys_of(&message);
        self.keys_waiting -= keys;
        Some((message, ITEM + KEY * keys))
    }

    /// Begins a task; what is small is done with that.
    pub(super) fn begin(&mut self, cx: &mut Context, task: Task) {
        self.task = Some(task);
        self.do_task(cx, &mut Slice::new(cx.config.slice));
        if self.task.is_some() {
            cx.busy.insert(self.session);
        }
    }

    pub(super) fn do_task(&mut self, cx: &mut Context, slice: &mut Slice) {
        if slice.is_spent() {
            return;
        }
        self.task = match self.task.take() {
            None => None,
            Some(Task::EndOfId { id, after }) => self.end_id_slice(cx, id, after, slice),
            Some(Task::Fetch(fetch)) => self.fetch_slice(cx, fetch, slice),
            Some(Task::Lookup(lookup)) => self.lookup_slice(cx, lookup, slice),
        };
    }

    /// Ends lookups and rounds of the id. The task again, if some are left.
    pub(super) fn end_id_slice(
        &mut self,
        cx: &mut Context,
        id: KvRequestId,
        mut after: Option<RoundSeq>,
        slice: &mut Slice,
    ) -> Option<Task> {
        while !slice.is_spent() {
            slice.spend(ITEM);
            if self.drop_lookup_of(cx, &id) {
                continue;
            }
            let (name, size) = self.next_round_of(&id, after)?;
            after = Some(name.1);
            slice.spend(size.min(cx.config.slice));
            let cause =
                Cause::new(Outcome::NotFetched, "the peer ended the id without asking for these blocks");
            self.end(cx, &name, cause, Reply::Nothing);
        }
        Some(Task::EndOfId { id, after })
    }

    fn fetch_slice(&mut self, cx: &mut Context, mut fetch: FetchTask, slice: &mut Slice) -> Option<Task> {
        while let Some(serve) = self.next_lookup_of(&fetch.name, fetch.settled) {
            if slice.is_spent() {
                return Some(Task::Fetch(fetch));
            }
            slice.spend(ITEM);
            fetch.settled = serve;
            self.on_serve_deadline(cx, &fetch.name.0, fetch.name.1, serve);
        }
        if slice.is_spent() {
            return Some(Task::Fetch(fetch));
        }
        let session = self.session;
        let round = self.rounds.get_mut(&fetch.name).filter(|round| round.is_matching());
        let Some(round) = round else { return self.is_matched(cx, fetch) };
        let some = fetch.matched..fetch.blocks.len().min(fetch.matched.saturating_add(slice.left()));
        slice.spend(KEY * some.len());
        fetch.matched = some.end;
        round.demand(cx, (session, &fetch.name), &fetch.keys, &fetch.blocks, some, &mut fetch.pairs);
        let is_matching = round.is_matching();
        // What was looked up is written all or not at all.
        let (is_all_or_none, refusal) = (round.from_lookup, round.refusal(&fetch));
        if !is_all_or_none || (!is_matching && refusal.is_none()) {
            self.write(cx, &fetch.name, std::mem::take(&mut fetch.pairs));
        }
        if let Some(why) = refusal {
            self.end(cx, &fetch.name, Cause::new(Outcome::NotFetched, why), Reply::TransferDone);
        } else if is_matching {
            return Some(Task::Fetch(fetch));
        }
        self.settle(cx, &fetch.name);
        self.is_matched(cx, fetch)
    }

    /// Nothing of the fetch is needed any more.
    fn is_matched(&mut self, cx: &mut Context, fetch: FetchTask) -> Option<Task> {
        let (supply, pins, unmet) = (Vec::new(), Vec::new(), Unmet::new(cx.hasher()));
        self.let_go(cx, Remains { supply, pins, unmet, waiter: None, spent: fetch.keys });
        None
    }
}

impl super::round::Round {
    /// Why the fetch of the round cannot be met as a whole, as far as it has been matched.
    fn refusal(&self, fetch: &FetchTask) -> Option<String> {
        let unmet = self.unmet();
        if unmet == 0 {
            return None;
        }
        if self.from_lookup && !mutation::is(Mutation::UnpinnedWaits) {
            let matched = fetch.matched;
            return Some(format!(
                "the fetch names {unmet} of {matched} keys that no lookup of its round has pinned"
            ));
        }
        fetch.refusal.clone()
    }
}

/// How many keys a message brings.
fn keys_of(message: &Message) -> usize {
    match message {
        Message::Fetch(fetch) => fetch.keys.len(),
        Message::Lookup(lookup) => lookup.keys.len(),
        _ => 0,
    }
}
