//! The producer: this program once more, in a process of its own, told what to do through its standard streams.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use p2pkv::protocol::keys::KeysView;

use crate::node::{KEY_LEN, Node, Shape, content, cpu_time, push_key};

const ROLE: &str = "--producer";
const TELL_CPU_TIME: &str = "cpu";

/// The shape, if the arguments are those of a producer.
pub fn asked_for(arguments: &[String]) -> Option<Shape> {
    let [role, block_len, blocks, streams] = arguments else { return None };
    let number = |text: &String| text.parse().unwrap();
    let shape = || Shape { block_len: number(block_len), blocks: number(blocks), streams: number(streams) };
    (role == ROLE).then(shape)
}

/// Publishes every block and serves until the standard input ends.
pub fn serve(shape: Shape) {
    let node = Node::new(shape, content);
    let mut keys = Vec::new();
    (0..shape.blocks).for_each(|block| push_key(block, &mut keys));
    let blocks: Vec<u32> = (0..shape.blocks as u32).collect();
    node.tier.publish(KeysView::new(&keys, KEY_LEN).unwrap(), &blocks).unwrap();
    println!("{}", node.tier.local_id());
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            TELL_CPU_TIME => println!("{}", cpu_time().as_nanos()),
            other => panic!("unknown command {other:?}"),
        }
    }
}

/// The other process. Killed when this is dropped.
pub struct Producer {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    id: String,
}

impl Producer {
    pub fn start(shape: Shape) -> Producer {
        let program = std::env::current_exe().unwrap();
        let mut process = Command::new(program)
            .arg(ROLE)
            .args([shape.block_len, shape.blocks, shape.streams].map(|number| number.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut producer = Producer { process, commands, answers, id: String::new() };
        producer.id = producer.answer();
        producer
    }

    /// `host:port` of its control socket.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn cpu_time(&mut self) -> Duration {
        writeln!(self.commands, "{TELL_CPU_TIME}").unwrap();
        Duration::from_nanos(self.answer().parse().unwrap())
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the producer process has ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
