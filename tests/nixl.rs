//! Two tiers over NIXL, where it is installed (see `P2PKV_NIXL_LIBRARY_DIR`); without it only its absence is tested.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]
#![cfg(feature = "nixl")]

mod common;

use common::{KEY_LEN, Node, NodeOptions, keys};
use p2pkv::protocol::job::Outcome;
use p2pkv::protocol::keys::KeysView;
use p2pkv::tier::TransportChoice;

/// `None`, with a word on why, where there is no NIXL.
fn node(num_blocks: u32, block_len: usize) -> Option<Node> {
    let options =
        NodeOptions { num_blocks, block_len, transport: TransportChoice::Nixl, ..NodeOptions::default() };
    match Node::try_new(options) {
        Ok(node) => Some(node),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

#[test]
fn pd_moves_the_bytes() {
    let (Some(mut prefiller), Some(decoder)) = (node(64, 4096), node(64, 4096)) else { return };
    let tags: Vec<u64> = (0..32).collect();
    for tag in 0..32 {
        prefiller.fill(tag, tag as u64);
    }
    for (id, decoder_first) in [("a", false), ("b", true)] {
        let serve = prefiller.producer(id);
        let pull = decoder.pd_consumer(id, &prefiller);
        let sources: Vec<u32> = (0..32).collect();
        // Runs of four neighbours.
        let destinations: Vec<u32> = (0..32).map(|block| block / 4 * 8 + block % 4).collect();
        if decoder_first {
            decoder.load(pull, 1, &keys(tags.iter().copied()), &destinations);
        }
        prefiller.store(serve, 7, &keys(tags.iter().copied()), &sources);
        if !decoder_first {
            decoder.load(pull, 1, &keys(tags.iter().copied()), &destinations);
        }
        let result = decoder.result();
        assert_eq!(result.outcome, Outcome::Done, "{result:?}");
        assert_eq!(prefiller.result().outcome, Outcome::Done);
        for (tag, block) in tags.iter().zip(&destinations) {
            assert!(decoder.holds(*block as usize, *tag), "block {block}");
        }
        assert_eq!(decoder.tier.peers().unwrap()[0].transport, "nixl");
        decoder.tier.request_finish(pull).unwrap();
        prefiller.tier.request_finish(serve).unwrap();
    }
}

#[test]
fn many_transfers_in_both_directions() {
    let (Some(mut one), Some(mut other)) = (node(256, 4096), node(256, 4096)) else { return };
    for node in [&mut one, &mut other] {
        for tag in 0..128 {
            node.fill(tag, tag as u64);
        }
        let blocks: Vec<u32> = (0..128).collect();
        node.tier.publish(KeysView::new(&keys(0..128), KEY_LEN).unwrap(), &blocks).unwrap();
    }
    for (consumer, producer) in [(&one, &other), (&other, &one)] {
        for round in 0..64u64 {
            let request = consumer.pd_consumer(&format!("{}-{round}", producer.tier.local_id()), producer);
            consumer.load(
                request,
                round,
                &keys([round, round + 1]),
                &[128 + round as u32, 192 + round as u32],
            );
        }
    }
    for consumer in [&one, &other] {
        assert!(consumer.results(64).iter().all(|result| result.outcome == Outcome::Done));
        for round in 0..64 {
            assert!(
                consumer.holds(128 + round, round as u64) && consumer.holds(192 + round, round as u64 + 1)
            );
        }
    }
}

#[test]
fn auto_takes_nixl_where_both_have_it_and_tcp_where_one_has_not() {
    let options = |transport| NodeOptions { transport, same_host: false, ..NodeOptions::default() };
    let auto = || Node::new(options(TransportChoice::Auto));
    let (one, other, plain) = (auto(), auto(), Node::new(options(TransportChoice::Tcp)));
    let nixl = if node(1, 64).is_some() { "nixl" } else { "tcp" };
    for (number, (peer, expected)) in [(&other, nixl), (&plain, "tcp")].into_iter().enumerate() {
        peer.tier.publish(KeysView::new(&keys([1]), KEY_LEN).unwrap(), &[0]).unwrap();
        let request = one.pd_consumer(&format!("r{number}"), peer);
        one.load(request, 1, &keys([1]), &[5]);
        assert_eq!(one.result().outcome, Outcome::Done);
        let peers = one.tier.peers().unwrap();
        let info = peers.iter().find(|info| info.peer == *peer.tier.local_id()).unwrap();
        assert_eq!(info.transport, expected);
        assert!(info.detail.starts_with(&format!("{expected}: the first of [")), "{}", info.detail);
        one.tier.request_finish(request).unwrap();
    }
}

#[test]
fn auto_takes_memory_before_nixl_between_tiers_of_one_host() {
    let auto = || Node::new(NodeOptions { transport: TransportChoice::Auto, ..NodeOptions::default() });
    let (one, other) = (auto(), auto());
    other.tier.publish(KeysView::new(&keys([1]), KEY_LEN).unwrap(), &[0]).unwrap();
    let request = one.pd_consumer("r", &other);
    one.load(request, 1, &keys([1]), &[5]);
    assert_eq!(one.result().outcome, Outcome::Done);
    let is_upgraded = || one.tier.peers().unwrap()[0].transport == "same_host";
    common::eventually("blocks go to the other from memory too", is_upgraded);
}

/// The transport alone, without sessions.
mod transport {
    use std::time::{Duration, Instant};

    use p2pkv::data::nixl::{NixlConfig, NixlTransport};
    use p2pkv::data::{DataEvent, DataTransport, PeerOffer, Region};
    use p2pkv::protocol::config::Reach;
    use p2pkv::protocol::ids::{BlockIndex, BlockPair, SessionId, TransferId};

    const BLOCKS: u32 = 64;
    const BLOCK_LEN: usize = 4096;
    const SESSION: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(2);

    struct End {
        transport: NixlTransport,
        bytes: Box<[u8]>,
        events: Vec<DataEvent>,
    }

    impl End {
        fn new() -> Option<End> {
            let mut bytes = vec![0u8; BLOCKS as usize * BLOCK_LEN].into_boxed_slice();
            // SAFETY: the box outlives the transport: fields are dropped in order.
            let region = unsafe { Region::new(bytes.as_mut_ptr(), BLOCKS, BLOCK_LEN) }.unwrap();
            match NixlTransport::new(region, &NixlConfig::default()) {
                Ok(transport) => Some(End { transport, bytes, events: Vec::new() }),
                Err(error) => {
                    eprintln!("skipped: {error}");
                    None
                }
            }
        }

        fn offer(&self) -> PeerOffer {
            self.offer_of(self.transport.metadata().to_vec(), u64::from(BLOCKS))
        }

        fn offer_of(&self, metadata: Vec<u8>, num_blocks: u64) -> PeerOffer {
            let base_addr = self.bytes.as_ptr().expose_provenance() as u64;
            PeerOffer::Nixl { metadata, base_addr, num_blocks, block_len: BLOCK_LEN as u64 }
        }

        fn next(&mut self) -> DataEvent {
            let deadline = Instant::now() + Duration::from_secs(20);
            while self.events.is_empty() {
                assert!(Instant::now() < deadline, "no event");
                self.transport.poll(&mut self.events);
                std::thread::sleep(Duration::from_millis(1));
            }
            self.events.remove(0)
        }

        fn registers(&mut self, session: SessionId, offer: PeerOffer) {
            self.transport.register_peer(session, offer);
            assert_eq!(self.next(), DataEvent::PeerRegistered { session, reach: Reach::Stream });
        }

        /// As the two ends of a session do it.
        fn meets(&mut self, other: &mut End) {
            self.registers(SESSION, other.offer());
            other.registers(SESSION, self.offer());
        }

        fn refuses(&mut self, session: SessionId, offer: PeerOffer) -> String {
            self.transport.register_peer(session, offer);
            match self.next() {
                DataEvent::PeerRefused { session: refused, reason } if refused == session => reason,
                event => panic!("{event:?}"),
            }
        }

        fn write(&mut self, session: SessionId, transfer: u64, blocks: u32) {
            let pairs: Vec<BlockPair> = (0..blocks)
                .map(|block| BlockPair { local: BlockIndex(block), remote: BlockIndex(block * 3 % BLOCKS) })
                .collect();
            self.transport.write(session, TransferId(transfer), None, &pairs);
        }
    }

    #[test]
    fn every_write_ends_once_also_when_the_peer_is_dropped_at_once() {
        let (Some(mut writer), Some(mut reader)) = (End::new(), End::new()) else { return };
        writer.meets(&mut reader);
        for transfer in 0..50 {
            writer.write(SESSION, transfer, 32);
        }
        writer.transport.drop_peer(SESSION);
        writer.write(SESSION, 50, 1);
        let mut ended = [0; 51];
        for _ in 0..51 {
            match writer.next() {
                DataEvent::TransferDone { transfer } => ended[transfer.0 as usize] += 1,
                DataEvent::TransferFailed { transfer, decisive, .. } => {
                    assert!(transfer.0 == 50 && decisive, "only the write after the drop may fail");
                    ended[50] += 1;
                }
                event => panic!("{event:?}"),
            }
        }
        assert_eq!(ended, [1; 51]);
        // The same agent can be met again.
        writer.registers(OTHER, reader.offer());
        writer.write(OTHER, 60, 2);
        assert_eq!(writer.next(), DataEvent::TransferDone { transfer: TransferId(60) });
    }

    #[test]
    fn two_sessions_with_one_agent_do_not_take_it_from_each_other() {
        let (Some(mut writer), Some(mut reader)) = (End::new(), End::new()) else { return };
        writer.bytes[..BLOCK_LEN].fill(7);
        writer.meets(&mut reader);
        writer.registers(OTHER, reader.offer());
        writer.transport.drop_peer(SESSION);
        writer.write(OTHER, 1, 1);
        assert_eq!(writer.next(), DataEvent::TransferDone { transfer: TransferId(1) });
        assert!(reader.bytes[..BLOCK_LEN].iter().all(|byte| *byte == 7));
        reader.transport.poll(&mut reader.events);
        assert_eq!(reader.events, []);
    }

    #[test]
    fn metadata_that_cannot_be_a_peers_is_refused() {
        let (Some(mut writer), Some(reader)) = (End::new(), End::new()) else { return };
        let junk = reader.offer_of(b"not NIXL's".to_vec(), 1);
        assert!(writer.refuses(SESSION, junk).contains("is not NIXL's"));
        let own = writer.offer();
        assert!(!writer.refuses(SESSION, own).is_empty());
        let larger = reader.offer_of(reader.transport.metadata().to_vec(), u64::from(BLOCKS) + 1);
        assert!(writer.refuses(SESSION, larger).contains("does not cover"));
        let past_the_end = reader.offer_of(reader.transport.metadata().to_vec(), u64::MAX);
        assert!(writer.refuses(SESSION, past_the_end).contains("cannot be written to"));
        writer.registers(SESSION, reader.offer());
    }

    #[test]
    fn another_peer_cannot_take_over_an_agents_name() {
        let (Some(mut writer), Some(mut reader)) = (End::new(), End::new()) else { return };
        writer.meets(&mut reader);
        let mut forged = reader.transport.metadata().to_vec();
        *forged.last_mut().unwrap() ^= 1;
        let forged = reader.offer_of(forged, u64::from(BLOCKS));
        assert!(writer.refuses(OTHER, forged).contains("another peer has this name"));
        writer.write(SESSION, 1, 4);
        assert_eq!(writer.next(), DataEvent::TransferDone { transfer: TransferId(1) });
    }

    #[test]
    fn a_write_outside_the_peers_region_fails_and_harms_nothing() {
        let (Some(mut writer), Some(mut reader)) = (End::new(), End::new()) else { return };
        writer.registers(SESSION, reader.offer_of(reader.transport.metadata().to_vec(), 2));
        reader.registers(SESSION, writer.offer());
        let outside = [BlockPair { local: BlockIndex(0), remote: BlockIndex(2) }];
        writer.transport.write(SESSION, TransferId(1), None, &outside);
        let failed = writer.next();
        assert!(matches!(failed, DataEvent::TransferFailed { decisive: false, .. }), "{failed:?}");
        writer.write(SESSION, 2, 1);
        assert_eq!(writer.next(), DataEvent::TransferDone { transfer: TransferId(2) });
    }
}
