//! This program once more, in a process of its own, asked and answering in lines over its standard streams.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// The other process. Killed when this is dropped.
pub struct Child {
    process: std::process::Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Child {
    pub fn of_this_program(arguments: &[String]) -> Child {
        Child::start(Command::new(std::env::current_exe().unwrap()).args(arguments))
    }

    fn start(command: &mut Command) -> Child {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let questions = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Child { process, questions, answers }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn ask(&mut self, question: &str) -> String {
        writeln!(self.questions, "{question}").unwrap();
        self.answer()
    }

    /// One line.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the other process has ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
