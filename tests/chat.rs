//! `deltic chat` over a pipe, as a script and as a person would drive it: several turns, Ctrl-C, the commands.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longer than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const GREEDY: &[&str] = &["--temperature", "0", "--thinking", "off"];

#[test]
fn a_name_told_two_turns_before_is_remembered_until_the_reset() {
    for thinking in ["on", "off"] {
        let mut chat = Chat::start(&["--temperature", "0", "--thinking", thinking]);
        chat.ask("My name is Ivan.");
        assert_eq!(chat.ask("What is 2+2? Answer briefly."), "4", "thinking {thinking}");
        assert_eq!(chat.ask("What is my name?"), "Ivan", "thinking {thinking}");
        chat.say("/reset");
        chat.await_stderr("the conversation is forgotten");
        assert_ne!(chat.ask("What is my name?"), "Ivan");
        chat.end();
    }
}

#[test]
fn each_answer_is_followed_by_its_speed_and_acceptance() {
    let mut chat = Chat::start(&[GREEDY, &["--speculate", "3"]].concat());
    chat.ask("Count from 1 to 8.");
    let summary = chat.summaries.pop().expect("a line");
    for part in ["tokens/s", "drafted ", "accepted ", "mean "] {
        assert!(summary.contains(part), "{summary}");
    }
    assert!(!summary.contains("drafted 0"), "{summary}");
    chat.end();
}

#[test]
fn ctrl_c_stops_the_answer_and_the_conversation_goes_on() {
    let mut chat = Chat::start(&[GREEDY, &["--threads", "1", "--speculate", "0"]].concat());
    assert_eq!(chat.ask("What is 2+2? Answer briefly."), "4");
    chat.say(ENDLESS);
    let begun = chat.stdout.recv_timeout(PATIENCE).expect("the beginning of an answer");
    assert!(!begun.is_empty());
    chat.interrupt();
    let summary = chat.await_stderr("tokens/s, drafted");
    assert!(summary.contains("stopped"), "{summary}");
    chat.drain();
    assert_eq!(chat.ask("What is 3+4? Answer briefly."), "7");
    chat.interrupt();
    chat.await_stderr("/quit or the end of input leaves");
    assert_eq!(chat.ask("What is 2+2? Answer briefly."), "4");
    chat.end();
}

#[test]
fn a_full_context_is_said_and_the_reset_helps() {
    let mut chat = Chat::start(&[GREEDY, &["--max-context", "128"]].concat());
    chat.say(&"word ".repeat(200));
    let error = chat.await_stderr("error: ");
    assert!(error.contains("the context holds 128"), "{error}");
    assert!(chat.await_stderr("remedy: ").contains("/reset"));
    // The question was taken back, so this one fits; the counting fills what is left.
    assert_eq!(chat.ask("What is 2+2? Answer briefly."), "4");
    chat.ask(ENDLESS);
    chat.say("What is 3+4? Answer briefly.");
    assert!(chat.await_stderr("error: ").contains("the context holds 128"));
    chat.say("/reset");
    assert_eq!(chat.ask("What is 3+4? Answer briefly."), "7");
    chat.end();
}

#[test]
fn commands_are_obeyed_and_not_sent() {
    let mut chat = Chat::start(GREEDY);
    for (command, reply) in [
        ("/help", "/thinking on|off"),
        ("/system You are brief.", "the system message is set"),
        ("/thinking on", "thinking is on"),
        ("/nonsense", "there is no command /nonsense"),
    ] {
        chat.say(command);
        chat.await_stderr(reply);
    }
    assert_eq!(chat.ask("What is 2+2? Answer briefly."), "4");
    chat.say("/quit");
    assert!(chat.child.wait().expect("it ends").success());
}

/// Beyond what the demo model was trained on: it counts until it is stopped, some ten seconds at least.
const ENDLESS: &str = "Count from 1 to 500.";

/// A running chat.
struct Chat {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Content as it comes.
    stdout: Receiver<String>,
    /// Line by line.
    stderr: Receiver<String>,
    /// The lines after the answers.
    summaries: Vec<String>,
}

impl Chat {
    fn start(args: &[&str]) -> Chat {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deltic"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DELTIC_")) {
            command.env_remove(name);
        }
        command.arg("chat").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let (mut out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let (to_stdout, stdout) = channel();
        let (to_stderr, stderr) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                let _ = to_stdout.send(String::from_utf8_lossy(&bytes[..count]).into_owned());
            }
        });
        std::thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                let _ = to_stderr.send(line);
            }
        });
        let stdin = child.stdin.take();
        Chat { child, stdin, stdout, stderr, summaries: Vec::new() }
    }

    fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("open");
        writeln!(stdin, "{line}").expect("the chat reads");
    }

    /// The content of the answer, once its last line feed is there.
    fn ask(&mut self, question: &str) -> String {
        self.say(question);
        let summary = self.await_stderr("tokens/s, drafted");
        self.summaries.push(summary);
        let mut answer = String::new();
        while !answer.ends_with('\n') {
            answer += &self.stdout.recv_timeout(PATIENCE).expect("an answer that ends");
        }
        answer.trim_end().to_owned()
    }

    /// The next line of stderr that holds `part`.
    #[track_caller]
    fn await_stderr(&mut self, part: &str) -> String {
        let mut seen = Vec::new();
        loop {
            let line = self.stderr.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {part:?} in {seen:#?}"));
            if line.contains(part) {
                return line;
            }
            seen.push(line);
        }
    }

    /// What is left of a stopped answer, up to its line feed.
    fn drain(&self) {
        while !self.stdout.recv_timeout(PATIENCE).expect("the line feed after an answer").ends_with('\n') {}
    }

    /// What Ctrl-C sends.
    fn interrupt(&self) {
        let sent = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().expect("kill");
        assert!(sent.success());
    }

    /// The end of input ends the chat, and that is no failure.
    fn end(mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().expect("it ends");
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        // After a failed assertion; a chat that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
