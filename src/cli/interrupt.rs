//! Ctrl-C: while an answer is being written it stops the answer, otherwise the command decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::{Error, Result};

/// The handler of the process; installed once.
pub struct Interrupt {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Whether there is something to stop.
    writing: AtomicBool,
    stop: AtomicBool,
}

impl Interrupt {
    /// `otherwise` is called, in a thread of its own, when nothing is being written or has been told to stop already,
    /// which it is told by its argument.
    pub fn install(mut otherwise: impl FnMut(bool) + Send + 'static) -> Result<Interrupt> {
        let state = Arc::new(State::default());
        let seen = state.clone();
        let handler = move || {
            let writing = seen.writing.load(Ordering::SeqCst);
            if !writing || seen.stop.swap(true, Ordering::SeqCst) {
                otherwise(writing);
            }
        };
        ctrlc::set_handler(handler).map_err(|error| {
            Error::failure(
                format!("cannot watch for Ctrl-C: {error}"),
                "check the limits on this process, then try again",
            )
        })?;
        Ok(Interrupt { state })
    }

    /// Runs `write`, which asks its argument between steps whether to stop.
    pub fn watch<T>(&self, write: impl FnOnce(&dyn Fn() -> bool) -> T) -> T {
        let state = &self.state;
        state.stop.store(false, Ordering::SeqCst);
        state.writing.store(true, Ordering::SeqCst);
        let result = write(&|| state.stop.load(Ordering::SeqCst));
        state.writing.store(false, Ordering::SeqCst);
        result
    }
}
