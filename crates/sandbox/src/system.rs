/// A system that this program runs on, where it matters at run time which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// And whatever else is like it.
    Linux,
    /// Apple's.
    MacOs,
    /// Microsoft's.
    Windows,
}

impl System {
    /// The one that this program was built for.
    #[must_use]
    pub const fn of_this_machine() -> Self {
        if cfg!(windows) {
            Self::Windows
        } else if cfg!(target_os = "macos") {
            Self::MacOs
        } else {
            Self::Linux
        }
    }
}
