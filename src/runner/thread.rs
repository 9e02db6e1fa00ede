//! The engine thread: owns an [`Engine`], takes requests from an inbox and answers each on its own outbox.
//!
//! The engine is built inside the thread, so a backend need not be `Send`. The loop is: drain the inbox, run a step,
//! hand out its events; with nothing to do it sleeps in the inbox. A failed step ends every open request with its error
//! and the thread goes on: nothing of the failed step is kept, and a device that is lost fails the next request as well.
//! A panic closes every channel and is reported by [`EngineThread::join`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::engine::Engine;
use crate::base::{Error, Result};
use crate::engine::{CoreOptions, Event, Refused, Request, RequestId, Status};

/// The thread and the way to it. Dropping it cancels what is open and waits for the thread.
pub struct EngineThread {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
}

/// What callers hold: as many as there are, in any thread.
#[derive(Clone)]
pub struct EngineHandle {
    inbox: Sender<Message>,
    tickets: Arc<AtomicU64>,
    limits: CoreOptions,
}

/// Names a submitted request on the caller's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What becomes of a request. After `Refused`, `Failed` or the `Finished` of its last choice nothing follows.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    Event(Event),
    /// It was not taken.
    Refused(Refused),
    /// It had started, or waited, when a step failed.
    Failed(Error),
}

/// Where the updates of one request go. Called by the engine thread between steps, so it must not block.
pub trait Outbox: Send {
    /// Whether anyone still listens; if not, the request is cancelled.
    fn send(&mut self, update: Update) -> bool;
}

impl Outbox for Sender<Update> {
    fn send(&mut self, update: Update) -> bool {
        Sender::send(self, update).is_ok()
    }
}

/// How the thread ends. Either way it takes no more requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shutdown {
    /// Open requests are answered to their end.
    Finish,
    /// Open requests end as cancelled.
    Cancel,
}

/// What the engine holds between two steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineStatus {
    pub core: Status,
    /// How many verifications accepted 0, 1, ... drafts so far.
    pub accepted_counts: Vec<u64>,
}

enum Message {
    Submit { ticket: Ticket, request: Box<Request>, outbox: Box<dyn Outbox> },
    Cancel(Ticket),
    Status(Sender<EngineStatus>),
    Shutdown(Shutdown),
}

impl EngineThread {
    /// Starts the thread and waits until `build` has made the engine there.
    ///
    /// Errors: that of `build`, or Failure if the thread cannot be started or `build` panics.
    pub fn start(build: impl FnOnce() -> Result<Engine> + Send + 'static) -> Result<EngineThread> {
        let (inbox, messages) = channel();
        let (ready, built) = channel();
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || match build() {
            Ok(engine) => {
                // Whoever started the thread waits for this.
                let _ = ready.send(Ok(*engine.core().options()));
                drop(ready);
                Loop::new(engine).run(&messages);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        });
        let thread = thread.map_err(|error| {
            Error::failure(format!("cannot start the engine thread: {error}"), "end other programs, then try again")
        })?;
        match built.recv() {
            Ok(Ok(limits)) => {
                let handle = EngineHandle { inbox, tickets: Arc::default(), limits };
                Ok(EngineThread { handle, thread: Some(thread) })
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(end_of(thread).err().unwrap_or_else(stopped)),
        }
    }

    /// A further way to the thread.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Waits for the thread, which ends after [`EngineHandle::shutdown`]. Errors: Failure if it panicked.
    pub fn join(mut self) -> Result<()> {
        self.thread.take().map_or(Ok(()), end_of)
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.handle.shutdown(Shutdown::Cancel);
            // A panic has been printed; whoever wants it as an error joins.
            let _ = thread.join();
        }
    }
}

impl EngineHandle {
    /// Bounds of every request; they do not change.
    pub fn limits(&self) -> &CoreOptions {
        &self.limits
    }

    /// Hands a request in. A refusal comes through the outbox. Errors: Failure if the thread has ended.
    pub fn submit(&self, request: Request, outbox: Box<dyn Outbox>) -> Result<Ticket> {
        let ticket = Ticket(self.tickets.fetch_add(1, Ordering::Relaxed));
        let message = Message::Submit { ticket, request: Box::new(request), outbox };
        self.inbox.send(message).map_err(|_| stopped())?;
        Ok(ticket)
    }

    /// [`submit`](Self::submit) with a channel: dropping what is returned cancels the request.
    pub fn ask(&self, request: Request) -> Result<Updates> {
        let (outbox, updates) = channel();
        let ticket = self.submit(request, Box::new(outbox))?;
        Ok(Updates { handle: self.clone(), ticket, updates })
    }

    /// Ends a request wherever it is. One that is unknown or has ended is ignored, as is a thread that has.
    pub fn cancel(&self, ticket: Ticket) {
        let _ = self.inbox.send(Message::Cancel(ticket));
    }

    /// Answered between two steps. Errors: Failure if the thread has ended.
    pub fn status(&self) -> Result<EngineStatus> {
        let (reply, status) = channel();
        self.inbox.send(Message::Status(reply)).map_err(|_| stopped())?;
        status.recv().map_err(|_| stopped())
    }

