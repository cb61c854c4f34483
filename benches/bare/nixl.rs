//! NIXL between two processes: two bare agents that know the descriptors beforehand and ask for nothing but progress.
//!
//! Without NIXL's progress thread this is the ceiling for a tier over NIXL; with NIXL's own settings it is a rival.

use std::process::Command;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use nixl_sys::{
    Agent, AgentConfig, MemType, MemoryRegion, NixlDescriptor, NotificationMap, Params, XferDescList, XferOp,
    XferStatus,
};

use super::Plan;
use crate::child::Child;
use crate::memory::{Kind, Memory};
use crate::node::content;
use crate::race::Opponent;
use crate::shape::Shape;

const READER: &str = "--nixl-reader";
const WRITER: &str = "--nixl-writer";
const RUN: &str = "run";
const CHECK: &str = "check";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// A progress thread that never sleeps.
    Default,
    /// No progress thread: who waits asks.
    NoThread,
}

#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub settings: Settings,
    /// Instead of what UCX picks on one host.
    pub over_tcp: bool,
}

#[derive(Debug)]
struct Piece(usize, usize);

impl MemoryRegion for Piece {
    unsafe fn as_ptr(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.0)
    }

    fn size(&self) -> usize {
        self.1
    }
}

impl NixlDescriptor for Piece {
    fn mem_type(&self) -> MemType {
        MemType::Dram
    }

    fn device_id(&self) -> u64 {
        0
    }
}

fn agent(name: &str, settings: Settings) -> Agent {
    let settings =
        AgentConfig { enable_prog_thread: settings == Settings::Default, ..AgentConfig::default() };
    let agent = Agent::new_configured(name, &settings).unwrap();
    // The user of NIXL 1.5 has to say so on a host without a GPU, whatever else is at its default.
    let parameters = Params::from([("engine_config", "TLS=^rc_gda")]).unwrap();
    agent.create_backend("UCX", &parameters).unwrap();
    agent
}

/// Both processes.
pub struct Pair {
    reader: Child,
    writer: Child,
    is_checked: bool,
}

impl Pair {
    /// `library`: the directory that NIXL's C library is in.
    pub fn start(shape: Shape, variant: Variant, library: &str) -> Result<Pair, String> {
        let start = |role: &str| {
            let settings = if variant.settings == Settings::Default { "default" } else { "no-thread" };
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.arg(role).args(shape.arguments()).arg(settings);
            command.env("LD_LIBRARY_PATH", library).env("NIXL_PLUGIN_DIR", format!("{library}/plugins"));
            command.env("NIXL_LOG_LEVEL", "ERROR").env("UCX_LOG_LEVEL", "ERROR");
            if variant.over_tcp {
                command.env("UCX_TLS", "tcp");
            }
            Child::start(&mut command).map_err(|error| error.to_string())
        };
        let (mut reader, mut writer) = (start(READER)?, start(WRITER)?);
        let place = reader.try_answer().map_err(|error| format!("NIXL's reader: {error}"))?;
        let ready = writer.try_ask(&place).map_err(|error| format!("NIXL's writer: {error}"))?;
        assert_eq!(ready, "ready");
        Ok(Pair { reader, writer, is_checked: false })
    }
}

impl Opponent for Pair {
    fn run(&mut self) -> Result<Duration, String> {
        let nanos = self.writer.try_ask(RUN).map_err(|error| format!("NIXL's writer: {error}"))?;
        Ok(Duration::from_nanos(nanos.parse().unwrap()))
    }

    /// Only the first run finds other bytes there.
    fn check(&mut self) {
        if std::mem::replace(&mut self.is_checked, true) {
            return;
        }
        assert_eq!(self.reader.ask(CHECK), "right", "NIXL moved wrong bytes");
    }

    fn rest(&mut self) {
        self.reader.rest();
        self.writer.rest();
    }

    fn wake(&mut self) {
        self.reader.wake();
        self.writer.wake();
    }
}

