//! At rest every table is empty, and descriptors and threads are what they were.

use crate::peer::{Config, Engine, blocks, tags};

fn cycle(producer: &mut Engine, consumer: &mut Engine, number: u64) {
    let id = format!("r{number}");
    match number % 3 {
        0 => consumer.pull(&id, producer.id(), &tags(0, 2), &blocks(2)),
        1 => {
            consumer.pull_from(&id, producer.id());
            consumer.load(&id, number, &[50], &[9]);
            producer.serve(&id);
            producer.store(&id, number, &[50], &[50]);
            consumer.result().expect("DONE");
            producer.result().expect("DONE");
            consumer.finish(&id);
            producer.finish(&id);
        }
        _ => {
            consumer.ask_from(&id, producer.id());
            consumer.look_up(&id, &tags(0, 2));
            consumer.load(&id, number, &[1], &[1]);
            consumer.finish(&id);
            let result = consumer.result();
            assert!(["ABORTED", "DONE"].contains(&result.name.as_str()), "{result:?}");
        }
    }
}

#[test]
fn a_thousand_requests_leave_nothing_behind() {
    let (mut producer, mut consumer) = (Engine::new(&Config::default()), Engine::new(&Config::default()));
    producer.publish(&blocks(4), &tags(0, 4));
    producer.fill(&[50], &[50]);
    (0..50).for_each(|number| cycle(&mut producer, &mut consumer, number));
    let counts = |engine: &Engine| (engine.fds(), engine.threads());
    let before = [counts(&producer), counts(&consumer)];
    (50..1050).for_each(|number| cycle(&mut producer, &mut consumer, number));
    producer.assert_comes_to_rest(4);
    consumer.assert_comes_to_rest(0);
    assert_eq!([counts(&producer), counts(&consumer)], before, "fds and threads");
    assert_eq!([producer.stat("sessions_opened"), consumer.stat("sessions_opened")], [1, 1]);
    assert!(producer.unpublish(&tags(0, 4)));
}

#[test]
fn thirty_peers_that_come_and_go_leave_nothing_behind() {
    let mut producer = Engine::new(&Config::default());
    producer.publish(&blocks(4), &tags(0, 4));
    let mut visitor = Engine::without_tier();
    let visit = |visitor: &mut Engine, producer: &Engine, number: u64| {
        visitor.open(&Config::default()).unwrap();
        visitor.pull(&format!("r{number}"), producer.id(), &tags(0, 4), &blocks(4));
        visitor.free(true);
    };
    let counts = |engine: &Engine| (engine.fds(), engine.threads());
    // Before anyone came: after a visit, sockets are still being closed for a while, and a count would tell nothing.
    let producer_before = counts(&producer);
    visitor.open(&Config::default()).unwrap();
    visitor.free(true);
    let visitor_before = counts(&visitor);
    (0..30).for_each(|number| visit(&mut visitor, &producer, number));
    crate::common::eventually("all sessions are gone", || producer.stat("peers") == 0);
    producer.assert_comes_to_rest(4);
    crate::common::eventually("fds and threads are back", || {
        counts(&visitor) == visitor_before && counts(&producer) == producer_before
    });
}
