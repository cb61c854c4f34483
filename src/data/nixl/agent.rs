//! One NIXL agent: the only file that names the bindings.
//!
//! All calls are made by the thread that made the agent. A remote agent may be forgotten only when no write to it is
//! under way: NIXL frees the requests of a forgotten one behind our back.

use nixl_sys::{
    AgentConfig, MemType, MemoryRegion, NixlDescriptor, NixlError, NotificationMap, Params,
    RegistrationHandle, ThreadSync, XferDescList, XferOp, XferRequest, XferStatus,
};

use super::NixlConfig;
use super::descriptors::{Piece, RemoteRegion};
use super::library::{self, Library};
use crate::data::Region;

/// See the top. Fields are dropped in order: the registration goes before the agent that holds it.
pub(super) struct Agent {
    _registration: RegistrationHandle,
    /// What peers have sent unasked; nobody reads it, but to ask for it makes NIXL progress.
    notifications: NotificationMap,
    agent: nixl_sys::Agent,
}

/// A posted write. Dropped before its end it would be cancelled, as far as the network allows that.
pub(super) struct Posted(XferRequest);

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    UnderWay,
}

/// Why a write was not posted.
#[derive(Debug)]
pub(super) struct NotPosted {
    pub reason: String,
    /// No write to this peer can succeed.
    pub decisive: bool,
}

impl Agent {
    /// Makes the agent, its back-ends, and registers the region: may take long, and starts threads of NIXL's own, which
    /// inherit the caller's signal mask.
    pub fn new(_loaded: Library, name: &str, region: &Region, config: &NixlConfig) -> Result<Agent, String> {
        let settings = AgentConfig {
            // With its own thread NIXL would spin, or add the thread's delay; ours asks when there is something to ask.
            enable_prog_thread: false,
            thread_sync: ThreadSync::None,
            ..AgentConfig::default()
        };
        let agent = nixl_sys::Agent::new_configured(name, &settings)
            .map_err(|error| format!("making a NIXL agent: {error}"))?;
        for backend in &config.backends {
            let parameters = parameters(backend, config.threads)
                .map_err(|error| format!("setting up the NIXL back-end {backend}: {error}"))?;
            agent.create_backend(backend, &parameters).map_err(|error| {
                let plugins = std::env::var("NIXL_PLUGIN_DIR").unwrap_or_else(|_| "NIXL's default place".to_owned());
                format!("the NIXL back-end {backend} cannot be made: {error}; plug-ins are looked for in {plugins}")
            })?;
        }
        let memory = Memory { base: region.base_addr(), bytes: region_bytes(region) };
        let registration = agent
            .register_memory(&memory, None)
            .map_err(|error| format!("registering {} bytes with NIXL: {error}", memory.bytes))?;
        let notifications =
            NotificationMap::new().map_err(|error| format!("asking NIXL for progress: {error}"))?;
        Ok(Agent { _registration: registration, notifications, agent })
    }

    /// What peers need to write into the region.
    pub fn metadata(&self) -> Result<Vec<u8>, String> {
        self.agent.get_local_md().map_err(|error| format!("asking NIXL for its metadata: {error}"))
    }

    /// Makes a remote agent known, and checks that its metadata covers the region. Its cost does not depend on the number
    /// of blocks.
    pub fn learn(&self, metadata: &[u8], name: &str, remote: &RemoteRegion) -> Result<(), String> {
        let known = self
            .agent
            .load_remote_md(metadata)
            .map_err(|error| format!("NIXL refuses the metadata of agent {name}: {error}"))?;
        let covered = self.covers(&known, remote);
        if known == name && covered {
            return Ok(());
        }
        self.forget(&known);
        Err(format!(
            "the metadata of NIXL agent {name} does not cover the {} bytes at {:#x} that connect names",
            remote.len(),
            remote.base()
        ))
    }

