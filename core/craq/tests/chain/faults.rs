//! What goes wrong in a run, and when.

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A service dies, and comes back over its disk.
    Head,
    Middle,
    Tail,
    /// Two at once.
    Two,
    /// The whole chain loses its power.
    All,
    /// Two members do not reach each other for a while.
    Link,
    /// A connection ends between two members that both live.
    Connection,
    /// A member stands still.
    Frozen,
    /// A client dies in the middle of something, and its session ends.
    Client,
    /// A disk has no room for a while.
    Full,
    /// A flushed bit flips on one disk.
    Rot,
}

/// What the chain does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Nothing is written.
    Clean,
    /// A member has a content that is not committed.
    Dirty,
    /// A member is not complete.
    CatchUp,
}

impl Fault {
    pub(crate) const ALL: [Self; 11] = [
        Self::Head,
        Self::Middle,
        Self::Tail,
        Self::Two,
        Self::All,
        Self::Link,
        Self::Connection,
        Self::Frozen,
        Self::Client,
        Self::Full,
        Self::Rot,
    ];
}

impl Phase {
    pub(crate) const ALL: [Self; 3] = [Self::Clean, Self::Dirty, Self::CatchUp];
}
