//! The names of things: one type each, so that a block index cannot pass for a job id.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

macro_rules! numeric_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

numeric_id!(
    /// A block of a region: block *i* starts at `base_addr + i * block_len`.
    BlockIndex(u32)
);
numeric_id!(
    /// The engine's name for one load or store.
    JobId(u64)
);
numeric_id!(
    /// One live load as the data plane knows it. Never used twice in the life of a tier, so a frame that
    /// arrives after its load ended cannot be taken for one of a later load.
    LoadToken(u64)
);
numeric_id!(
    /// A request of the local engine, from `p2p_request_new` to `p2p_request_finish`.
    RequestId(u64)
);
numeric_id!(
    /// One lookup→fetch cycle of a `kv_request_id`, counted from 0.
    RoundSeq(u64)
);
numeric_id!(
    /// One serving context toward the engine: opened and closed once for each inbound lookup.
    ServeId(u64)
);
numeric_id!(
    /// One session with a peer. A peer that restarts gets a new one.
    SessionId(u64)
);
numeric_id!(
    /// One batch of blocks handed to a data transport.
    TransferId(u64)
);
numeric_id!(
    /// One round of the producer role that wants keys. Never used twice in the life of a tier.
    WaiterId(u64)
);

impl RoundSeq {
    pub const FIRST: RoundSeq = RoundSeq(0);

    #[must_use]
    pub fn next(self) -> RoundSeq {
        RoundSeq(self.0.wrapping_add(1))
    }
}

/// Random name of one tier's life; two tiers at the same address have different ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Instance(pub [u8; 16]);

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Source and destination of one block of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPair {
    /// In the producer's region.
    pub local: BlockIndex,
    /// In the consumer's region.
    pub remote: BlockIndex,
}

/// The transaction id that the orchestrator gives to both sides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KvRequestId(Arc<str>);

impl KvRequestId {
    #[must_use]
    pub fn new(text: &str) -> Self {
        KvRequestId(Arc::from(text))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KvRequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A tier's name to others: `host:port` of its control socket, `[v6]:port` for IPv6.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(Arc<str>);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not host:port or [v6]:port: {why}")]
pub struct PeerIdError {
    pub text: String,
    pub why: &'static str,
}

impl PeerId {
    /// Longest host name DNS allows, plus brackets, colon and port.
    pub const MAX_LEN: usize = 253 + 8;

    /// Reads the text form. Anything that is not exactly `host:port` is refused, so that an identity
    /// frame from the network is never dialled by accident.
    pub fn parse(text: &str) -> Result<PeerId, PeerIdError> {
        Self::split(text)
            .map(|_| PeerId(Arc::from(text)))
            .map_err(|why| PeerIdError { text: text.chars().take(Self::MAX_LEN).collect(), why })
    }

    /// Joins a host (a name, an IPv4 or a bare or bracketed IPv6 address) and a port.
    pub fn from_host_port(host: &str, port: u16) -> Result<PeerId, PeerIdError> {
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if bare.parse::<Ipv6Addr>().is_ok() {
            return Self::parse(&format!("[{bare}]:{port}"));
        }
        Self::parse(&format!("{host}:{port}"))
    }

    fn split(text: &str) -> Result<(&str, u16), &'static str> {
        if text.len() > Self::MAX_LEN {
            return Err("longer than a host name may be");
        }
        let (host, port) = text.rsplit_once(':').ok_or("no port")?;
        if port.is_empty()
            || !port.bytes().all(|b| b.is_ascii_digit())
            || (port.len() > 1 && port.starts_with('0'))
        {
            return Err("the port is not a number");
        }
        let port: u16 = port.parse().map_err(|_| "the port is above 65535")?;
        if port == 0 {
            return Err("port 0 cannot be dialled");
        }
        if let Some(v6) = host.strip_prefix('[') {
            let v6 = v6.strip_suffix(']').ok_or("no closing bracket")?;
            v6.parse::<Ipv6Addr>().map_err(|_| "not an IPv6 address in the brackets")?;
            return Ok((v6, port));
        }
        let is_host_byte = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if host.is_empty() || !host.bytes().all(is_host_byte) {
            return Err("not a host name or address");
        }
        Ok((host, port))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Host without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        Self::split(&self.0).map_or("", |(host, _)| host)
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        Self::split(&self.0).map_or(0, |(_, port)| port)
    }

    /// The socket address, where the host is numeric and needs no resolver.
    #[must_use]
    pub fn numeric_address(&self) -> Option<SocketAddr> {
        self.host().parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, self.port()))
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_id_accepts_names_and_both_address_families() {
        for text in ["localhost:1", "10.0.0.1:65535", "[::1]:7777", "my_host-1.example:80"] {
            assert_eq!(PeerId::parse(text).unwrap().as_str(), text);
        }
        assert_eq!(PeerId::from_host_port("::1", 5).unwrap().as_str(), "[::1]:5");
        assert_eq!(PeerId::from_host_port("[::1]", 5).unwrap().host(), "::1");
        assert_eq!(PeerId::from_host_port("a", 5).unwrap().port(), 5);
    }

    #[test]
    fn peer_id_refuses_what_is_not_host_and_port() {
        let long = format!("{}:1", "a".repeat(300));
        for text in [
            "", "host", ":1", "h:", "h:0", "h:65536", "h:+1", "h:01", "::1:5", "[::1:5", "[x]:5", "a b:1",
            "a/b:1", &long,
        ] {
            assert!(PeerId::parse(text).is_err(), "{text:?}");
        }
    }
}
