//! Rivals in Python: scripts of `benches/rivals`, which install what they need into a cache outside of the tree.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::child::Child;
use crate::race::Opponent;
use crate::shape::Shape;

/// Downloads included, which are made once.
const PREPARE_BOUND_S: i64 = 300;

/// What of them is there.
pub struct Rivals {
    report: Result<Value, String>,
}

/// vLLM polls as often as it can, or every millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    Busy,
    Paced,
}

impl Pace {
    pub fn name(self) -> &'static str {
        match self {
            Pace::Busy => "busy",
            Pace::Paced => "paced",
        }
    }
}

fn script(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/rivals").join(name)
}

impl Rivals {
    pub fn prepare() -> Rivals {
        let mut command = Command::new("python3");
        command.arg(script("environment.py")).env("PYTHONDONTWRITEBYTECODE", "1");
        let report = Child::start(&mut command)
            .and_then(|mut child| child.answer_within(PREPARE_BOUND_S))
            .map_err(|error| format!("python3: {error}"))
            .and_then(|line| serde_json::from_str(&line).map_err(|error| error.to_string()));
        Rivals { report }
    }

    /// Without any, for a run that wants none.
    pub fn none() -> Rivals {
        Rivals { report: Err("not asked for".to_owned()) }
    }

    /// Its version or place, or why it cannot be measured.
    fn ready(&self, name: &str) -> Result<String, String> {
        let entry = &self.report.as_ref().map_err(String::clone)?[name];
        match (entry["ready"].as_str(), entry["missing"].as_str()) {
            (Some(ready), _) => Ok(ready.to_owned()),
            (None, why) => Err(why.unwrap_or("it cannot be installed").to_owned()),
        }
    }

    fn text(&self, name: &str) -> String {
        let text = self.report.as_ref().ok().and_then(|report| report[name].as_str());
        text.unwrap_or_default().to_owned()
    }

    /// The directory of NIXL's C library.
    pub fn nixl(&self) -> Result<String, String> {
        self.ready("nixl")
    }

    pub fn mooncake(&self, shape: Shape) -> Result<Script, String> {
        self.ready("mooncake")?;
        let mut command = self.python("mooncake_tcp.py");
        command.args([shape.block_len, shape.blocks].map(|number| number.to_string()));
        command.env("PYTHONPATH", self.text("mooncake_modules"));
        command.env("LD_LIBRARY_PATH", self.text("libraries"));
        Script::start(command)
    }

    /// `null`: with a data plane that moves nothing.
    pub fn vllm(&self, pace: Pace, null: bool, block_len: usize, blocks: usize) -> Result<Script, String> {
        let version = self.ready("vllm")?;
        let mut command = self.python("vllm_tier.py");
        command.args([version.as_str(), pace.name(), if null { "null" } else { "nixl" }]);
        command.args([block_len, blocks].map(|number| number.to_string()));
        Script::start(command)
    }

    fn python(&self, name: &str) -> Command {
        let mut command = Command::new(self.text("python"));
        command.arg(script(name)).env("PYTHONDONTWRITEBYTECODE", "1").stderr(Stdio::null());
        command
    }
}

/// A rival that runs.
pub struct Script(Child);

impl Script {
    fn start(mut command: Command) -> Result<Script, String> {
        let mut child = Child::start(&mut command).map_err(|error| error.to_string())?;
        numbers(&child.try_answer().map_err(|error| error.to_string())?)?;
        Ok(Script(child))
    }

    pub fn ask(&mut self, question: &str) -> Result<Vec<f64>, String> {
        numbers(&self.0.try_ask(question).map_err(|error| error.to_string())?)
    }
}

/// `ok NUMBER...` or `error WHY`
fn numbers(answer: &str) -> Result<Vec<f64>, String> {
    match answer.split_once(' ').unwrap_or((answer, "")) {
        ("ok", numbers) => Ok(numbers.split(' ').filter_map(|number| number.parse().ok()).collect()),
        ("error", why) => Err(why.to_owned()),
        _ => Err(format!("an answer that is none: {answer:?}")),
    }
}

impl Opponent for Script {
    fn run(&mut self) -> Result<Duration, String> {
        let numbers = self.ask("run")?;
        numbers.first().map(|seconds| Duration::from_secs_f64(*seconds)).ok_or_else(|| "no number".to_owned())
    }

    fn rest(&mut self) {
        self.0.rest();
    }

    fn wake(&mut self) {
        self.0.wake();
    }
}
