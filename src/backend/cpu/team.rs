//! The worker threads of one backend and their scratch.
//!
//! A program runs inside the pool, so that an op can hand out tasks without waking anybody when it is too small to be
//! worth it. Tasks are taken from a queue as workers get free: cores here are shared with other programs. Which worker
//! runs a task never changes its result.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::memory::Memory;
use super::sample::Candidate;
use crate::base::{Error, Result};

/// Multiply-adds (or a like amount of other work) below which waking a worker costs more than it saves: about 20 us.
const SHARED_WORK_MIN: usize = 1 << 19;

/// What one worker keeps from op to op, so that no op allocates.
#[derive(Default)]
pub struct Scratch {
    pub floats: Memory,
    pub candidates: Vec<Candidate>,
}

pub struct Team {
    /// None for one thread, which runs everything inline.
    pool: Option<rayon::ThreadPool>,
    /// One per worker; a lock is never waited for.
    scratch: Vec<Mutex<Scratch>>,
}

impl Team {
    pub fn new(threads: usize) -> Result<Team> {
        let build = || rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|n| format!("cpu-{n}")).build();
        let pool = (threads > 1).then(build).transpose().map_err(|error| {
            Error::failure(format!("cannot start {threads} threads: {error}"), "ask for fewer threads")
        })?;
        Ok(Team { pool, scratch: (0..threads).map(|_| Mutex::default()).collect() })
    }

    pub fn threads(&self) -> usize {
        self.scratch.len()
    }

    /// Runs `program` on a worker, from where [`Team::each`] reaches the others.
    pub fn install<R: Send>(&self, program: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(program),
            None => program(),
        }
    }

    /// Whether `work` is worth sharing; else an op had better make one task of everything.
    pub fn shares(&self, work: usize) -> bool {
        self.pool.is_some() && work >= SHARED_WORK_MIN
    }

    /// Rows per task for an op over `rows` rows that does `work` in all.
    pub fn rows_per_task(&self, rows: usize, work: usize) -> usize {
        if self.shares(work) { rows.div_ceil(4 * self.threads()).max(1) } else { rows.max(1) }
    }

    /// Runs every task, on all workers if `work` is enough.
    pub fn each<T, I>(&self, work: usize, tasks: I, run: impl Fn(T, &mut Scratch) + Sync)
    where
        I: IntoIterator<Item = T>,
        I::IntoIter: Send,
    {
        let tasks = tasks.into_iter();
        if !self.shares(work) {
            let scratch = &mut *lock(&self.scratch[0]);
            tasks.for_each(|task| run(task, scratch));
            return;
        }
        let queue = Mutex::new(tasks);
        let drain = |worker: usize| {
            let scratch = &mut *lock(&self.scratch[worker]);
            loop {
                // A statement of its own: the lock must be gone before the task runs.
                let next = lock(&queue).next();
                let Some(task) = next else { break };
                run(task, scratch);
            }
        };
        rayon::scope(|scope| {
            let drain = &drain;
            for worker in 1..self.threads() {
                scope.spawn(move |_| drain(worker));
            }
            drain(0);
        });
    }
}

/// A panic in a task ends the launch anyway; what the lock guards is plain scratch.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
