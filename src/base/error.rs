//! The one error type that leaves a module: what is wrong, and what to do about it.
//!
//! Programmer errors are assertions and never reach this type. Everything that a user, a file or a device can cause
//! does, as one line that names the thing, the value found and the limit, and one line with the remedy.

use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whose fault an error is; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A flag, a request or a file is wrong. Trying again unchanged cannot help. Exit code 2.
    Input,
    /// The machine failed: I/O, memory, device. Exit code 1.
    Failure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    remedy: String,
}

impl Error {
    /// Bad input. `what` names the thing, what was found and what was expected; `remedy` is an imperative sentence.
    pub fn input(what: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Input, what: what.into(), remedy: remedy.into() }
    }

    /// A failure of the machine rather than of the input.
    pub fn failure(what: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Failure, what: what.into(), remedy: remedy.into() }
    }

    /// Names the larger thing in which this error arose: `config.json: hidden_size is 0`.
    pub fn within(mut self, context: impl fmt::Display) -> Error {
        self.what = format!("{context}: {}", self.what);
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// One line: what is wrong.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// One line: what to do.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }

    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::Input => 2,
            ErrorKind::Failure => 1,
        }
    }
}

/// `what` alone, so that an error nests in a sentence; the command line prints the remedy on its own line.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_is_prefixed_and_the_kind_decides_the_exit_code() {
        let error = Error::input("hidden_size is 0", "give it a positive value").within("config.json");
        assert_eq!(error.to_string(), "config.json: hidden_size is 0");
        assert_eq!(error.remedy(), "give it a positive value");
        assert_eq!(error.exit_code(), 2);
        assert_eq!(Error::failure("a", "b").exit_code(), 1);
    }
}
