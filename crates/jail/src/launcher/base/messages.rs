//! Messages between the supervisor and the processes that it starts: packets of a socket pair for each process, with
//! descriptors attached. The messages with the server are in [`wire`](crate::wire).

use serde::{Deserialize, Serialize};

use crate::plan::Shows;
use crate::spec::Request;
use crate::steps::enter_program::EnterProgram;
use crate::wire::StepError;

/// A message from the launcher to the fork server.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::launcher) enum ToForkServer {
    /// Make one process. Carries the process's end of its socket, a first process's device folder if it is private, and
    /// the means to join its cgroup: the folder to clone it into, or the files that it writes to.
    Fork {
        /// The host id of its sandbox's user.
        host_id: u32,
        /// The request that a first process prepares for while it waits. Null: none.
        ahead: Option<Request>,
    },
}

/// A message from the fork server to the launcher, in the order of requests.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::launcher) enum FromForkServer {
    /// The process runs. Carries its pidfd.
    Forked {
        /// Its id on the host.
        pid: u32,
    },
    /// The process could not be made.
    Failed(StepError),
}

/// A message from the launcher to a spare, and then to the first process.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::launcher) enum ToSpare {
    /// Become this sandbox. Carries the agent's two descriptors, and the tree of its image if it has one.
    Make(Request, Shows),
    /// The ids are mapped; go on.
    Mapped,
}

/// A message from a spare, and then from the first process, to the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::launcher) enum FromSpare {
    /// The first process exists. Carries its pidfd.
    Cloned {
        /// Its id on the host.
        pid: u32,
    },
    /// It already is the first process. Carries its namespaces user, mnt, pid, net, ipc, uts, cgroup and, if available,
    /// time.
    InPlace,
    /// The near ends of the direct pipes. Sent before a resource limit restricts the descriptors in flight.
    DirectPipes,
    /// The folder of the private files, which are counted separately from process memory.
    Files,
    /// It is locked and runs its entry.
    Ready,
    /// It failed.
    Failed(StepError),
    /// Its subreaper found too many private files and ends the sandbox. The removal can take long.
    Full,
}

/// A message to a zygote.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::launcher) enum ToZygote {
    /// The system calls by which the next workers enter.
    EntryProgram(Box<EnterProgram>),
    /// Fork a worker. Carries the namespaces pid, user, net, ipc, uts, cgroup and, if available, time, and the socket
    /// for the permission to go on.
    Enter {},
}

/// A message from a zygote.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::launcher) enum FromZygote {
    /// A worker was forked, for the oldest open request.
    Forked {
        /// Its id on the host. Negative if the fork failed.
        child: i32,
    },
    /// It could not become a zygote.
    Failed(StepError),
}
