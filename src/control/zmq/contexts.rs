//! libzmq gives a context 1023 sockets, and its Rust binding has no way to ask for more. So a tier of many peers has
//! several contexts, and its links are spread over them.

use super::probe;
use crate::protocol::error::{Error, ErrorKind, Result};

/// A link takes three sockets: a DEALER and both ends of its monitor. This leaves a hundred for the ROUTER, and for those
/// of closed links, which the reaper has not come to yet.
pub const LINKS_PER_CONTEXT: usize = 300;

struct Counted {
    context: ::zmq::Context,
    links: usize,
}

pub struct Contexts(Vec<Counted>);

impl Contexts {
    /// The first one, and those that so many links need besides.
    pub fn start(first: ::zmq::Context, links: usize) -> Result<Self> {
        let further = links.div_ceil(LINKS_PER_CONTEXT).saturating_sub(1);
        let further: Result<Vec<::zmq::Context>> = (0..further).map(|_| start()).collect();
        let all = std::iter::once(first).chain(further?);
        Ok(Contexts(all.map(|context| Counted { context, links: 0 }).collect()))
    }

    /// A context for one more link, which is counted until [`Self::give_back`] is called with the number.
    pub fn take(&mut self) -> Option<(usize, ::zmq::Context)> {
        let mut numbered = self.0.iter_mut().enumerate();
        let (number, counted) = numbered.find(|(_, counted)| counted.links < LINKS_PER_CONTEXT)?;
        counted.links += 1;
        Some((number, counted.context.clone()))
    }

    pub fn give_back(&mut self, number: usize) {
        if let Some(counted) = self.0.get_mut(number) {
            counted.links = counted.links.saturating_sub(1);
        }
    }
}

/// A context whose threads run: they start with its first socket, as the calling thread's children.
fn start() -> Result<::zmq::Context> {
    let refused = |reason: String| {
        let text = format!("the control connections of so many peers cannot be opened: {reason}");
        Error::new(ErrorKind::OutOfResources, text)
    };
    probe::descriptors(probe::DESCRIPTORS_OF_A_CONTEXT)
        .and_then(|()| probe::threads(probe::THREADS_OF_A_CONTEXT))
        .map_err(refused)?;
    let context = ::zmq::Context::new();
    context.socket(::zmq::PAIR).map_err(|error| refused(error.to_string()))?;
    Ok(context)
}
