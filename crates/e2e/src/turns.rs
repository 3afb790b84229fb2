//! Turns of tests. Most tests run in parallel; a test that counts the machine's resources, or fills it, runs alone.
//! The turns are file locks, so they hold between threads of one test program and between programs.

use std::fs::File;

/// A turn, released when dropped.
pub struct Turn {
    _lock: File,
}

impl Turn {
    pub fn shared() -> Self {
        // The gate blocks new tests while one waits to be alone.
        let gate = open("gate");
        gate.lock_shared().unwrap();
        let lock = open("turn");
        lock.lock_shared().unwrap();
        Self { _lock: lock }
    }

    pub fn alone() -> Self {
        let gate = open("gate");
        gate.lock().unwrap();
        let lock = open("turn");
        lock.lock().unwrap();
        Self { _lock: lock }
    }
}

fn open(name: &str) -> File {
    let user = rustix::process::geteuid().as_raw();
    let path = std::env::temp_dir().join(format!("cell-e2e-{user}.{name}"));
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .unwrap()
}
