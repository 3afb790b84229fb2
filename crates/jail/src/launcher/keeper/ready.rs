//! What the launcher was woken by.

/// What a polled descriptor belongs to.
pub(super) enum Token {
    Requests,
    Jail(u64),
    Visitor(u64),
    Parent(u64),
    ParentsEnd(u64),
}

#[derive(Default)]
pub(super) struct Ready {
    pub(super) requests: bool,
    pub(super) jails: Vec<u64>,
    pub(super) visitors: Vec<u64>,
    pub(super) parents: Vec<u64>,
    pub(super) ended_parents: Vec<u64>,
    pub(super) idle: bool,
}
