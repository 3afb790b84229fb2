//! The errors of images, and the one place that decides their remedies.

use std::io;
use std::path::PathBuf;

use sandcell_sandbox::{Code, Failure, SandboxError};

/// The reason that an image is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message says what it is")]
pub enum ImageError {
    #[error("this is not an image name: {0}")]
    Name(&'static str),
    #[error("the operator does not allow this image")]
    NotAllowed,
    #[error("it is not stored here, and `images.pull` is \"never\"")]
    NotHere,
    #[error("{registry} does not have this image")]
    Absent { registry: String },
    #[error("{registry} requires a login with access to it")]
    Unauthorized { registry: String },
    #[error("{registry} accepts no more requests for now")]
    TooMany { registry: String },
    #[error("{registry} could not be reached: {reason}")]
    Unreachable { registry: String, reason: String },
    #[error("{registry} answered with status {status}")]
    Status { registry: String, status: u16 },
    #[error("{registry} redirects to {to}, which is refused: {reason}")]
    Redirect {
        registry: String,
        to: String,
        reason: &'static str,
    },
    #[error("the digest of {what} does not match")]
    Digest { what: String },
    #[error("{what} cannot be read: {reason}")]
    Format { what: &'static str, reason: String },
    #[error("it has no variant for linux/{architecture} (only for {there})")]
    Platform { architecture: &'static str, there: String },
    #[error("{what} has more than {limit} {unit}")]
    TooLarge {
        what: &'static str,
        limit: u64,
        unit: &'static str,
    },
    #[error("a layer could not be unpacked: {0}")]
    Unpack(String),
    #[error("{path}: {reason}", path = path.display())]
    Local { path: PathBuf, reason: String },
    #[error("the disk of the data folder is full")]
    DiskFull,
    #[error("{step}: {reason}")]
    Store { step: String, reason: String },
    #[error("the sandbox for unpacking could not be made: {0}")]
    Sandbox(String),
    #[error("the pull took more than {0} s")]
    Slow(u64),
    #[error("{0} other images are being pulled")]
    Busy(usize),
    #[error("it is being pulled: {0}")]
    Pulling(String),
    #[error("the pull was cancelled")]
    Cancelled,
}

impl ImageError {
    /// Returns the error of a failed step of the store.
    pub(crate) fn store(step: impl Into<String>, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            _ => Self::Store {
                step: step.into(),
                reason: error.to_string(),
            },
        }
    }

    fn code(&self) -> Code {
        match self {
            Self::Name(_) => Code::InvalidArgument,
            Self::NotAllowed | Self::Redirect { .. } => Code::DeniedByPolicy,
            Self::DiskFull => Code::DiskFull,
            Self::TooLarge { .. } => Code::LimitReached,
            Self::Busy(_) => Code::Busy,
            Self::Sandbox(_) => Code::BackendUnavailable,
            Self::Cancelled => Code::Cancelled,
            _ => Code::ImageUnavailable,
        }
    }

    fn remedy(&self) -> String {
        match self {
            Self::Name(_) => {
                "write it like alpine:3.20, registry.example/team/name@sha256:…, oci:/folder or docker-archive:/file.tar"
            }
            Self::NotAllowed => {
                "choose an image that the operator allows, or ask for an entry in images.allow (for a local one, in upload_from)"
            }
            Self::NotHere => "tell the operator: `sandcell images pull NAME` on the server's machine",
            Self::Absent { .. } => "check the name and the tag",
            Self::Unauthorized { .. } => {
                "check the name; for a private image the operator logs in (`docker login` or `podman login`, setting images.auth_file)"
            }
            Self::TooMany { .. } => "try again later; a registry allows more to those who are logged in",
            Self::Unreachable { .. } | Self::Status { .. } => {
                "try again; check that the server's machine reaches the registry, or bring the image as oci:/folder or docker-archive:/file.tar"
            }
            Self::Redirect { .. } => "tell the operator: the registry redirects to a private address, or to plain HTTP",
            Self::Digest { .. } => "try again; if it fails again, do not trust this registry",
            Self::Format { .. } | Self::Unpack(_) => "choose another image, or build it again",
            Self::Platform { .. } => "choose an image for this machine's architecture",
            Self::TooLarge { .. } => {
                "choose a smaller image, or ask the operator to raise images.download_mb or images.unpacked_mb"
            }
            Self::Local { .. } => "check the path on the server's machine",
            Self::DiskFull => "tell the operator: free space, `sandcell images prune`, or set data_dir to another disk",
            Self::Store { .. } => "tell the operator: the server must be able to write its data folder (data_dir)",
            Self::Sandbox(_) => "`sandcell doctor` on the host shows what is missing",
            Self::Slow(_) | Self::Busy(_) | Self::Cancelled => "try again",
            Self::Pulling(_) => "call again in a moment: the pull continues, and the call waits for it",
        }
        .to_owned()
    }

    /// Returns the failure that a caller of this image receives.
    #[must_use]
    pub fn failure(&self, image: &str) -> Failure {
        let image: String = image.chars().filter(|c| !c.is_control()).take(300).collect();
        Failure::new(
            self.code(),
            format!("image {image} is not available: {self}"),
            self.remedy(),
        )
    }

    /// Returns the same failure as an error of a back end.
    pub(crate) fn of(self, image: &str) -> SandboxError {
        SandboxError::Refused(Box::new(self.failure(image)))
    }
}
