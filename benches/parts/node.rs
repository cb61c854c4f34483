//! One core and its only peer, which says what it is told to. No socket, no thread, no clock, and no byte is moved.

use std::ops::Range;

use p2pkv::protocol::codec::Decoded;
use p2pkv::protocol::config::{CoreConfig, Limits, LocalTcp, LocalTransports, Timeouts, TransportKind};
use p2pkv::protocol::ids::{Instance, LoadToken, PeerId, SessionId, TransferId};
use p2pkv::protocol::job::{JobResult, Outcome};
use p2pkv::protocol::manager::Manager;
use p2pkv::protocol::message::{Connect, ConnectAck, Message};
use p2pkv::protocol::output::Output;
use p2pkv::protocol::timer::Timestamp;

use crate::keys::{Keys, MANY, blocks};

pub const PEER: &str = "10.0.0.2:7000";
pub const BLOCK_LEN: u64 = 16 << 10;
pub const NUM_BLOCKS: u32 = 1 << 20;
/// Keys in a large directory.
pub const PUBLISHED: usize = 1_000_000;
/// Nothing here waits for a deadline.
pub const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000);

pub struct Node {
    pub manager: Manager,
}

/// What the core has asked its owner for; of each kind the last one.
#[derive(Debug, Default)]
pub struct Asked {
    /// By name.
    pub sent: Option<&'static str>,
    pub armed: Option<LoadToken>,
    pub finished: Option<JobResult>,
    pub writes: Vec<TransferId>,
    pub blocks: usize,
    opened: Option<SessionId>,
}

impl Asked {
    /// The only transfer, which is of all blocks.
    pub fn one_write_of(&self, blocks: usize) -> TransferId {
        assert_eq!((self.writes.len(), self.blocks), (1, blocks));
        self.writes[0]
    }

    pub fn was_sent(&self, name: &str) {
        assert_eq!(self.sent, Some(name));
    }

    pub fn is_done(&self) {
        assert_eq!(self.finished.as_ref().map(|result| result.outcome), Some(Outcome::Done));
    }
}

impl Node {
    /// With its session ready.
    pub fn joined(connect: Connect) -> Node {
        let mut node = Node { manager: Manager::new(config()) };
        let session = node.hear(Message::Connect(Box::new(connect))).opened.unwrap();
        node.manager.handle_peer_registered(NOW, session);
        node.hear(Message::ConnectAck(ConnectAck { peer_id: PEER.to_owned() })).was_sent("connect_ack");
        node
    }

    /// Each key in the block of its position.
    pub fn publishing(connect: Connect, keys: &Keys) -> Node {
        let mut node = Node::joined(connect);
        node.manager.publish(NOW, keys.all(), &blocks(0..keys.all().len())).unwrap();
        node
    }

    pub fn hear(&mut self, message: Message) -> Asked {
        self.manager.handle_message(NOW, PEER.as_bytes(), Ok(Decoded::Message(message)));
        self.carry_out()
    }

    pub fn transfer_done(&mut self, transfer: TransferId) -> Asked {
        self.manager.handle_transfer_done(NOW, transfer);
        self.carry_out()
    }

    /// As a tier does, without the bytes.
    pub fn carry_out(&mut self) -> Asked {
        let mut asked = Asked::default();
        while let Some(output) = self.manager.poll_output() {
            match output {
                Output::Arm { load, .. } => asked.armed = Some(load),
                Output::Disarm { load, .. } => self.manager.handle_disarmed(NOW, load),
                Output::Finished(result) => asked.finished = Some(result),
                Output::OpenPeer { session, .. } => asked.opened = Some(session),
                Output::Send { message, .. } => {
                    asked.sent = Some(message.name());
                    self.manager.was_sent(message);
                }
                Output::Write { transfer, blocks, .. } => {
                    asked.writes.push(transfer);
                    asked.blocks += blocks.len();
                }
                Output::RegisterPeer { .. } => {}
                other => panic!("nothing here leads to {other:?}"),
            }
        }
        asked
    }
}

fn config() -> CoreConfig {
    let tcp =
        LocalTcp { addresses: vec!["10.0.0.1".parse().unwrap()], port: 9, host_identity: String::new() };
    CoreConfig {
        local_id: PeerId::parse("10.0.0.1:7000").unwrap(),
        instance: Instance([1; 16]),
        base_addr: 0x1000,
        num_blocks: NUM_BLOCKS,
        block_len: BLOCK_LEN,
        config_fingerprint: String::new(),
        hash_seed: "0".to_owned(),
        transports: LocalTransports {
            preference: vec![TransportKind::Nixl, TransportKind::Tcp],
            tcp: Some(tcp),
            nixl_metadata: Some(b"our agent".to_vec()),
            why_no_nixl: String::new(),
        },
        max_peers: 128,
        slice: p2pkv::protocol::config::SLICE,
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        table_seed: 7,
        token_secret: [1; 32],
    }
}

/// Neighbours among the published keys, others each time: what was used last lies in the caches.
#[derive(Debug, Default)]
pub struct Windows {
    used: usize,
}

impl Windows {
    pub fn next(&mut self) -> Range<usize> {
        let first = self.used % (PUBLISHED / MANY) * MANY;
        self.used += 1;
        first..first + MANY
    }
}
