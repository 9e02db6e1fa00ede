//! L5: the commands. The only place that chooses a backend, reads the environment (through clap) and prints.

pub mod args;
mod bench;
mod chat;
mod compare;
mod demo;
mod eval;
mod files;
mod generate;
mod inspect;
mod interrupt;
mod open;
mod plan;
mod printer;
mod progress;
mod session;
mod sizing;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::base::{Error, Result};
use args::{Args, Command};

/// Parses the command line, runs the command and reports an error in two lines: what is wrong, and what to do.
pub fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            // Nothing can be done about a closed stream at this point.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match run_command(args.command) {
        Ok(code) => code,
        Err(error) => {
            report(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

fn run_command(command: Command) -> Result<ExitCode> {
    match command {
        Command::Chat(args) => chat::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Bench(args) => bench::run(&args),
    }
}

/// The two lines of an error on stderr.
fn report(error: &Error) {
    eprintln!("error: {}\nremedy: {}", one_line(error.what()), one_line(error.remedy()));
}

/// Messages of libraries may span lines; ours promise one.
fn one_line(text: &str) -> String {
    text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Prints to stdout. A reader that has gone away ends the command quietly, as a pipeline expects.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Error::failure(format!("cannot write to stdout: {error}"), "check where the output goes"))
}

fn print_json(value: &serde_json::Value) -> Result<()> {
    print(&format!("{value:#}\n"))
}
