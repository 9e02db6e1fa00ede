//! Mistakes that a device or an engine could make, planted one at a time: a simulation that finds none of them proves
//! nothing. Each is one condition in the fake device.

/// One planted mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A step folds one record less than were accepted.
    FoldsOneLess,
    /// A step folds one record more.
    FoldsOneMore,
    /// The half of a sequence that sat out turns as if it had run.
    ParityTurnsIdle,
    /// A sequence that sat out has lost its pending records.
    SitsOutLosesPending,
    /// Folds before a chunk or a copy are not done.
    FlushForgotten,
    /// A slot starts with what its last holder left.
    SlotNotReset,
    /// A page is handed to a second sequence while the first still uses it.
    PageFreedEarly,
    /// A row's token comes from the row before it.
    WrongRowSampled,
    /// The device counts one accepted draft too many.
    AcceptsOneMore,
    /// The convolution window is not shifted by what was accepted.
    WindowNotShifted,
    /// Accepted drafts are missing from the counts of penalties.
    AcceptedNotCounted,
    /// The mask of the first row is used for all.
    MaskOfFirstRow,
    /// A partial page is not copied for a checkpoint or a start from one.
    PageNotCopied,
    /// A slot copy takes the state but not the convolution window.
    WindowNotCopied,
    /// The first draft comes from the row before the last that stands.
    DraftFromWrongRow,
    /// A resume takes the hidden row of the last committed token although drafts were accepted.
    ResumeFromWrongRow,
    /// Entries of the draft head that drafts wrote are not written again by the rows that verify them.
    EntryNotOverwritten,
    /// Resumes are not done.
    ResumeMissing,
}

impl Fault {
    pub const ALL: [Fault; 18] = [
        Fault::FoldsOneLess,
        Fault::FoldsOneMore,
        Fault::ParityTurnsIdle,
        Fault::SitsOutLosesPending,
        Fault::FlushForgotten,
        Fault::SlotNotReset,
        Fault::PageFreedEarly,
        Fault::WrongRowSampled,
        Fault::AcceptsOneMore,
        Fault::WindowNotShifted,
        Fault::AcceptedNotCounted,
        Fault::MaskOfFirstRow,
        Fault::PageNotCopied,
        Fault::WindowNotCopied,
        Fault::DraftFromWrongRow,
        Fault::ResumeFromWrongRow,
        Fault::EntryNotOverwritten,
        Fault::ResumeMissing,
    ];
}

/// What found a mistake, and the particulars.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caught {
    pub by: &'static str,
    pub what: String,
}

impl Caught {
    pub fn by<T>(by: &'static str, what: impl Into<String>) -> Result<T, Caught> {
        Err(Caught { by, what: what.into() })
    }
}
