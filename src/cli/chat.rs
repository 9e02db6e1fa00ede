//! `deltic chat`: a conversation in the terminal, or over a pipe. Answers go to stdout; prompts, reasoning and what a
//! person should know to stderr. A turn that cannot be answered is taken back and the conversation goes on.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::ChatArgs;
use super::files::{ModelFiles, utf8};
use super::generate::sampling;
use super::interrupt::Interrupt;
use super::printer::Printer;
use super::report;
use super::session::{Answer, Finish, Job, Session, SessionOptions, checkpoint_sampling, render_chat};
use crate::base::{Error, ErrorKind, Result, SamplingParams};
use crate::text::ChatTemplate;

/// A line that is longer than this is no question.
const LINE_BYTES_MAX: u64 = 16 << 20;

const HELP: &str = "/help            this list
/reset           forget the conversation; the system message stays
/system TEXT     set the system message; without TEXT, remove it
/thinking on|off whether the model thinks before it answers
/quit            leave, as the end of input does
//TEXT           say /TEXT to the model
Ctrl-C stops the answer that is being written.";

pub fn run(args: &ChatArgs) -> Result<ExitCode> {
    let files = ModelFiles::open(args.model.model.as_deref())?;
    // Read before the weights, so that a missing template is said at once.
    let template = files.template()?;
    let options = SessionOptions { engine: args.speculate.options()?, streams: 1, quiet: false };
    let session = Session::open(&files, &args.model, &args.backend.spec(), options)?;
    let sampling = sampling(&args.sampling, checkpoint_sampling(session.generation.as_ref()))?;
    let terminal = std::io::stdin().is_terminal();
    let interrupt = Interrupt::install(move |stopping| {
        if !stopping {
            eprintln!("\n/quit or the end of input leaves");
            prompt(terminal);
        }
    })?;
    let mut chat = Chat {
        session,
        template,
        sampling,
        max_tokens: args.max_tokens.unwrap_or(u32::MAX),
        system: args.system.clone(),
        thinking: args.thinking.enabled(),
        turns: Vec::new(),
    };
    if terminal {
        eprintln!("/help lists the commands");
    }
    let mut lines = Lines { input: std::io::stdin().lock() };
    loop {
        prompt(terminal);
        let line = match lines.next()? {
            None => break,
            Some(Ok(line)) => line,
            Some(Err(error)) => {
                report(&error);
                continue;
            }
        };
        match parse(&line) {
            Line::Empty => {}
            Line::Quit => break,
            Line::Command(command) => chat.obey(command),
            Line::Unknown(name) => eprintln!("there is no command {name}; /help lists what there is"),
            Line::Question(text) => chat.turn(&text, &interrupt)?,
        }
    }
    if terminal {
        eprintln!();
    }
    Ok(ExitCode::SUCCESS)
}

/// On a terminal only: a script needs no invitation.
fn prompt(terminal: bool) {
    if terminal {
        let mut stderr = std::io::stderr();
        // Nothing depends on whether the invitation is seen.
        let _ = write!(stderr, "> ").and_then(|()| stderr.flush());
    }
}

struct Lines<R> {
    input: R,
}

impl<R: BufRead> Lines<R> {
    /// The next line without its end, or why it is no text; None at the end of input. Errors: no further line can be
    /// read.
    fn next(&mut self) -> Result<Option<Result<String>>> {
        let mut bytes = Vec::new();
        self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes).map_err(|error| {
            Error::failure(format!("cannot read stdin: {error}"), "check what is piped into the command")
        })?;
        if bytes.len() as u64 == LINE_BYTES_MAX {
            return Err(Error::input(
                format!("a line on stdin has more than {LINE_BYTES_MAX} bytes"),
                "give questions that fit the model's context",
            ));
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        let text = utf8(bytes).map_err(|error| error.within("stdin"));
        Ok(Some(text.map(|text| text.trim_end_matches(['\n', '\r']).to_owned())))
    }
}

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Empty,
    Quit,
    Command(Command),
    /// Looks like a command and is none.
    Unknown(String),
    Question(String),
}

#[derive(Debug, PartialEq, Eq)]
enum Command {
    Help,
    Reset,
    /// None removes the message.
    System(Option<String>),
    Thinking(bool),
}

fn parse(line: &str) -> Line {
    let text = line.trim();
    if text.is_empty() {
        return Line::Empty;
    }
    let Some(command) = text.strip_prefix('/') else { return Line::Question(line.to_owned()) };
    if command.starts_with('/') {
        return Line::Question(command.to_owned());
    }
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    match (name, rest.trim()) {
        ("quit" | "exit", "") => Line::Quit,
        ("help", "") => Line::Command(Command::Help),
        ("reset", "") => Line::Command(Command::Reset),
        ("system", "") => Line::Command(Command::System(None)),
        ("system", text) => Line::Command(Command::System(Some(text.to_owned()))),
        ("thinking", "on") => Line::Command(Command::Thinking(true)),
        ("thinking", "off") => Line::Command(Command::Thinking(false)),
        _ => Line::Unknown(text.to_owned()),
    }
}

