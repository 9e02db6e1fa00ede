//! An answer as it comes: content to stdout; reasoning to stderr, dimmed on a terminal.

use std::io::{IsTerminal, Write};

use super::print;
use super::session::{Answer, Piece};
use crate::base::Result;

#[derive(Default)]
pub struct Printer {
    in_reasoning: bool,
}

impl Printer {
    /// Prints a piece. Errors: Failure if stdout takes no more.
    pub fn piece(&mut self, piece: &Piece) -> Result<()> {
        match piece {
            Piece::Reasoning(text) => {
                let (open, close) = if std::io::stderr().is_terminal() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
                // Reasoning is a courtesy; a closed stderr must not end the answer.
                let _ = write!(std::io::stderr(), "{open}{text}{close}");
                self.in_reasoning = true;
                Ok(())
            }
            Piece::Content(text) => {
                self.end_reasoning();
                print(text)
            }
        }
    }

    /// Prints what came in no piece: tool calls and the last line feed.
    pub fn end(&mut self, answer: &Answer) -> Result<()> {
        self.end_reasoning();
        for call in &answer.tool_calls {
            print(&format!("{} {}", call.name, call.arguments))?;
        }
        print("\n")
    }

    fn end_reasoning(&mut self) {
        if std::mem::take(&mut self.in_reasoning) {
            eprintln!();
        }
    }
}