/// Plays a role, if the arguments are those of one.
pub fn serve_if_asked_for(arguments: &[String]) -> bool {
    let [role, block_len, blocks, way, settings] = arguments else { return false };
    let settings = if settings == "default" { Settings::Default } else { Settings::NoThread };
    let shape = || Shape::from_arguments(block_len, blocks, way);
    match role.as_str() {
        READER => read(shape(), settings),
        WRITER => write(shape(), settings),
        _ => return false,
    }
    true
}

fn questions() -> Receiver<String> {
    let (say, hear) = channel();
    std::thread::spawn(move || std::io::stdin().lines().try_for_each(|line| say.send(line.unwrap())));
    hear
}

/// Until the standard input ends.
fn read(shape: Shape, settings: Settings) {
    let memory = Memory::new(Kind::Private, shape.block_len, shape.blocks, |_| 1);
    let agent = agent("bare-reader", settings);
    let base = memory.start().expose_provenance();
    let _registered = agent.register_memory(&Piece(base, shape.bytes()), None).unwrap();
    let metadata: String = agent.get_local_md().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{base} {metadata}");
    let questions = questions();
    let mut incoming = NotificationMap::new().unwrap();
    loop {
        let question = match settings {
            Settings::Default => questions.recv().map_err(|_| TryRecvError::Disconnected),
            Settings::NoThread => questions.try_recv(),
        };
        match question {
            Ok(question) => {
                assert_eq!(question, CHECK);
                println!("{}", if holds_all(&memory, shape) { "right" } else { "wrong" });
            }
            Err(TryRecvError::Empty) => agent.get_notifications(&mut incoming, None).unwrap(),
            Err(TryRecvError::Disconnected) => leave(),
        }
        std::thread::yield_now();
    }
}

/// NIXL's libraries may crash in their destructors.
fn leave() -> ! {
    // SAFETY: ends the process; nothing is left to be done in it.
    unsafe { libc::_exit(0) }
}

fn holds_all(memory: &Memory, shape: Shape) -> bool {
    let words_per_block = shape.block_len / size_of::<u64>();
    let holds = |(from, to): (usize, usize)| {
        memory.words()[to * words_per_block..][..words_per_block].iter().all(|word| *word == content(from))
    };
    Plan::of(shape.blocks).pairs().all(holds)
}

fn write(shape: Shape, settings: Settings) {
    let memory = Memory::new(Kind::Private, shape.block_len, shape.blocks, content);
    let agent = agent("bare-writer", settings);
    let here = memory.start().expose_provenance();
    let _registered = agent.register_memory(&Piece(here, shape.bytes()), None).unwrap();
    let questions = questions();
    let place = questions.recv().unwrap();
    let (there, metadata) = place.split_once(' ').unwrap();
    let byte = |at: usize| u8::from_str_radix(&metadata[at..at + 2], 16).unwrap();
    let metadata: Vec<u8> = (0..metadata.len()).step_by(2).map(byte).collect();
    let reader = agent.load_remote_md(&metadata).unwrap();
    let there: usize = there.parse().unwrap();
    println!("ready");
    let plan = Plan::of(shape.blocks);
    while let Ok(question) = questions.recv() {
        assert_eq!(question, RUN);
        println!("{}", write_once(&agent, &reader, shape, &plan, here, there).as_nanos());
    }
    leave();
}

/// From the block lists to the bytes being there.
fn write_once(agent: &Agent, reader: &str, shape: Shape, plan: &Plan, here: usize, there: usize) -> Duration {
    let begin = Instant::now();
    let mut from = XferDescList::new(MemType::Dram).unwrap();
    let mut to = XferDescList::new(MemType::Dram).unwrap();
    for (source, target) in plan.pairs() {
        from.add_desc(here + source * shape.block_len, shape.block_len, 0);
        to.add_desc(there + target * shape.block_len, shape.block_len, 0);
    }
    let request = agent.create_xfer_req(XferOp::Write, &from, &to, reader, None).unwrap();
    let mut under_way = agent.post_xfer_req(&request, None).unwrap();
    while under_way {
        under_way = agent.get_xfer_status(&request).unwrap() == XferStatus::InProgress;
    }
    begin.elapsed()
}
