//! The one panic guard. Every function of the ABI that can fail runs its body in it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::handle::{Shared, p2p_request, p2p_tier};
use super::last_error;
use super::pointers::Caller;
use super::status::p2p_status;
use crate::host::Uncancelled;
use crate::protocol::error::Error;
use crate::protocol::ids::RequestId;
use crate::tier::Tier;

/// A negative status and the sentence that `p2p_last_error` will give.
#[derive(Debug)]
pub struct Failure {
    pub(super) status: p2p_status,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(status: p2p_status, message: impl Into<String>) -> Self {
        Failure { status, message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(p2p_status::INVALID_ARGUMENT, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(error.kind.into(), error.message)
    }
}

/// What a body gives: a status that is no error, or a failure.
pub(super) type Answer = Result<p2p_status, Failure>;

/// Runs the body of a function that has no handle. `name` is the function's, for messages.
pub(super) fn run(name: &str, body: impl FnOnce() -> Answer) -> p2p_status {
    guarded(name, None, body)
}

/// Runs the body of a function on a tier.
pub(super) fn on_tier(
    name: &str,
    caller: &Caller,
    tier: *const p2p_tier,
    body: impl FnOnce(&Tier) -> Answer,
) -> p2p_status {
    match caller.reference(tier, "tier") {
        Ok(tier) => on_shared(name, &tier.shared, body),
        Err(failure) => fail(name, &failure),
    }
}

/// Runs the body of a function on a request.
pub(super) fn on_request(
    name: &str,
    caller: &Caller,
    request: *const p2p_request,
    body: impl FnOnce(&Tier, RequestId) -> Answer,
) -> p2p_status {
    match caller.reference(request, "request") {
        Ok(request) => on_shared(name, &request.shared, |tier| body(tier, request.id)),
        Err(failure) => fail(name, &failure),
    }
}

/// Runs the body of a function on what a tier and its requests share, unless it is unusable.
pub(super) fn on_shared(name: &str, shared: &Shared, body: impl FnOnce(&Tier) -> Answer) -> p2p_status {
    guarded(name, Some(shared), || {
        shared.check_usable()?;
        body(&shared.tier)
    })
}

/// Runs a body that cannot fail; a panic only poisons.
pub(super) fn on_shared_even_if_poisoned(name: &str, shared: &Shared, body: impl FnOnce(&Tier)) {
    guarded(name, Some(shared), || {
        body(&shared.tier);
        Ok(p2p_status::OK)
    });
}

/// Lets go of what may be the last hold on a tier, whose end could panic too. In a forked child it is abandoned.
pub(super) fn on_drop(name: &str, shared: std::sync::Arc<Shared>) {
    if shared.is_foreign() {
        std::mem::forget(shared);
        return;
    }
    guarded(name, None, move || {
        drop(shared);
        Ok(p2p_status::OK)
    });
}

// Unwind safety: what a panic leaves half done is behind `shared`, which is poisoned here, or is dropped with the body.
fn guarded(name: &str, shared: Option<&Shared>, body: impl FnOnce() -> Answer) -> p2p_status {
    let _uncancelled = Uncancelled::begin();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => fail(name, &failure),
        Err(payload) => {
            if let Some(shared) = shared {
                shared.poison();
            }
            let failure = Failure::new(p2p_status::PANIC, panic_message(payload));
            ::log::error!("{name}: {}", failure.message);
            fail(name, &failure)
        }
    }
}

fn fail(name: &str, failure: &Failure) -> p2p_status {
    last_error::set(&format!("{name}: {}", failure.message));
    failure.status
}

fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let said = payload
        .downcast_ref::<&'static str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    // Dropping an unknown payload could panic outside the guard; leaking it cannot.
    std::mem::forget(payload);
    format!(
        "a bug in libp2pkv was caught ({said}); please report it. The tier can no longer be used: free it and make a new one"
    )
}
