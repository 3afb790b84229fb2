//! TLS, with certificates that are reloaded when their files change.

use std::path::PathBuf;

/// The files of a certificate, in PEM form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server, followed by its chain to an authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The reasons why TLS is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Left out of this build.
    #[error("this build has no TLS")]
    Absent,
    /// A file.
    #[error("{path} cannot be used: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The two files together.
    #[error("the certificate and the key cannot be used together: {0}")]
    Pair(String),
}

#[cfg(feature = "tls")]
pub(crate) use real::Tls;

#[cfg(not(feature = "tls"))]
pub(crate) use absent::Tls;

#[cfg(feature = "tls")]
mod real {
    use std::path::Path;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::{Duration, Instant, SystemTime};

    use tokio::io::{AsyncRead, AsyncWrite};
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::server::TlsStream;

    use super::{TlsError, TlsFiles};

    /// The minimum interval between checks of the files.
    const CHECK_INTERVAL: Duration = Duration::from_secs(1);

    /// Accepts TLS connections with the current certificate.
    pub(crate) struct Tls {
        files: TlsFiles,
        state: Mutex<State>,
    }

    struct State {
        acceptor: TlsAcceptor,
        stamp: FileTimes,
        looked: Instant,
    }

    type FileTimes = [Option<SystemTime>; 2];

    impl Tls {
        pub(crate) fn new(files: TlsFiles) -> Result<Self, TlsError> {
            let stamp = stamp(&files);
            let state = State {
                acceptor: acceptor(&files)?,
                stamp,
                looked: Instant::now(),
            };
            Ok(Self {
                files,
                state: Mutex::new(state),
            })
        }

        pub(crate) async fn accept<S>(&self, stream: S) -> std::io::Result<TlsStream<S>>
        where
            S: AsyncRead + AsyncWrite + Unpin,
        {
            self.current().accept(stream).await
        }

        /// A certificate that has become unusable is reported, and the previous one stays in use.
        fn current(&self) -> TlsAcceptor {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.looked.elapsed() >= CHECK_INTERVAL {
                state.looked = Instant::now();
                let stamp = stamp(&self.files);
                if stamp != state.stamp {
                    state.stamp = stamp;
                    match acceptor(&self.files) {
                        Ok(acceptor) => {
                            tracing::info!("the certificate was read again");
                            state.acceptor = acceptor;
                        }
                        Err(error) => tracing::error!(%error, "the changed certificate is not used"),
                    }
                }
            }
            state.acceptor.clone()
        }
    }

    fn stamp(files: &TlsFiles) -> FileTimes {
        let changed = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
        [changed(&files.certificate), changed(&files.key)]
    }

    fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
        let file = |path: &Path, reason: String| TlsError::File {
            path: path.to_owned(),
            reason,
        };
        let chain = CertificateDer::pem_file_iter(&files.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| file(&files.certificate, error.to_string()))?;
        if chain.is_empty() {
            return Err(file(&files.certificate, "it holds no certificate".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| file(&files.key, error.to_string()))?;
        let pair = |error: tokio_rustls::rustls::Error| TlsError::Pair(error.to_string());
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(pair)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

#[cfg(not(feature = "tls"))]
mod absent {
    use tokio::io::{AsyncRead, AsyncWrite};

    use super::{TlsError, TlsFiles};

    /// Has no values in this build.
    pub(crate) enum Tls {}

    impl Tls {
        pub(crate) fn new(_: TlsFiles) -> Result<Self, TlsError> {
            Err(TlsError::Absent)
        }

        pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, _: S) -> std::io::Result<S> {
            match *self {}
        }
    }
}
