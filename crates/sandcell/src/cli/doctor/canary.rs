//! Canaries for attacks on this machine: listeners that must never receive anything, and names of variables and folders
//! that must not appear inside.

use std::io;
use std::net::TcpListener;

/// Things of this machine that must stay out of reach while attacks run.
#[derive(Debug)]
pub(super) struct Canaries {
    tcp: TcpListener,
    #[cfg(target_os = "linux")]
    abstract_socket: std::os::unix::net::UnixListener,
    abstract_name: String,
    names: Vec<String>,
    paths: Vec<String>,
}

/// Variables that a sandbox also sets, with other values than the host's.
const COMMON_VARIABLES: &[&str] = &[
    "HOME", "HOSTNAME", "LANG", "LANGUAGE", "LOGNAME", "MAIL", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "TERM",
    "TMPDIR", "TZ", "USER", "_",
];

impl Canaries {
    /// Creates the canaries.
    pub(super) fn new() -> io::Result<Self> {
        let tcp = TcpListener::bind(("127.0.0.1", 0))?;
        tcp.set_nonblocking(true)?;
        // Abstract socket names belong to the network namespace, as the port does. A process id would not do: another
        // process has the same id in another PID namespace.
        let abstract_name = format!("sandcell-doctor-{}", tcp.local_addr()?.port());
        Ok(Self {
            tcp,
            #[cfg(target_os = "linux")]
            abstract_socket: listen_abstract(&abstract_name)?,
            abstract_name,
            names: names(),
            paths: paths(),
        })
    }

    /// Returns the canaries for the attacks, as Python.
    pub(super) fn words(&self) -> String {
        let words = serde_json::json!({
            "tcp": self.tcp.local_addr().map_or(0, |address| address.port()),
            "abstract": self.abstract_name,
            "names": self.names,
            "paths": self.paths,
            "pid": std::process::id(),
            "program": "sandcell",
        });
        // The debug form of JSON is also a Python string: it contains only plain words and paths.
        format!("import json\nCANARIES = json.loads({:?})\n", words.to_string())
    }

    /// Returns true when a canary was touched, regardless of the output of the code inside.
    pub(super) fn was_touched(&self) -> bool {
        #[cfg(target_os = "linux")]
        if self.abstract_socket.accept().is_ok() {
            return true;
        }
        self.tcp.accept().is_ok()
    }
}

#[cfg(target_os = "linux")]
fn listen_abstract(name: &str) -> io::Result<std::os::unix::net::UnixListener> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn names() -> Vec<String> {
    let plain = |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| plain(name) && !COMMON_VARIABLES.contains(&name.as_str()))
        .filter(|name| !["LC_", "PYTHON", "MPL"].iter().any(|own| name.starts_with(own)))
        .collect()
}

fn paths() -> Vec<String> {
    let plain = |path: &String| path.chars().all(|c| c.is_ascii_alphanumeric() || "/_.-".contains(c));
    let folders = [
        std::env::var("HOME").ok(),
        std::env::current_dir().ok().map(|path| path.display().to_string()),
        std::env::current_exe()
            .ok()
            .and_then(|path| Some(path.parent()?.display().to_string())),
    ];
    folders
        .into_iter()
        .flatten()
        .filter(|path| plain(path) && path.len() > 4 && !path.starts_with("/usr") && !path.starts_with("/home/user"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_from_outside_is_noticed() {
        let canary = Canaries::new().unwrap();
        assert!(!canary.was_touched());
        let port = canary.tcp.local_addr().unwrap().port();
        let _open = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert!(canary.was_touched());
    }

    #[test]
    fn every_canary_that_quick_attacks_use_exists() {
        let words = Canaries::new().unwrap().words();
        for attack in super::super::attacks::QUICK_ATTACKS.iter() {
            for piece in attack.code.split("CANARIES[\"").skip(1) {
                let name = piece.split('"').next().unwrap();
                assert!(words.contains(name), "{}: {name}", attack.name);
            }
        }
    }
}
