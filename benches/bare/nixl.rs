//! The ceiling for NIXL: two bare agents that know the descriptors beforehand and ask for nothing but progress.
//!
//! One thread does everything, without a pause: describe the write, post it, ask until it is done. A tier over NIXL is
//! judged by its ratio to this, measured in the same run.

use std::time::{Duration, Instant};

use nixl_sys::{
    Agent, AgentConfig, MemType, MemoryRegion, NixlDescriptor, NotificationMap, Params, RegistrationHandle,
    XferDescList, XferOp, XferStatus,
};

#[derive(Debug)]
struct Memory(usize, usize);

impl MemoryRegion for Memory {
    unsafe fn as_ptr(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.0)
    }

    fn size(&self) -> usize {
        self.1
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

fn agent(name: &str) -> Agent {
    let settings = AgentConfig { enable_prog_thread: false, ..AgentConfig::default() };
    let agent = Agent::new_configured(name, &settings).unwrap();
    let parameters = Params::from([("engine_config", "TLS=^rc_gda")]).unwrap();
    agent.create_backend("UCX", &parameters).unwrap();
    agent
}

/// Two agents of one process, each with a region of its own.
pub struct Bare {
    block_len: usize,
    blocks: Vec<(usize, usize)>,
    source: Vec<u8>,
    target: Vec<u8>,
    writer: Agent,
    reader: Agent,
    name: String,
    incoming: NotificationMap,
    _registered: [RegistrationHandle; 2],
}

impl Bare {
    /// `blocks`: from which block of `block_len` bytes to which.
    pub fn new(block_len: usize, blocks: &[(usize, usize)]) -> Self {
        let bytes = block_len * blocks.len();
        let (source, target) = (vec![0xA5_u8; bytes], vec![1_u8; bytes]);
        let (writer, reader) = (agent("bare-writer"), agent("bare-reader"));
        let register = |agent: &Agent, memory: &[u8]| {
            agent.register_memory(&Memory(memory.as_ptr().expose_provenance(), bytes), None).unwrap()
        };
        let registered = [register(&writer, &source), register(&reader, &target)];
        let name = writer.load_remote_md(&reader.get_local_md().unwrap()).unwrap();
        let incoming = NotificationMap::new().unwrap();
        let blocks = blocks.to_vec();
        Bare { block_len, blocks, source, target, writer, reader, name, incoming, _registered: registered }
    }

    /// Writes all blocks once.
    pub fn round(&mut self) -> Duration {
        let (from, to) = (self.source.as_ptr().expose_provenance(), self.target.as_ptr().expose_provenance());
        let begin = Instant::now();
        let mut here = XferDescList::new(MemType::Dram).unwrap();
        let mut there = XferDescList::new(MemType::Dram).unwrap();
        for (source, target) in &self.blocks {
            here.add_desc(from + source * self.block_len, self.block_len, 0);
            there.add_desc(to + target * self.block_len, self.block_len, 0);
        }
        let request = self.writer.create_xfer_req(XferOp::Write, &here, &there, &self.name, None).unwrap();
        let mut under_way = self.writer.post_xfer_req(&request, None).unwrap();
        while under_way {
            self.reader.get_notifications(&mut self.incoming, None).unwrap();
            under_way = self.writer.get_xfer_status(&request).unwrap() == XferStatus::InProgress;
        }
        begin.elapsed()
    }

    pub fn check(&self) {
        assert!(self.source == self.target, "the bare program moved wrong bytes");
    }
}
