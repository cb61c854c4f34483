//! The tier's numbers as OpenMetrics text, for whoever scrapes the host.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::protocol::job::Stats;
use crate::protocol::manager::PeerSummary;

/// `local_id` is the label `tier` of every metric.
pub fn text(local_id: &str, stats: Stats, peers: Vec<PeerSummary>) -> Result<String, fmt::Error> {
    let labels = [("tier".into(), local_id.to_owned().into())];
    let mut registry = Registry::with_prefix_and_labels("p2pkv", labels.into_iter());
    registry.register_collector(Box::new(Snapshot { stats, peers }));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Snapshot {
    stats: Stats,
    peers: Vec<PeerSummary>,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, value) in gauges(&self.stats) {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        for (name, help, value) in counters(&self.stats) {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        for (name, help, value) in PEER_COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for peer in &self.peers {
                let labels = [("peer", peer.peer.as_str()), ("transport", peer.transport)];
                ConstCounter::new(value(peer)).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

type Named = (&'static str, &'static str, u64);

fn gauges(stats: &Stats) -> [Named; 8] {
    [
        ("peers", "Peers with a session", stats.peers),
        ("requests", "Requests that are open", stats.requests),
        ("loads_live", "Loads without a result", stats.loads_live),
        ("stores_live", "Stores without a result", stats.stores_live),
        ("stores_parked", "Stores that no peer has asked for yet", stats.stores_parked),
        ("keys_published", "Keys in the block directory", stats.keys_published),
        ("blocks_pinned", "Published blocks that a peer's round holds", stats.blocks_pinned),
        ("results_queued", "Results that the engine has not taken", stats.results_queued),
    ]
}

fn counters(stats: &Stats) -> [Named; 15] {
    [
        ("jobs_done", "Jobs that ended in DONE", stats.jobs_done),
        ("jobs_failed", "Jobs that ended otherwise", stats.jobs_failed),
        ("received_bytes", "Bytes of blocks loaded", stats.bytes_in),
        ("sent_bytes", "Bytes of blocks that peers took", stats.bytes_out),
        ("lookups_sent", "Lookups sent to peers", stats.lookups_sent),
        ("lookups_answered", "Lookups of peers answered", stats.lookups_answered),
        ("keys_hit", "Keys that peers called hits", stats.keys_hit),
        ("keys_missed", "Keys that peers called misses", stats.keys_missed),
        ("messages_received", "Control messages received", stats.messages_in),
        ("messages_sent", "Control messages sent", stats.messages_out),
        ("messages_dropped", "Control messages that no session could be meant by", stats.messages_dropped),
        ("messages_late", "Control messages about what is over", stats.messages_late),
        ("protocol_errors", "Sessions ended for what their peer said", stats.protocol_errors),
        ("sessions_opened", "Sessions begun", stats.sessions_opened),
        ("sessions_lost", "Sessions ended", stats.sessions_lost),
    ]
}

type OfPeer = (&'static str, &'static str, fn(&PeerSummary) -> u64);

const PEER_COUNTERS: [OfPeer; 2] = [
    ("peer_received_bytes", "Bytes of blocks loaded from the peer", |peer| peer.bytes_in),
    ("peer_sent_bytes", "Bytes of blocks that the peer took", |peer| peer.bytes_out),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::ids::PeerId;
    use crate::protocol::job::PeerState;

    #[test]
    fn every_number_has_a_line_with_its_tier() {
        let stats = Stats { jobs_done: 7, peers: 1, ..Stats::default() };
        let peer = PeerSummary {
            peer: PeerId::parse("10.0.0.1:7000").unwrap(),
            session: None,
            state: PeerState::Ready,
            transport: "tcp",
            detail: String::new(),
            loads_live: 0,
            stores_live: 0,
            transfers_live: 0,
            bytes_in: 11,
            bytes_out: 0,
            rounds_served: 0,
            idle: Duration::ZERO,
        };
        let text = text("127.0.0.1:5600", stats, vec![peer]).unwrap();
        let has = |line: &str| assert!(text.lines().any(|known| known == line), "no {line} in\n{text}");
        has("p2pkv_jobs_done_total{tier=\"127.0.0.1:5600\"} 7");
        has("p2pkv_peers{tier=\"127.0.0.1:5600\"} 1");
        has("# TYPE p2pkv_jobs_done counter");
        has(
            "p2pkv_peer_received_bytes_total{tier=\"127.0.0.1:5600\",peer=\"10.0.0.1:7000\",transport=\"tcp\"} 11",
        );
        assert!(text.ends_with("# EOF\n"));
    }
}
