//! The child: an engine that does what lines on its standard input say, and answers each with one line.

use std::io::BufRead;

use serde_json::{Value, json};

use super::abi::{Refusal, Tier, log_as_asked};

/// Set for children only.
pub const VARIABLE: &str = "P2PKV_TEST_ENGINE";

/// Before each answer, to tell it from what the test harness prints.
pub const MARK: &str = "engine> ";

#[test]
#[ignore = "it is what the other tests start as their children"]
fn engine_process() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    log_as_asked();
    let mut tier = None;
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let call: Value = serde_json::from_str(&line).unwrap();
        let answer = match carry_out(&mut tier, &call) {
            Ok(value) => json!({ "ok": value }),
            Err((status, text)) => json!({ "status": status, "error": text }),
        };
        println!("{MARK}{answer}");
    }
    // The parent has closed the line. It waits for our end, not for a drain.
    std::process::exit(0);
}

fn tags(call: &Value) -> Vec<u64> {
    call["tags"].as_array().unwrap().iter().map(|tag| tag.as_u64().unwrap()).collect()
}

fn blocks(call: &Value) -> Vec<u32> {
    let block = |block: &Value| u32::try_from(block.as_u64().unwrap()).unwrap();
    call["blocks"].as_array().unwrap().iter().map(block).collect()
}

fn carry_out(slot: &mut Option<Tier>, call: &Value) -> Result<Value, Refusal> {
    let what = call["do"].as_str().unwrap();
    if what == "new" {
        let tier = slot.insert(Tier::new(call)?);
        return Ok(json!(tier.id()));
    }
    if what == "free" {
        let tier = slot.take().unwrap();
        let took = match call["elsewhere"].as_bool() {
            Some(true) => tier.free_elsewhere(),
            _ => tier.free(call["finish_first"].as_bool().unwrap()),
        };
        return Ok(json!(took.as_micros() as u64));
    }
    let tier = slot.as_mut().unwrap();
    let name = call["name"].as_str().unwrap_or("");
    let number = |field: &str| call[field].as_u64().unwrap_or(0);
    Ok(match what {
        "calls" => tier.take_calls(),
        "difference" => json!(tier.first_difference(&blocks(call), &tags(call))),
        "fill" => json!(tier.fill(&blocks(call), &tags(call))),
        "finish" => json!(tier.finish(name)?),
        "load" => json!(tier.load(name, number("job"), &tags(call), &blocks(call))?),
        "look_up" => json!(tier.look_up(name, &tags(call), number("timeout_ms"))?),
        "outcome" => json!(tier.outcome(name)?),
        "peers" => json!(tier.peers()?),
        "publish" => json!(tier.publish(&tags(call), &blocks(call))?),
        "request" => {
            let times = ["load_ms", "lookup_ms", "store_ms"].map(number);
            json!(tier.request(name, call["params"].as_str().unwrap(), times)?)
        }
        "results" => json!(tier.results(number("count") as usize, number("timeout_ms"))?),
        "stats" => tier.stats()?,
        "steps" => {
            for _ in 0..number("count") {
                tier.step(call["params"].as_str().unwrap(), &tags(call), &blocks(call))?;
            }
            Value::Null
        }
        "store" => json!(tier.store(name, number("job"), &tags(call), &blocks(call))?),
        "wait" => json!(tier.wait(call["for"].as_str().unwrap(), name, number("timeout_ms"))?),
        "unpublish" => json!(tier.unpublish(&tags(call))?),
        unknown => panic!("an engine cannot {unknown}"),
    })
}
