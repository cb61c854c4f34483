//! Engines that may have little: descriptors, memory, locked memory, /dev/shm, permission.

use std::time::{Duration, Instant};

use p2pkv::protocol::config::Timeouts;
use p2pkv::protocol::job::LookupState;

use crate::common::{BOUND, Node, NodeOptions, eventually, keys};
use crate::peer::{Config, Engine, Place, blocks, tags};
use crate::run::{Run, held, is_soak, permitted, times, tool};
use crate::strangers;

fn limited(resource: u32, limit: u64) -> Place {
    Place { limits: vec![(resource as libc::c_int, limit)], ..Place::default() }
}

/// Lets this process have as many descriptors as it may; how many that is.
fn raise_own_limit() -> u64 {
    // SAFETY: plain numbers, in and out.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        limit.rlim_max
    }
}

/// Asks for one block. `true` if the engine let it have it, `false` if it was turned away.
fn is_let_in(node: &mut Node, peer: &str, number: u64) -> bool {
    let (host, port) = peer.rsplit_once(':').unwrap();
    let request = node.request(&format!(
        r#"{{"remote_kv_source":{{"kv_request_id":"c{number}","remote_host":"{host}","remote_port":{port}}}}}"#
    ));
    let key = keys([0]);
    let found = node.look_up(request, &key) == [LookupState::Hit];
    if found {
        node.load(request, 1, &key, &[1]);
        let result = node.result();
        assert!(result.outcome != p2pkv::protocol::job::Outcome::Done || node.holds(1, 0), "wrong bytes");
    }
    node.tier.request_finish(request).unwrap();
    found
}

#[test]
fn more_peers_than_descriptors() {
    let (limit, crowd) = if is_soak() { (256, 300) } else { (96, 24) };
    if !permitted("a crowd of tiers (ulimit -n)", raise_own_limit() >= crowd * 30 + 200) {
        return;
    }
    let mut run = Run::new("256 descriptors, 300 peers", "RLIMIT_NOFILE; another peer pulls all the time");
    let mut engine = Engine::at(&limited(libc::RLIMIT_NOFILE, limit));
    // Who left before the engine could dial it back is known for as long as a handshake may take.
    engine.open(&Config { max_peers: 340, handshake_ms: 3000, ..Config::default() }).unwrap();
    engine.publish(&blocks(4), &tags(0, 4));
    let mut friend = Engine::new(&Config::default());
    run.pull(&mut friend, "first", engine.id(), &tags(0, 4), &blocks(4));
    let before = held(&engine);
    let handshake = Duration::from_millis(1500);
    let mut nodes: Vec<Node> = Vec::new();
    let mut turned_away = 0;
    for number in 0..crowd {
        let timeouts = Timeouts { handshake, lookup: 2 * handshake, ..Timeouts::default() };
        let mut node =
            Node::new(NodeOptions { block_len: 16 << 10, num_blocks: 4, timeouts, ..NodeOptions::default() });
        // Whoever comes when all is taken need not be waited for each.
        if turned_away < 3 {
            turned_away += u64::from(!is_let_in(&mut node, engine.id(), number));
        } else {
            let id = format!("x{number}");
            let (host, port) = engine.id().rsplit_once(':').unwrap();
            node.request(&format!(
                r#"{{"remote_kv_source":{{"kv_request_id":"{id}","remote_host":"{host}","remote_port":{port}}}}}"#
            ));
        }
        nodes.push(node);
        run.injections += 1;
        if number % 4 == 0 {
            let start = Instant::now();
            run.pull(&mut friend, &format!("f{number}"), engine.id(), &tags(0, 4), &blocks(4));
            run.spent(start.elapsed());
        }
    }
    println!("{} descriptors", engine.fds());
    println!("{turned_away} of the first comers were turned away");
    drop(nodes);
    eventually("the crowd is gone", || engine.stat("peers") <= 1);
    let mut late = Engine::new(&Config::default());
    run.pull(&mut late, "late", engine.id(), &tags(0, 4), &blocks(4));
    drop(late);
    run.pull(&mut friend, "last", engine.id(), &tags(0, 4), &blocks(4));
    eventually("the last comer is gone", || engine.stat("peers") <= 1);
    run.rests(&mut engine, 4, before);
    run.end();
}

#[test]
fn little_address_space() {
    let mut run =
        Run::new("memory limit", "RLIMIT_AS 1 GiB, while strangers promise messages and frames of 1 GiB");
    let mut engine = Engine::at(&limited(libc::RLIMIT_AS, 1 << 30));
    let config = Config { data_port: crate::peer::free_port(), ..Config::default() };
    engine.open(&config).unwrap();
    engine.publish(&blocks(32), &tags(0, 32));
    let mut consumer = Engine::new(&Config::default());
    run.pull(&mut consumer, "first", engine.id(), &tags(0, 32), &blocks(32));
    for round in 0..times(2, 40) {
        let visitors = strangers::visit_all([engine.port(), config.data_port]);
        run.pull(&mut consumer, &format!("r{round}"), engine.id(), &tags(0, 32), &blocks(32));
        run.injections += visitors.len() as u64;
    }
    run.calls(&mut engine);
    run.end();
}

/// Pulls between two engines, one of them at that place.
fn pulls_at(fault: &'static str, how: &'static str, place: &Place) {
    let mut run = Run::new(fault, how);
    let mut engine = Engine::at(place);
    engine.open(&Config::large()).unwrap();
    let mut other = Engine::new(&Config::large());
    engine.publish(&blocks(32), &tags(0, 32));
    other.publish(&blocks(32), &tags(100, 32));
    let upper: Vec<u32> = (64..96).collect();
    for round in 0..times(1, 20) {
        run.injections += 1;
        run.pull(&mut other, &format!("o{round}"), engine.id(), &tags(0, 32), &upper);
        run.pull(&mut engine, &format!("e{round}"), other.id(), &tags(100, 32), &upper);
    }
    run.calls(&mut engine);
    run.end();
}

#[test]
fn no_locked_memory() {
    pulls_at("no locked memory", "ulimit -l 0", &limited(libc::RLIMIT_MEMLOCK, 0));
}

#[test]
fn a_small_dev_shm() {
    let mount = "mount -t tmpfs -o size=8m tmpfs /dev/shm && exec \"$0\" \"$@\"";
    let wrapper = ["unshare", "-m", "sh", "-c", mount].map(str::to_owned).to_vec();
    let works = tool("unshare", &["-m", "sh", "-c", "mount -t tmpfs -o size=8m tmpfs /dev/shm"]);
    if permitted("a /dev/shm of its own (unshare -m)", works) {
        pulls_at("/dev/shm of 8 MiB", "tmpfs in a mount namespace", &Place { wrapper, ..Place::default() });
    }
}

#[test]
fn a_process_of_another_user_that_may_not_be_traced() {
    let wrapper = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
    let wrapper: Vec<String> = wrapper.map(str::to_owned).to_vec();
    let this = std::env::current_exe().unwrap();
    let mut arguments: Vec<&str> = wrapper[1..].iter().map(String::as_str).collect();
    arguments.extend([this.to_str().unwrap(), "--list"]);
    if permitted("running as another user (setpriv)", tool("setpriv", &arguments)) {
        pulls_at(
            "no permission to trace",
            "the engines run as different users",
            &Place { wrapper, ..Place::default() },
        );
    }
}

/// Time to leave for those who wait for a session that they never get.
const _: () = assert!(BOUND.as_secs() > 5);
