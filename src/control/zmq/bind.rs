//! The ROUTER's address: from the configuration to a bound socket and the tier's own name.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Socket, Type};

use super::{ZmqConfig, set_heartbeat};
use crate::control::resolve::listen_addresses;
use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::PeerId;

/// Messages that libzmq holds for each connection until they are received. Few, since each may be as large as the limit;
/// what a peer sends beyond waits at its side.
const RECEIVE_QUEUE: i32 = 64;

/// Connections that wait to be accepted: all peers may dial at the same moment.
const BACKLOG: i32 = 1024;

/// Longest routing id that ZMTP carries.
const MAX_ROUTING_ID: usize = 255;

/// What is wrong with the tier's name is said before anything is opened.
pub fn check_name(config: &ZmqConfig) -> Result<()> {
    // Any port will do: only the host can be wrong.
    local_id(config, config.port.max(1)).map(drop)
}

/// The name that peers know this tier by.
pub fn local_id(config: &ZmqConfig, port: u16) -> Result<PeerId> {
    let id = match (&config.local_id, &config.advertised_host) {
        (Some(id), _) => id.clone(),
        (None, Some(host)) => name_of("advertised_host", host, port)?,
        (None, None) => name_of("bind_host", &config.bind_host, port)?,
    };
    if id.as_str().len() > MAX_ROUTING_ID {
        return Err(invalid(format!(
            "the tier's name {id:?} has {} bytes, but a ZeroMQ routing id holds {MAX_ROUTING_ID}; use a shorter host name or an address",
            id.as_str().len()
        )));
    }
    Ok(id)
}

fn name_of(field: &str, host: &str, port: u16) -> Result<PeerId> {
    if is_wildcard(host) {
        return Err(invalid(format!(
            "{field} {host:?} means every interface, which no peer can dial; set advertised_host to the name or address that peers use for this machine"
        )));
    }
    PeerId::from_host_port(host, port)
        .map_err(|why| invalid(format!("{field} {host:?} cannot be used: {why}")))
}

/// A bound ROUTER and its port.
pub fn router(context: &::zmq::Context, config: &ZmqConfig) -> Result<(::zmq::Socket, u16)> {
    let mut refused = None;
    for address in addresses(config)? {
        match bind(context, config, address) {
            Ok(bound) => return Ok(bound),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| invalid(format!("{:?} has no address to listen at", config.bind_host))))
}

fn addresses(config: &ZmqConfig) -> Result<Vec<SocketAddr>> {
    listen_addresses(&config.bind_host, config.port).map_err(|why| {
        invalid(format!(
            "cannot listen at bind_host {:?}: {why}; use a name or address of this machine",
            config.bind_host
        ))
    })
}

fn bind(context: &::zmq::Context, config: &ZmqConfig, address: SocketAddr) -> Result<(::zmq::Socket, u16)> {
    try_address(address).map_err(|error| refusal(address, &error))?;
    let bound = bind_router(context, config, address);
    bound.map_err(|error| refusal(address, &io::Error::from_raw_os_error(error.to_raw())))
}

/// Binds (without listening) as libzmq will: the system's words for what is wrong are better than libzmq's, and the
/// binding panics on some of them.
fn try_address(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())
}

fn bind_router(
    context: &::zmq::Context,
    config: &ZmqConfig,
    address: SocketAddr,
) -> ::zmq::Result<(::zmq::Socket, u16)> {
    let router = context.socket(::zmq::ROUTER)?;
    router.set_linger(0)?;
    // A restarted peer comes back under its old name, before the old connection is known to be dead.
    router.set_router_handover(true)?;
    router.set_rcvhwm(RECEIVE_QUEUE)?;
    router.set_backlog(BACKLOG)?;
    router.set_maxmsgsize(i64::try_from(config.max_message_bytes).unwrap_or(i64::MAX))?;
    set_heartbeat(&router, &config.heartbeat)?;
    router.set_ipv6(address.is_ipv6())?;
    router.bind(&format!("tcp://{address}"))?;
    let endpoint = router.get_last_endpoint()?.unwrap_or_default();
    let port = endpoint.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    Ok((router, port.unwrap_or(address.port())))
}

fn refusal(address: SocketAddr, error: &io::Error) -> Error {
    let (kind, advice) = match error.raw_os_error().unwrap_or_default() {
        libc::EADDRINUSE => (
            ErrorKind::AddressInUse,
            "another process, or another tier of this one, listens there; choose another port, or 0 for any free one",
        ),
        libc::EADDRNOTAVAIL | libc::ENODEV | libc::EAFNOSUPPORT | libc::EINVAL => {
            (ErrorKind::AddressInvalid, "it is not an address of this machine; use one that is, or 0.0.0.0")
        }
        libc::EACCES | libc::EPERM => {
            (ErrorKind::PermissionDenied, "ports below 1024 need a privilege; choose a higher one")
        }
        libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => {
            (ErrorKind::OutOfResources, "raise the limit of open files (ulimit -n)")
        }
        _ => (ErrorKind::Os, "check bind_host and port"),
    };
    Error::new(kind, format!("cannot listen at {address}: {error}; {advice}"))
}

fn is_wildcard(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "*" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::AddressInvalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(bind_host: &str, advertised_host: Option<&str>) -> Result<PeerId> {
        let config = ZmqConfig {
            bind_host: bind_host.to_owned(),
            advertised_host: advertised_host.map(str::to_owned),
            ..ZmqConfig::default()
        };
        local_id(&config, 7777)
    }

    #[test]
    fn a_wildcard_needs_an_advertised_host() {
        for host in ["0.0.0.0", "::", "[::]", "*"] {
            let error = named(host, None).unwrap_err();
            assert_eq!(error.kind, ErrorKind::AddressInvalid);
            assert!(error.message.contains("advertised_host"), "{error}");
            assert_eq!(named(host, Some("gpu-1")).unwrap().as_str(), "gpu-1:7777");
            assert!(named(host, Some(host)).is_err());
        }
        assert_eq!(named("::1", None).unwrap().as_str(), "[::1]:7777");
    }

    #[test]
    fn a_name_that_no_routing_id_holds_is_refused() {
        let error = named(&"a".repeat(252), None).unwrap_err();
        assert!(error.message.contains("255"), "{error}");
    }
}
