//! The ceiling for NIXL: two bare agents that know the descriptors beforehand and ask for nothing but progress.
//!
//! One thread does everything, without a pause: describe the write, post it, ask until it is done. A tier over NIXL is
//! judged by its ratio to this, measured in the same run.

use std::time::{Duration, Instant};

use nixl_sys::{
    Agent, AgentConfig, MemType, MemoryRegion, NixlDescriptor, NotificationMap, Params, XferDescList, XferOp,
    XferStatus,
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

/// Writes `blocks` blocks of `block_len` bytes `rounds` times, from and to the given indexes; the best round.
pub fn best(block_len: usize, blocks: &[(usize, usize)], rounds: usize) -> Duration {
    let bytes = block_len * blocks.len();
    let source = vec![0xA5_u8; bytes];
    let target = vec![1_u8; bytes];
    let (from, to) = (source.as_ptr().expose_provenance(), target.as_ptr().expose_provenance());
    let (writer, reader) = (agent("bare-writer"), agent("bare-reader"));
    let _source = writer.register_memory(&Memory(from, bytes), None).unwrap();
    let _target = reader.register_memory(&Memory(to, bytes), None).unwrap();
    let name = writer.load_remote_md(&reader.get_local_md().unwrap()).unwrap();
    let mut incoming = NotificationMap::new().unwrap();

    let mut round = || {
        let begin = Instant::now();
        let mut here = XferDescList::new(MemType::Dram).unwrap();
        let mut there = XferDescList::new(MemType::Dram).unwrap();
        for (source, target) in blocks {
            here.add_desc(from + source * block_len, block_len, 0);
            there.add_desc(to + target * block_len, block_len, 0);
        }
        let request = writer.create_xfer_req(XferOp::Write, &here, &there, &name, None).unwrap();
        let mut under_way = writer.post_xfer_req(&request, None).unwrap();
        while under_way {
            reader.get_notifications(&mut incoming, None).unwrap();
            under_way = writer.get_xfer_status(&request).unwrap() == XferStatus::InProgress;
        }
        begin.elapsed()
    };
    // The first sets the connection up.
    round();
    let best = (0..rounds).map(|_| round()).min().unwrap();
    assert!(source == target, "the bare program moved wrong bytes");
    best
}