    /// Asks the thread to end. `Cancel` after `Finish` cuts short what is still open, never the other way round.
    pub fn shutdown(&self, how: Shutdown) {
        // A thread that has ended already has nothing left to end.
        let _ = self.inbox.send(Message::Shutdown(how));
    }
}

/// The updates of one request, in order.
pub struct Updates {
    handle: EngineHandle,
    ticket: Ticket,
    updates: Receiver<Update>,
}

impl Updates {
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// The next update; None after the last one, and where the thread has ended without one.
    pub fn next(&self) -> Option<Update> {
        self.updates.recv().ok()
    }

    /// As [`next`](Self::next), for at most `timeout`. Errors say whether time was up or nothing more comes.
    pub fn next_within(&self, timeout: Duration) -> Result<Update, RecvTimeoutError> {
        self.updates.recv_timeout(timeout)
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        // A closed channel is seen at the next event only, which a long prompt has none of.
        self.handle.cancel(self.ticket);
    }
}

/// What the thread keeps.
struct Loop {
    engine: Engine,
    open: BTreeMap<RequestId, Open>,
    ids: BTreeMap<Ticket, RequestId>,
    shutdown: Option<Shutdown>,
}

/// A request that has been taken and has not ended.
struct Open {
    ticket: Ticket,
    choices_left: u32,
    outbox: Box<dyn Outbox>,
}

impl Loop {
    fn new(engine: Engine) -> Loop {
        Loop { engine, open: BTreeMap::new(), ids: BTreeMap::new(), shutdown: None }
    }

    fn run(mut self, inbox: &Receiver<Message>) {
        loop {
            if self.engine.is_idle() {
                if self.shutdown.is_some() {
                    self.turn_away(inbox);
                    return;
                }
                // Sleeps here. Without a handle left nobody can ask anything more.
                let Ok(message) = inbox.recv() else { return };
                self.take(message);
            }
            while let Ok(message) = inbox.try_recv() {
                self.take(message);
            }
            if !self.engine.is_idle() {
                self.step();
            }
        }
    }

    /// Refuses what arrived while the last request ended, so that nobody sees a closed channel without a reason.
    fn turn_away(&mut self, inbox: &Receiver<Message>) {
        while let Ok(message) = inbox.try_recv() {
            self.take(message);
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Submit { ticket, request, outbox } => self.submit(ticket, *request, outbox),
            Message::Cancel(ticket) => {
                if let Some(id) = self.ids.get(&ticket) {
                    self.engine.cancel(*id);
                }
            }
            Message::Status(reply) => {
                let accepted_counts = self.engine.accepted_counts().to_vec();
                // Whoever asked may have gone.
                let _ = reply.send(EngineStatus { core: self.engine.core().status(), accepted_counts });
            }
            Message::Shutdown(how) => {
                self.shutdown = self.shutdown.max(Some(how));
                if how == Shutdown::Cancel {
                    self.open.keys().for_each(|id| self.engine.cancel(*id));
                }
            }
        }
    }

    fn submit(&mut self, ticket: Ticket, request: Request, mut outbox: Box<dyn Outbox>) {
        let choices_left = request.choices;
        let taken = match self.shutdown {
            None => self.engine.submit(request),
            Some(_) => Err(Refused::BadValue(stopped())),
        };
        match taken {
            Ok(id) => {
                self.ids.insert(ticket, id);
                self.open.insert(id, Open { ticket, choices_left, outbox });
            }
            Err(refused) => {
                outbox.send(Update::Refused(refused));
            }
        }
    }

    fn step(&mut self) {
        match self.engine.step() {
            Ok(events) => events.into_iter().for_each(|event| self.hand_out(event)),
            Err(error) => {
                self.ids.clear();
                for open in std::mem::take(&mut self.open).values_mut() {
                    open.outbox.send(Update::Failed(error.clone()));
                }
            }
        }
    }

    /// Events of a request whose listener has gone find nobody here.
    fn hand_out(&mut self, event: Event) {
        let (id, finished) = match event {
            Event::Token { request, .. } => (request, false),
            Event::Finished { request, .. } => (request, true),
        };
        let Some(open) = self.open.get_mut(&id) else { return };
        open.choices_left -= u32::from(finished);
        let ended = open.choices_left == 0;
        let heard = open.outbox.send(Update::Event(event));
        if ended || !heard {
            self.ids.remove(&open.ticket);
            self.open.remove(&id);
        }
        if !heard {
            self.engine.cancel(id);
        }
    }
}

fn stopped() -> Error {
    Error::failure("the engine has stopped", "start deltic again; the log says why it stopped")
}

/// Waits for the end; a panic becomes an error.
fn end_of(thread: JoinHandle<()>) -> Result<()> {
    thread.join().map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Error::failure(
            format!("the engine thread panicked: {}", text.unwrap_or("it gave no reason")),
            "report this as a bug, with the command line",
        )
    })
}
