//! Admission of requests: policy checks, quotas, the scheduler, and the numbers of callers.

pub(crate) mod caller_number;
pub(crate) mod policy;
pub(crate) mod quota;
pub(crate) mod scheduler;
