//! A zygote: an interpreter that has loaded the modules that sandboxes need, and whose workers enter them.
//!
//! It runs library code with the power to enter sandboxes, so it gets nothing else.
//!
//! - **Process:** a fork of the launcher that executes an interpreter. This code runs until then.
//! - **Started by:** the supervisor, when the server asks for it.
//! - **Rights:** it sees only the files that sandboxes see, no /proc, no network and no environment, and has a separate
//!   id as root. Its only power is to enter namespaces below the shared one whose descriptors it receives:
//!   `CAP_SYS_ADMIN` in the shared user namespace, behind `no_new_privs` and a filter. Before it is locked it has the
//!   launcher's rights, and runs only this code.
//! - **May:** fork workers as children of the launcher. It never learns for which sandbox.
//! - **Ends:** when the server no longer wants it, when the server or the launcher ends (`PR_SET_PDEATHSIG`), or by
//!   itself. Its workers live on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::Signal;
use serde::Serialize;

use super::base::devices::private_devices;
use super::base::folder_view::FolderView;
use super::base::prepared::Prepared;
use super::base::shared_userns;
use crate::own_limits::oom;
use crate::paths;
use crate::plan::{self, Zeros};
use crate::spawn::Program;
use crate::sys;
use crate::sys::clone::exit_now;
use crate::wire::{StepError, hung_up, send};

/// Runs a zygote until it executes the interpreter.
pub(super) fn run(
    prepared: &Prepared,
    shared_userns: &OwnedFd,
    socket: OwnedFd,
    control: [OwnedFd; 2],
    views: Vec<FolderView>,
    program: &Program,
    host_id: u32,
) -> ! {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let Ok(([socket, shared_userns], views)) = arrange(&control, socket, shared_userns, views) else {
        exit_now(2)
    };
    std::mem::forget(control);
    let error = match lock(prepared, &socket, shared_userns, views, host_id) {
        Ok(()) => {
            let error = program.execute();
            StepError::new("execute the interpreter", None, &error)
        }
        Err(error) => error,
    };
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    enum LastMessage {
        Failed(StepError),
    }
    let _ = send(socket.as_fd(), &LastMessage::Failed(error), &[]);
    exit_now(1)
}

/// Places the control channel at 3 and 4 and the socket at 5. Closes all else except the shared namespace and the
/// views, and returns the socket, the namespace and the views.
fn arrange(
    control: &[OwnedFd; 2],
    socket: OwnedFd,
    shared_userns: &OwnedFd,
    views: Vec<FolderView>,
) -> io::Result<([OwnedFd; 2], Vec<FolderView>)> {
    const MIN_TEMPORARY_FD: i32 = 32;
    const SOCKET_FD: i32 = 5;
    const NAMESPACE_FD: i32 = 6;
    const FIRST_VIEW_FD: i32 = 7;
    let [input, output] = control;
    let (mounts, paths): (Vec<_>, Vec<_>) = views.into_iter().map(|view| (view.mount, view.path)).unzip();
    let all = [input, output, &socket, shared_userns].into_iter().chain(&mounts);
    let high: Vec<_> = all
        .map(|descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, MIN_TEMPORARY_FD))
        .collect();
    std::mem::forget((socket, mounts));
    let mut end = 3;
    for descriptor in high {
        let descriptor = descriptor?;
        sys::fd::duplicate_to(descriptor.as_fd(), end)?;
        std::mem::forget(descriptor);
        end += 1;
    }
    sys::fd::close_from(end.unsigned_abs())?;
    let views = paths.into_iter().zip(FIRST_VIEW_FD..).map(|(path, number)| {
        let mount = sys::fd::adopt(number)?;
        Ok(FolderView { mount, path })
    });
    let views = views.collect::<io::Result<_>>()?;
    Ok(([sys::fd::adopt(SOCKET_FD)?, sys::fd::adopt(NAMESPACE_FD)?], views))
}

fn lock(
    prepared: &Prepared,
    socket: &OwnedFd,
    shared_userns: OwnedFd,
    views: Vec<FolderView>,
    host_id: u32,
) -> Result<(), StepError> {
    let named = |step: &str, result: io::Result<()>| result.map_err(|error| StepError::new(step, None, &error));
    // Its workers inherit the score: when memory runs out, they are killed before their sandboxes' first processes.
    oom::prefer_as_victim(paths::host(), oom::INTERPRETER_SCORE);
    if prepared.host.root {
        named("make a mount namespace", sys::misc::unshare(libc::CLONE_NEWNS))?;
        let devices = private_devices(Zeros::on(prepared.host.memory_is_charged));
        named(
            "make device nodes",
            devices.and_then(|devices| crate::steps::attach(&devices, paths::DEVICE_FOLDER)),
        )?;
    }
    shared_userns::enter_as(prepared, &shared_userns, host_id)?;
    drop(shared_userns);
    let own = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;
    named("make namespaces", sys::misc::unshare(own))?;
    for step in plan::zygote(&prepared.host) {
        crate::steps::run(&step).map_err(|error| StepError::new(&step.name(), step.layer(), &error))?;
        if step == plan::Step::DieWithLauncher && hung_up(socket) {
            exit_now(0);
        }
        if step == plan::Step::Pivot {
            for view in &views {
                named("attach the folder", crate::steps::attach(&view.mount, &view.path))?;
            }
        }
    }
    Ok(())
}
