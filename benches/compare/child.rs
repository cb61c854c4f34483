//! Other processes: this program once more, or a rival's script; asked and answering in lines over their standard streams.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

/// No question takes longer to answer unless something is wrong.
const BOUND_S: i64 = 60;

/// A process, and those that it has started. All are killed when this is dropped.
pub struct Child {
    process: std::process::Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Child {
    pub fn of_this_program(arguments: &[String]) -> Child {
        Child::start(Command::new(std::env::current_exe().unwrap()).args(arguments)).unwrap()
    }

    pub fn start(command: &mut Command) -> io::Result<Child> {
        // A group of its own, so that one signal reaches all of it.
        let mut process = command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Ok(Child { process, questions, answers })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn ask(&mut self, question: &str) -> String {
        self.try_ask(question).unwrap()
    }

    pub fn answer(&mut self) -> String {
        self.try_answer().unwrap()
    }

    pub fn try_ask(&mut self, question: &str) -> io::Result<String> {
        writeln!(self.questions, "{question}")?;
        self.try_answer()
    }

    pub fn try_answer(&mut self) -> io::Result<String> {
        self.answer_within(BOUND_S)
    }

    /// One line.
    pub fn answer_within(&mut self, seconds: i64) -> io::Result<String> {
        if self.answers.buffer().is_empty() {
            let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
            if poll(&mut [PollFd::new(self.answers.get_ref(), PollFlags::IN)], Some(&limit))? == 0 {
                return Err(io::Error::other(format!("no answer within {seconds} s")));
            }
        }
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.ends_with('\n') {
            Ok(line.trim_end().to_owned())
        } else {
            Err(io::Error::other("the other process has ended"))
        }
    }

    /// Processes that spin when they have nothing to do take no CPU until [`Self::wake`].
    pub fn rest(&self) {
        self.signal(Signal::STOP);
    }

    pub fn wake(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = kill_process_group(Pid::from_child(&self.process), signal);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.process.wait();
    }
}
