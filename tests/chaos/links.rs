//! Links between two network namespaces that break without a word.

use std::time::Duration;

use crate::peer::{Config, Engine, HIT, MISS, Place, Times, blocks, pd, symmetric, tags};
use crate::run::{Run, permitted, times, tool, transfer_begins};

const HOSTS: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// An address on the link that nobody has, to which packets vanish.
const NOBODY: &str = "10.77.0.8";

/// Two namespaces and the link between them; gone with this value.
struct Net {
    names: [String; 2],
}

impl Net {
    /// `None` where the machine does not permit it.
    fn new(case: &str) -> Option<Net> {
        let names = ["a", "b"].map(|side| format!("p2pkv-{}-{case}-{side}", std::process::id()));
        let net = Net { names };
        let made = net.make();
        permitted("making network namespaces (ip netns, veth)", made).then_some(net)
    }

    fn make(&self) -> bool {
        let [a, b] = &self.names;
        let veth = ["link", "add", "v0", "netns", a, "type", "veth", "peer", "name", "v0", "netns", b];
        let namespaces = self.names.iter().all(|name| tool("ip", &["netns", "add", name]));
        namespaces
            && tool("ip", &veth)
            && [0, 1].iter().all(|&side| {
                let address = format!("{}/24", HOSTS[side]);
                self.ip(side, &["addr", "add", &address, "dev", "v0"])
                    && self.ip(side, &["link", "set", "v0", "up"])
                    && self.ip(side, &["link", "set", "lo", "up"])
                    && self.ip(side, &["neigh", "add", NOBODY, "lladdr", "02:00:00:00:00:08", "dev", "v0"])
            })
    }

    fn ip(&self, side: usize, arguments: &[&str]) -> bool {
        let mut all = vec!["-n", self.names[side].as_str()];
        all.extend(arguments);
        tool("ip", &all)
    }

    fn place(&self, side: usize) -> Place {
        let words = ["ip", "netns", "exec", self.names[side].as_str()];
        Place { wrapper: words.map(str::to_owned).to_vec(), ..Place::default() }
    }

    fn engine(&self, side: usize, config: Config) -> Engine {
        let mut engine = Engine::at(&self.place(side));
        engine.open(&Config { host: HOSTS[side], ..config }).unwrap();
        engine
    }

    /// From now on nothing that this side sends arrives, and it is not told so.
    fn mute(&self, side: usize) {
        assert!(
            self.ip(side, &["neigh", "replace", HOSTS[1 - side], "lladdr", "02:00:00:00:00:09", "dev", "v0"])
        );
    }

    fn unmute(&self, side: usize) {
        assert!(self.ip(side, &["neigh", "del", HOSTS[1 - side], "dev", "v0"]));
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            tool("ip", &["netns", "del", name]);
        }
    }
}

const DEADLINE: Duration = Duration::from_millis(400);

fn impatient() -> Times {
    Times { load_ms: 400, lookup_ms: 400, store_ms: 400 }
}

fn large() -> Config {
    Config { num_blocks: 128, block_len: 1 << 20, ..Config::default() }
}

/// Loads and stores that the cut catches end by their deadline; after the repair everything works again.
fn cut(case: &'static str, fault: &'static str, how: &'static str, muted: &[usize], lasting: Duration) {
    let Some(net) = Net::new(case) else { return };
    let mut run = Run::new(fault, how);
    let (mut producer, mut consumer) = (net.engine(0, large()), net.engine(1, large()));
    producer.fill(&blocks(128), &tags(0, 128));
    for round in 0..times(1, 2) {
        let id = format!("r{round}");
        producer.try_request(&id, &crate::peer::producer(&id), impatient()).unwrap();
        consumer.try_request(&id, &pd(&id, producer.id()), impatient()).unwrap();
        run.load(&mut consumer, &id, &tags(0, 128), &blocks(128));
        run.store(&mut producer, &id, &tags(0, 128), &blocks(128));
        transfer_begins(&mut producer);
        muted.iter().for_each(|side| net.mute(*side));
        run.injections += 1;
        for engine in [&mut consumer, &mut producer] {
            let result = run.collect_one(engine);
            match result.name.as_str() {
                "DONE" | "PEER_LOST" | "NOT_SUPPLIED" | "ABORTED" => {
                    assert!(result.took < 4 * DEADLINE, "{result:?}")
                }
                _ => run.ended("a job", result.took, DEADLINE),
            }
            engine.finish(&id);
        }
        consumer.fill(&blocks(128), &tags(5000, 128));
        std::thread::sleep(lasting);
        muted.iter().for_each(|side| net.unmute(*side));
        producer.republish(&blocks(4), &tags(0, 4));
        crate::common::eventually("the peer is heard again", || {
            consumer.ask_from("again", producer.id());
            let found = consumer.look_up("again", &tags(0, 4));
            if found == [HIT; 4] {
                run.load(&mut consumer, "again", &tags(0, 4), &blocks(4));
                run.collect_one(&mut consumer).expect("DONE");
                run.check(&mut consumer, &blocks(4), &tags(0, 4));
            }
            consumer.finish("again");
            found == [HIT; 4]
        });
        crate::common::eventually("the pins are gone", || producer.unpublish(&tags(0, 4)));
        run.check(&mut consumer, &(4..128).collect::<Vec<_>>(), &tags(5004, 124));
        consumer.assert_comes_to_rest(0);
        producer.assert_comes_to_rest(0);
    }
    run.calls(&mut producer);
    run.calls(&mut consumer);
    run.end();
}

