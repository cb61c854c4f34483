//! Which data transports a tier has, and how it came to them.

use std::net::{IpAddr, SocketAddr};

use crate::control::resolve::listen_addresses;
use crate::data::DataTransport;
#[cfg(feature = "nixl")]
use crate::data::nixl::{NixlConfig, NixlTransport};
use crate::data::tcp::{TcpConfig, TcpTransport};
use crate::protocol::config::{LocalTcp, LocalTransports, TransportKind};
use crate::protocol::error::{Error, ErrorKind, Result};

use super::{TierConfig, TransportChoice};

/// The transports that run, and what peers are told of them.
pub struct Planes {
    pub transports: Vec<Box<dyn DataTransport>>,
    pub local: LocalTransports,
}

impl Planes {
    /// Starts what the configuration asks for. Under AUTO a NIXL that cannot be had is no error: the log says why, and so
    /// does every refusal of a peer that has nothing else.
    pub fn start(config: &TierConfig) -> Result<Planes> {
        let mut planes = Planes { transports: Vec::new(), local: LocalTransports::default() };
        match config.transport {
            TransportChoice::Nixl => planes.add_nixl(config)?,
            TransportChoice::Auto => {
                if let Err(error) = planes.add_nixl(config) {
                    log::info!("no nixl data plane: {error}");
                    planes.local.why_no_nixl = error.message;
                }
                planes.add_tcp(config)?;
            }
            TransportChoice::Tcp => {
                "transport is set to TCP".clone_into(&mut planes.local.why_no_nixl);
                planes.add_tcp(config)?;
            }
        }
        Ok(planes)
    }

    #[cfg(feature = "nixl")]
    fn add_nixl(&mut self, config: &TierConfig) -> Result<()> {
        let settings = NixlConfig { backends: config.nixl_backends.clone(), threads: config.nixl_threads };
        let nixl = NixlTransport::new(config.region, &settings)?;
        log::info!(
            "nixl data plane: {}, loaded from {}",
            settings.backends.join(", "),
            nixl.library().display()
        );
        self.local.preference.push(TransportKind::Nixl);
        self.local.nixl_metadata = Some(nixl.metadata().to_vec());
        self.transports.push(Box::new(nixl));
        Ok(())
    }

    #[cfg(not(feature = "nixl"))]
    fn add_nixl(&mut self, _config: &TierConfig) -> Result<()> {
        let text = "this library was built without the NIXL data plane (cargo feature nixl)";
        Err(Error::new(ErrorKind::TransportUnavailable, text))
    }

    fn add_tcp(&mut self, config: &TierConfig) -> Result<()> {
        let settings = TcpConfig {
            bind_ip: bind_ip(&config.host)?,
            port: config.data_port,
            streams: config.tcp_streams,
            congestion: config.tcp_congestion.clone(),
            same_host: config.same_host,
            // All of them may come at the same moment.
            max_unauthenticated: TcpConfig::default().max_unauthenticated.max(config.max_peers),
            ..TcpConfig::default()
        };
        let tcp = TcpTransport::with_file(config.region, &settings, config.region_file.clone())?;
        log::info!("tcp data plane: port {}", tcp.local_port());
        self.local.preference.push(TransportKind::Tcp);
        let host_identity = if config.same_host { host_identity() } else { String::new() };
        self.local.tcp = Some(LocalTcp { addresses: Vec::new(), port: tcp.local_port(), host_identity });
        self.transports.push(Box::new(tcp));
        Ok(())
    }
}

/// Where the data plane listens: at the control socket's host.
fn bind_ip(host: &str) -> Result<IpAddr> {
    let invalid =
        |why: String| Error::new(ErrorKind::AddressInvalid, format!("host {host:?} cannot be used: {why}"));
    let addresses = listen_addresses(host, 0).map_err(invalid)?;
    addresses.first().map(SocketAddr::ip).ok_or_else(|| invalid("it has no address".to_owned()))
}

/// Equal for all processes of one network namespace on a kernel since it booted: those that can reach one another's Unix
/// sockets.
fn host_identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = std::fs::read_link("/proc/self/ns/net");
    match (boot, namespace) {
        (Ok(boot), Ok(namespace)) => format!("{} {}", boot.trim(), namespace.display()),
        _ => String::new(),
    }
}