/// A conversation and what answers it.
struct Chat {
    session: Session,
    template: ChatTemplate,
    sampling: SamplingParams,
    max_tokens: u32,
    system: Option<String>,
    /// None leaves it to the template.
    thinking: Option<bool>,
    /// Messages of user and assistant in turn.
    turns: Vec<Value>,
}

impl Chat {
    fn obey(&mut self, command: Command) {
        match command {
            Command::Help => eprintln!("{HELP}"),
            Command::Reset => {
                self.turns.clear();
                eprintln!("the conversation is forgotten");
            }
            Command::System(text) => {
                eprintln!("the system message is {}", if text.is_some() { "set" } else { "removed" });
                self.system = text;
            }
            Command::Thinking(on) => {
                self.thinking = Some(on);
                eprintln!("thinking is {}", if on { "on" } else { "off" });
            }
        }
    }

    /// Answers a question and keeps both. Errors: Failure only; what is wrong with the input is said and taken back.
    fn turn(&mut self, text: &str, interrupt: &Interrupt) -> Result<()> {
        self.turns.push(json!({"role": "user", "content": text}));
        let answer = match self.answer(interrupt) {
            Err(error) if error.kind() == ErrorKind::Input => {
                self.turns.pop();
                report(&error);
                return Ok(());
            }
            result => result?,
        };
        if answer.content.is_empty() && answer.reasoning.is_empty() && answer.tool_calls.is_empty() {
            // Stopped before its first word. An empty turn would tell the model that it had nothing to say.
            self.turns.pop();
        } else {
            self.turns.push(message(&answer));
        }
        eprintln!("{}", summary(&answer));
        if answer.finish == Finish::Length && answer.prompt_tokens + answer.ids.len() >= self.context_max() {
            eprintln!("the context of {} tokens is full; /reset begins a new conversation", self.context_max());
        }
        Ok(())
    }

    fn answer(&mut self, interrupt: &Interrupt) -> Result<Answer> {
        let system = self.system.as_ref().map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = system.into_iter().chain(self.turns.iter().cloned()).collect();
        let prompt = render_chat(&self.template, &self.session.tokenizer, &messages, &[], self.thinking)?;
        if prompt.len() >= self.context_max() {
            return Err(Error::input(
                format!(
                    "the conversation has {} tokens, the context holds {} with the answer",
                    prompt.len(),
                    self.context_max()
                ),
                "forget it with /reset, or start with a larger --max-context; this question was not kept",
            ));
        }
        let job = Job { prompt, tools: Vec::new(), sampling: self.sampling.clone(), max_tokens: self.max_tokens };
        let mut printer = Printer::default();
        let session = &mut self.session;
        let answer = interrupt.watch(|stop| session.answer(job, stop, &mut |piece| printer.piece(&piece)))?;
        printer.end(&answer)?;
        Ok(answer)
    }

    fn context_max(&self) -> usize {
        self.session.engine.core().options().context_max as usize
    }
}

/// An answer as a template wants it back.
fn message(answer: &Answer) -> Value {
    let mut message = json!({"role": "assistant", "content": answer.content, "reasoning_content": answer.reasoning});
    if !answer.tool_calls.is_empty() {
        message["tool_calls"] = answer.tool_calls.iter().map(super::session::ToolCall::to_json).collect();
    }
    message
}

/// `12 tokens, 345.6 tokens/s, drafted 9, accepted 7, mean 1.75 a verification`
fn summary(answer: &Answer) -> String {
    let stopped = match answer.finish {
        Finish::Cancelled => ", stopped",
        Finish::Length => ", cut at its limit",
        Finish::Stop => "",
    };
    format!(
        "[{} tokens, {:.1} tokens/s, drafted {}, accepted {}, mean {:.2} a verification{stopped}]",
        answer.ids.len(),
        answer.decode_tokens_per_s(),
        answer.drafted,
        answer.accepted,
        answer.mean_accepted(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_questions_unless_they_begin_with_a_slash() {
        let question = |text: &str| Line::Question(text.to_owned());
        assert_eq!(parse("  "), Line::Empty);
        assert_eq!(parse(" what is 1/2?"), question(" what is 1/2?"));
        assert_eq!(parse("//quit"), question("/quit"));
        assert_eq!(parse("/quit "), Line::Quit);
        assert_eq!(parse("/quit now"), Line::Unknown("/quit now".to_owned()));
        assert_eq!(parse("/"), Line::Unknown("/".to_owned()));
        assert_eq!(parse("/thinking maybe"), Line::Unknown("/thinking maybe".to_owned()));
        assert_eq!(parse("/thinking off"), Line::Command(Command::Thinking(false)));
        assert_eq!(parse("/system  Be brief. "), Line::Command(Command::System(Some("Be brief.".to_owned()))));
        assert_eq!(parse("/system"), Line::Command(Command::System(None)));
    }

    #[test]
    fn lines_end_at_either_line_end_and_at_the_end_of_input() {
        let mut lines = Lines { input: &b"a\r\n\ncaf\xe9\nb"[..] };
        let all: Vec<Option<String>> =
            std::iter::from_fn(|| lines.next().expect("bytes in memory")).map(Result::ok).collect();
        assert_eq!(all, [Some("a".to_owned()), Some(String::new()), None, Some("b".to_owned())]);
    }
}
