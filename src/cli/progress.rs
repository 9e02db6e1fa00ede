//! Progress of long work: a bar on a terminal, a line now and then otherwise. Always on stderr.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Cases,
}

/// Between two log lines of one piece of work.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

pub struct Progress {
    what: &'static str,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Progress {
    pub fn new(what: &'static str, unit: Unit) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = match unit {
                Unit::Bytes => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}",
                Unit::Cases => "{msg} {wide_bar} {pos}/{len}",
            };
            let style = ProgressStyle::with_template(template).expect("a template of known keys");
            ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr()).with_style(style).with_message(what)
        });
        Progress { what, bar, last_line: Instant::now() }
    }

    pub fn set(&mut self, done: u64, total: u64) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done);
            }
            None if self.last_line.elapsed() >= LINE_INTERVAL => {
                self.last_line = Instant::now();
                eprintln!("{}: {} %", self.what, 100 * done / total.max(1));
            }
            None => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
