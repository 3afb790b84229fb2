//! The agent as a program of its own, over standard input and output: for sandboxes that are made by somebody else, who can only start a
//! program (a container's first process), and for tests that need it as process 1.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use std::os::fd::AsFd as _;

    use sandcell_agent::server::{ServeEnd, ServerConfig, serve};

    let (input, output) = (std::io::stdin(), std::io::stdout());
    let streams = (input.as_fd().try_clone_to_owned(), output.as_fd().try_clone_to_owned());
    let (Ok(input), Ok(output)) = streams else {
        return ExitCode::FAILURE;
    };
    match serve(input, output, ServerConfig::default()) {
        ServeEnd::HostClosed => ExitCode::SUCCESS,
        ServeEnd::Breach(_) | ServeEnd::Failed(_) => ExitCode::FAILURE,
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
