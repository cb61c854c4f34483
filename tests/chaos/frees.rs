//! `p2p_tier_free`, whatever is under way; see also tests/processes/leaving.rs.

use std::time::Duration;

use crate::peer::{Config, Engine, blocks, free_port, tags};
use crate::run::{Run, held, times};

#[test]
fn frees_at_any_moment_of_whatever_is_under_way() {
    let mut run = Run::new(
        "free at any moment",
        "right after new; with queued messages; with transfers; on another thread",
    );
    let config = Config { port: free_port(), data_port: free_port(), ..Config::default() };
    let mut producer = Engine::new(&Config::default());
    producer.publish(&blocks(64), &tags(0, 64));
    let mut engine = Engine::without_tier();
    let nobody = format!("127.0.0.1:{}", free_port());
    let mut before = None;
    for round in 0..times(8, 40) {
        // The ports of the life before are free at once.
        engine.open(&config).unwrap();
        let mut jobs = Vec::new();
        if round % 4 == 1 {
            for request in 0..20 {
                let id = format!("r{request}");
                engine.pull_from(&id, &nobody);
                jobs.push(run.load(&mut engine, &id, &[request], &[request as u32]));
            }
        }
        if round % 4 == 2 {
            engine.ask_from("r", producer.id());
            engine.look_up("r", &tags(0, 64));
            jobs.push(run.load(&mut engine, "r", &tags(0, 64), &blocks(64)));
        }
        if round % 4 == 3 {
            engine.serve("s");
            jobs.push(run.store(&mut engine, "s", &tags(0, 8), &blocks(8)));
        }
        let took = if round % 2 == 0 { engine.free(round % 8 == 0) } else { engine.free_elsewhere() };
        // The loads from nobody are waited for as long as those of a peer that is there.
        assert!(took < Duration::from_millis(4500), "{took:?}");
        run.spent(took);
        run.give_up(&jobs);
        run.injections += 1;
        if round == 4 {
            before = Some(held(&engine));
        }
    }
    engine.open(&config).unwrap();
    run.pull(&mut engine, "last", producer.id(), &tags(0, 4), &blocks(4));
    engine.free(true);
    producer.assert_comes_to_rest(64);
    run.rested(&engine, before.unwrap());
    run.end();
}
