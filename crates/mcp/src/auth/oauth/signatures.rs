//! Checks the signatures of tokens with ring, like the rest of the server's cryptography. Only public keys are
//! accepted, so a text that both sides know can never serve as a key.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{self as by, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use signature::Verifier;

/// The algorithms that tokens may be signed with.
pub(super) const SIGNATURE_ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

static RING_PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(unsupported()),
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes the library use ring. A repeated call has no effect, since nothing else installs a provider.
pub(super) fn use_ring() {
    let _installed_before = RING_PROVIDER.install_default();
}

fn unsupported() -> Error {
    ErrorKind::InvalidAlgorithm.into()
}

/// The method of checking a signature.
enum SignatureMethod {
    Rsa(&'static RsaParameters),
    Other(&'static dyn VerificationAlgorithm),
}

struct Key {
    algorithm: Algorithm,
    method: SignatureMethod,
    key: DecodingKey,
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> jsonwebtoken::errors::Result<Box<dyn JwtVerifier>> {
    // Shorter keys than 2048 bits are refused by these parameters.
    let method = match algorithm {
        Algorithm::RS256 => SignatureMethod::Rsa(&by::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => SignatureMethod::Rsa(&by::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => SignatureMethod::Rsa(&by::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => SignatureMethod::Rsa(&by::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => SignatureMethod::Rsa(&by::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => SignatureMethod::Rsa(&by::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => SignatureMethod::Other(&by::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => SignatureMethod::Other(&by::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => SignatureMethod::Other(&by::ED25519),
        _ => return Err(unsupported()),
    };
    if key.family() != algorithm.family() {
        return Err(unsupported());
    }
    Ok(Box::new(Key {
        algorithm: *algorithm,
        method,
        key: key.clone(),
    }))
}

impl Verifier<Vec<u8>> for Key {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), signature::Error> {
        let right = match (&self.method, self.key.kind()) {
            (SignatureMethod::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                // Some issuers add a leading zero, which ring does not accept.
                let (n, e) = (without_zeros(n), without_zeros(e));
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signed)
            }
            (SignatureMethod::Other(method), DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(*method, point).verify(message, signed)
            }
            (SignatureMethod::Rsa(_), DecodingKeyKind::SecretOrDer(_)) | (SignatureMethod::Other(_), _) => {
                return Err(signature::Error::new());
            }
        };
        right.map_err(|_| signature::Error::new())
    }
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let first = number.iter().position(|byte| *byte != 0).unwrap_or(number.len());
    number.get(first..).unwrap_or_default()
}

impl JwtVerifier for Key {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
