//! The tier for the model checker `shuttle`, under `--cfg p2pkv_shuttle` only: threads that take turns where it says so,
//! a clock that moves only when somebody has waited, and a poller without fds. Everything else is the code that ships.

pub mod sync;

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod net;