    /// Whether a known remote agent's metadata covers a region.
    pub fn covers(&self, name: &str, remote: &RemoteRegion) -> bool {
        let whole = || -> Result<XferDescList<'_>, NixlError> {
            let mut whole = XferDescList::new(MemType::Dram)?;
            whole.add_desc(remote.base(), remote.len(), 0);
            Ok(whole)
        };
        whole().is_ok_and(|whole| self.agent.check_remote_metadata(name, Some(&whole)))
    }

    /// Forgets a remote agent. No write to it may be under way.
    pub fn forget(&self, name: &str) {
        if let Err(error) = self.agent.invalidate_remote_md(name) {
            log::warn!("nixl: forgetting agent {name}: {error}");
        }
    }

    /// Posts one write. `None`: it is complete already.
    pub fn write(&self, name: &str, pieces: &[Piece]) -> Result<Option<Posted>, NotPosted> {
        let (mut local, mut remote) = (descriptors()?, descriptors()?);
        for piece in pieces {
            local.add_desc(piece.local, piece.len, 0);
            remote.add_desc(piece.remote, piece.len, 0);
        }
        let request =
            self.agent.create_xfer_req(XferOp::Write, &local, &remote, name, None).map_err(|error| {
                NotPosted {
                    reason: format!(
                        "NIXL cannot describe a write of {} pieces to agent {name}: {error}",
                        pieces.len()
                    ),
                    decisive: !self.agent.check_remote_metadata(name, None),
                }
            })?;
        match self.agent.post_xfer_req(&request, None) {
            Ok(true) => Ok(Some(Posted(request))),
            Ok(false) => Ok(None),
            Err(error) => Err(NotPosted {
                reason: format!("NIXL cannot post a write to agent {name}: {error}"),
                decisive: false,
            }),
        }
    }

    /// Makes progress, and says how far a write has come. An error is its end.
    pub fn check(&self, posted: &Posted) -> Result<Progress, String> {
        match self.agent.get_xfer_status(&posted.0) {
            Ok(XferStatus::Success) => Ok(Progress::Done),
            Ok(XferStatus::InProgress) => Ok(Progress::UnderWay),
            Err(error) => Err(format!("NIXL reports that the write failed: {error}")),
        }
    }

    /// Lets peers' writes and connection set-ups come on.
    pub fn progress(&mut self) {
        if let Err(error) = self.agent.get_notifications(&mut self.notifications, None) {
            log::debug!("nixl: progress: {error}");
        }
        // Peers of ours and vLLM send none. What came unasked is thrown away with its map.
        if self.notifications.len().is_ok_and(|count| count > 0)
            && let Ok(empty) = NotificationMap::new()
        {
            self.notifications = empty;
        }
    }
}

fn descriptors<'a>() -> Result<XferDescList<'a>, NotPosted> {
    XferDescList::new(MemType::Dram).map_err(|error| NotPosted {
        reason: format!("NIXL gives no descriptor list: {error}"),
        decisive: false,
    })
}

/// What a back-end is created with.
fn parameters(backend: &str, threads: usize) -> Result<Params, NixlError> {
    let mut pairs: Vec<(&str, String)> = Vec::new();
    if backend == "UCX" {
        // GPU-initiated RDMA is of no use to host memory, and slow to set up where it half works.
        if library::environment("UCX_TLS").is_none() {
            pairs.push(("engine_config", "TLS=^rc_gda".to_owned()));
        }
        if threads > 0 {
            pairs.push(("num_threads", threads.to_string()));
        }
    }
    Params::from(pairs.iter().map(|(key, value)| (*key, value.as_str())))
}

fn region_bytes(region: &Region) -> usize {
    // Checked when the region was made.
    region.block_len().wrapping_mul(region.num_blocks() as usize)
}

/// The region as the bindings want to see it.
#[derive(Debug)]
struct Memory {
    base: u64,
    bytes: usize,
}

impl MemoryRegion for Memory {
    unsafe fn as_ptr(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(usize::try_from(self.base).unwrap_or(0))
    }

    fn size(&self) -> usize {
        self.bytes
    }
}

impl NixlDescriptor for Memory {
    fn mem_type(&self) -> MemType {
        MemType::Dram
    }

    fn device_id(&self) -> u64 {
        0
    }
}

/// The agent's name in its metadata, without giving that to NIXL: a name that another peer has must not reach it.
///
/// The metadata begins with a tag, then fields of name, length (8 bytes, little-endian), value and a bar; the agent's name
/// is the first.
pub(super) fn name_in(metadata: &[u8]) -> Option<&str> {
    let rest = metadata.strip_prefix(b"nixlSerDes|")?.strip_prefix(b"Agent")?;
    let (len, rest) = rest.split_first_chunk::<8>()?;
    let (name, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    let fits = (1..=MAX_NAME).contains(&name.len()) && !name.contains(&0) && rest.first() == Some(&b'|');
    std::str::from_utf8(name).ok().filter(|_| fits)
}

/// vLLM's are uuids, before 0.26 a host and a port.
const MAX_NAME: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_name_is_read_from_its_metadata() {
        let mut metadata = b"nixlSerDes|Agent\x05\0\0\0\0\0\0\0a:123|Conns".to_vec();
        assert_eq!(name_in(&metadata), Some("a:123"));
        metadata.truncate(26);
        assert_eq!(name_in(&metadata), None, "cut");
    }

    #[test]
    fn names_that_are_not_text_or_not_there_are_refused() {
        for metadata in [
            &b""[..],
            b"nixlSerDes|",
            b"nixlSerDes|Agent\0\0\0\0\0\0\0\0|",
            b"nixlSerDes|Agent\x02\0\0\0\0\0\0\0a\0|",
            b"nixlSerDes|Agent\x01\0\0\0\0\0\0\0\xff|",
            b"nixlSerDes|Agent\xff\xff\xff\xff\xff\xff\xff\xffa|",
            b"other|Agent\x01\0\0\0\0\0\0\0a|",
        ] {
            assert_eq!(name_in(metadata), None, "{metadata:?}");
        }
    }
}
