//! The `deltic` binary: hands the command line to the library and turns its answer into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    deltic::cli::run()
}