/// In the long form past all heartbeats and the time that a tcp stream may be without progress.
fn a_while() -> Duration {
    Duration::from_millis(times(300, 14_000))
}

#[test]
fn a_link_that_goes_dead_in_both_directions() {
    cut(
        "dead",
        "half-open link",
        "both directions black-holed in the middle of a transfer",
        &[0, 1],
        a_while(),
    );
}

#[test]
fn a_link_on_which_the_producer_is_not_heard() {
    cut("mute0", "one-way partition", "what the producer sends is black-holed", &[0], a_while());
}

#[test]
fn a_link_on_which_the_consumer_is_not_heard() {
    cut("mute1", "one-way partition", "what the consumer sends is black-holed", &[1], a_while());
}

#[test]
fn a_throttled_link_delays_nobody_elses_work() {
    let Some(net) = Net::new("slow") else { return };
    let slow =
        ["qdisc", "add", "dev", "v0", "root", "tbf", "rate", "40mbit", "burst", "64kb", "latency", "200ms"];
    let mut all = vec!["-n", net.names[0].as_str()];
    all.extend(slow);
    if !permitted("throttling a link (tc tbf)", tool("tc", &all)) {
        return;
    }
    let mut run =
        Run::new("throttled link", "tc tbf, 40 Mbit/s; another consumer of the same producer on loopback");
    let wide = Config { host: "0.0.0.0", advertised_host: HOSTS[0], ..large() };
    let mut producer = Engine::at(&net.place(0));
    producer.open(&wide).unwrap();
    let mut near = net.engine(0, large());
    let mut far = net.engine(1, large());
    producer.publish(&blocks(32), &tags(0, 32));
    run.pull(&mut near, "warm", producer.id(), &tags(0, 8), &blocks(8));
    for round in 0..times(1, 10) {
        let id = format!("r{round}");
        far.ask_from(&id, producer.id());
        assert_eq!(far.look_up(&id, &tags(0, 8)), [HIT; 8]);
        run.load(&mut far, &id, &tags(0, 8), &blocks(8));
        run.injections += 1;
        let mut longest = Duration::ZERO;
        for other in 0..10 {
            let start = std::time::Instant::now();
            run.pull(&mut near, &format!("n{round}.{other}"), producer.id(), &tags(0, 8), &blocks(8));
            longest = longest.max(start.elapsed());
        }
        assert!(far.has_no_result_for(Duration::ZERO) || longest < Duration::from_secs(1), "{longest:?}");
        run.collect_one(&mut far).expect("DONE");
        run.check(&mut far, &blocks(8), &tags(0, 8));
        far.finish(&id);
        // What the deadline cuts on a slow link is cut in time, and leaves nothing in the way of the next.
        let id = format!("cut{round}");
        far.try_request(&id, &symmetric(&id, producer.id()), Times { load_ms: 400, ..Times::default() })
            .unwrap();
        assert_eq!(far.look_up(&id, &tags(0, 32)), [HIT; 32]);
        run.load(&mut far, &id, &tags(0, 32), &blocks(32));
        let result = run.collect_one(&mut far);
        result.expect("TIMED_OUT");
        run.ended("a load", result.took, DEADLINE);
        far.finish(&id);
        producer.assert_comes_to_rest(32);
    }
    run.end();
}

#[test]
fn addresses_and_names_that_swallow_everything() {
    let Some(net) = Net::new("hole") else { return };
    let mut run = Run::new("black hole", "an address that swallows packets; a name server that does");
    // What `ip netns exec` shows the process as /etc/resolv.conf.
    let folder = format!("/etc/netns/{}", net.names[0]);
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(format!("{folder}/resolv.conf"), format!("nameserver {NOBODY}\n")));
    let with_name = permitted("a name server of its own (/etc/netns)", written.is_ok());
    let mut engine = net.engine(0, Config::default());
    let nobody = format!("{NOBODY}:7000");
    for round in 0..times(2, 20) {
        for (kind, peer) in [("ip", nobody.as_str()), ("name", "kv.example.com:7000")] {
            if kind == "name" && !with_name {
                continue;
            }
            let (ask, pull) = (format!("ask-{kind}{round}"), format!("pull-{kind}{round}"));
            engine.try_request(&ask, &symmetric(&ask, peer), impatient()).unwrap();
            engine.try_request(&pull, &pd(&pull, peer), impatient()).unwrap();
            run.load(&mut engine, &pull, &tags(0, 4), &blocks(4));
            engine.look_up_now(&ask, &tags(0, 4));
            let result = run.collect_one(&mut engine);
            assert!(["TIMED_OUT", "NO_PEER"].contains(&result.name.as_str()), "{result:?}");
            if result.name == "TIMED_OUT" {
                run.ended("a load", result.took, DEADLINE);
            }
            engine.wait("lookups", &ask, Duration::from_secs(20));
            assert_eq!(engine.look_up_now(&ask, &tags(0, 4)), [MISS; 4]);
            engine.finish(&ask);
            engine.finish(&pull);
            run.injections += 1;
        }
    }
    run.calls(&mut engine);
    let took = engine.free(true);
    assert!(took < Duration::from_secs(2), "free took {took:?}");
    run.spent(took);
    // Ours alone; the folder above may be others' too.
    let _ = std::fs::remove_dir_all(&folder);
    run.end();
}
