//! Errors that a test injects into a running server while it makes sandboxes. Builds without `fault-injection` inject none.

#[cfg(feature = "fault-injection")]
pub(super) use injected::{at, next};
#[cfg(not(feature = "fault-injection"))]
pub(super) use none::{at, next};

#[cfg(not(feature = "fault-injection"))]
mod none {
    use std::io;
    use std::path::Path;

    use sandcell_jail::spec::{Fault, Site};

    pub(in crate::native) const fn next(_file: Option<&Path>) -> Option<Fault> {
        None
    }

    #[expect(clippy::unnecessary_wraps, reason = "builds for tests return errors")]
    pub(in crate::native) const fn at(_fault: Option<Fault>, _site: Site) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(feature = "fault-injection")]
mod injected {
    use std::io;
    use std::path::Path;

    use sandcell_jail::spec::{Fault, Site};

    /// Returns the fault of the next sandbox: the file's, for as long as the file is there.
    pub(in crate::native) fn next(file: Option<&Path>) -> Option<Fault> {
        Fault::from_file(file?)
    }

    /// Returns the error of a site in the server if the test wants one.
    pub(in crate::native) fn at(fault: Option<Fault>, site: Site) -> io::Result<()> {
        match fault {
            Some(fault) if fault.at == site => Err(io::Error::from_raw_os_error(fault.errno)),
            Some(_) | None => Ok(()),
        }
    }
}
