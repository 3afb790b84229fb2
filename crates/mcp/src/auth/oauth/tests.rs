//! An issuer on the loopback with real keys, and tokens that are right, wrong and forged.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::*;

const RESOURCE_URL: &str = "https://sandcell.example.com/mcp";

/// Answers for paths, and the number of requests for each path.
#[derive(Default)]
struct Pages {
    answers: HashMap<String, (u16, String)>,
    asked: HashMap<String, usize>,
}

struct Issuer {
    url: String,
    pages: Arc<Mutex<Pages>>,
}

impl Issuer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let pages: Arc<Mutex<Pages>> = Arc::default();
        let answering = Arc::clone(&pages);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream);
                let mut first = String::new();
                let _ended = reader.read_line(&mut first);
                let mut line = first.clone();
                while line.trim_end() != "" {
                    line.clear();
                    let _ended = reader.read_line(&mut line);
                }
                let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
                let mut pages = answering.lock().unwrap();
                *pages.asked.entry(path.clone()).or_default() += 1;
                let (status, body) = pages.answers.get(&path).cloned().unwrap_or((404, String::new()));
                let location = if status == 302 {
                    format!("Location: {body}\r\n")
                } else {
                    String::new()
                };
                let length = body.len();
                let head =
                    format!("HTTP/1.1 {status} x\r\n{location}Content-Length: {length}\r\nConnection: close\r\n\r\n");
                let _gone = reader.get_mut().write_all(format!("{head}{body}").as_bytes());
            }
        });
        Self { url, pages }
    }

    /// One whose metadata and keys are as they should be.
    fn with(keys: &[Value]) -> Self {
        let issuer = Self::start();
        let metadata = json!({"issuer": issuer.url, "jwks_uri": format!("{}/keys", issuer.url)});
        issuer.answer("/.well-known/oauth-authorization-server", 200, &metadata.to_string());
        issuer.publish(keys);
        issuer
    }

    fn answer(&self, path: &str, status: u16, body: &str) {
        let mut pages = self.pages.lock().unwrap();
        pages.answers.insert(path.to_owned(), (status, body.to_owned()));
    }

    fn publish(&self, keys: &[Value]) {
        self.answer("/keys", 200, &json!({"keys": keys}).to_string());
    }

    fn asked(&self, path: &str) -> usize {
        self.pages.lock().unwrap().asked.get(path).copied().unwrap_or(0)
    }

    fn options(&self) -> OauthOptions {
        OauthOptions {
            issuer: self.url.clone(),
            resource: RESOURCE_URL.to_owned(),
            scopes: vec!["sandcell".to_owned()],
            ..OauthOptions::default()
        }
    }

    fn verifier(&self) -> Verifier {
        Verifier::new(&self.options()).unwrap()
    }

    fn claims(&self) -> Value {
        let exp = now() + 300;
        json!({"iss": self.url, "aud": RESOURCE_URL, "sub": "alice", "exp": exp, "scope": "openid sandcell"})
    }
}

fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

enum Signer {
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl Signer {
    fn ec() -> Self {
        let random = SystemRandom::new();
        let way = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(way, &random).unwrap();
        Self::Ec(EcdsaKeyPair::from_pkcs8(way, pkcs8.as_ref(), &random).unwrap())
    }

    fn ed() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Ec(_) => "ES256",
            Self::Ed(_) => "EdDSA",
        }
    }

    fn jwk(&self, id: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Ec(key) => {
                let point = key.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "alg": "ES256",
                       "x": text(&point[1..33]), "y": text(&point[33..])})
            }
            Self::Ed(key) => json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": text(key.public_key().as_ref())}),
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Ec(key) => key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
            Self::Ed(key) => key.sign(message).as_ref().to_vec(),
        }
    }

    /// A token with this header in addition to the algorithm.
    fn token(&self, header: &Value, claims: &Value) -> String {
        let mut header = header.clone();
        let algorithm = header.get("alg").cloned().unwrap_or_else(|| self.algorithm().into());
        header["alg"] = algorithm;
        let message = message(&header, claims);
        let signed = URL_SAFE_NO_PAD.encode(self.sign(message.as_bytes()));
        format!("{message}.{signed}")
    }
}

fn message(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

fn with(claims: &Value, key: &str, value: Value) -> Value {
    let mut claims = claims.clone();
    claims[key] = value;
    claims
}

fn without(claims: &Value, key: &str) -> Value {
    let mut claims = claims.clone();
    claims.as_object_mut().unwrap().remove(key);
    claims
}

#[tokio::test]
async fn a_token_of_the_issuer_identifies_its_holder() {
    let (ec, ed) = (Signer::ec(), Signer::ed());
    let issuer = Issuer::with(&[ec.jwk("one"), ed.jwk("two")]);
    let verifier = issuer.verifier();
    let claims = issuer.claims();
    let alice = format!("oauth:{}#alice", issuer.url);
    for (signer, id) in [(&ec, "one"), (&ed, "two")] {
        for (header, claims) in [
            (json!({"kid": id}), claims.clone()),
            (json!({"kid": id, "typ": "at+jwt"}), claims.clone()),
            (
                json!({"kid": id, "typ": "JWT"}),
                with(&claims, "aud", json!(["https://other.example.com", RESOURCE_URL])),
            ),
            (
                json!({"kid": id}),
                with(&without(&claims, "scope"), "scp", json!(["a", "sandcell"])),
            ),
            (json!({"kid": id}), with(&claims, "nbf", json!(now()))),
        ] {
            let caller = verifier.verify(&signer.token(&header, &claims)).await;
            assert_eq!(
                caller.map(|caller| caller.0.to_string()),
                Ok(alice.clone()),
                "{header} {claims}"
            );
        }
    }
    assert!(verifier.may_stay(&alice));
    assert!(!verifier.may_stay(&format!("oauth:{}#bob", issuer.url)));
    assert_eq!(issuer.asked("/keys"), 1, "keys are kept");
}

#[tokio::test]
async fn everything_but_a_token_for_this_server_is_refused() {
    let (ours, strangers, ed) = (Signer::ec(), Signer::ec(), Signer::ed());
    let mut for_encryption = Signer::ec().jwk("enc");
    for_encryption["use"] = json!("enc");
    let shared = json!({"kty": "oct", "kid": "shared", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode("secret")});
    let issuer = Issuer::with(&[ours.jwk("one"), ed.jwk("two"), for_encryption, shared]);
    let verifier = issuer.verifier();
    let good = issuer.claims();
    let one = json!({"kid": "one"});
    let mut bad: Vec<(&str, String)> = vec![
        ("another's signature", strangers.token(&one, &good)),
        ("a key that nobody has", strangers.token(&json!({"kid": "none"}), &good)),
        ("no key named, of several", ours.token(&json!({}), &good)),
        (
            "a key brought along",
            strangers.token(&json!({"jwk": strangers.jwk("one")}), &good),
        ),
        (
            "a place for keys brought along",
            strangers.token(&json!({"kid": "x", "jku": "http://127.0.0.1:1/"}), &good),
        ),
        (
            "the key of another algorithm",
            ours.token(&json!({"kid": "two"}), &good),
        ),
        (
            "a key for something else",
            strangers.token(&json!({"kid": "enc"}), &good),
        ),
        (
            "something to be understood",
            ours.token(&json!({"kid": "one", "crit": ["b64"], "b64": false}), &good),
        ),
        (
            "another kind",
            ours.token(&json!({"kid": "one", "typ": "id_token+jwt"}), &good),
        ),
        ("no algorithm", ours.token(&json!({"kid": "one", "alg": "none"}), &good)),
        (
            "no algorithm, no signature",
            format!("{}.", message(&json!({"alg": "none", "kid": "one"}), &good)),
        ),
        (
            "an algorithm of another name",
            ours.token(&json!({"kid": "one", "alg": "es256"}), &good),
        ),
    ];
    // The classic attack: the token is signed by HMAC with the public key, which is no secret.
    for (id, secret) in [("one", ours.jwk("one").to_string()), ("shared", "secret".to_owned())] {
        let message = message(&json!({"alg": "HS256", "kid": id}), &good);
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
        let signed = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, message.as_bytes()));
        bad.push(("a shared secret", format!("{message}.{signed}")));
    }
    for (what, claims) in [
        ("another issuer", with(&good, "iss", json!("https://evil.example.com"))),
        (
            "a list of issuers",
            with(&good, "iss", json!([issuer.url, "https://evil.example.com"])),
        ),
        ("no issuer", without(&good, "iss")),
        (
            "another audience",
            with(&good, "aud", json!("https://other.example.com/mcp")),
        ),
        (
            "a longer audience",
            with(&good, "aud", json!(format!("{RESOURCE_URL}/x"))),
        ),
        ("no audience", without(&good, "aud")),
        ("an empty list of audiences", with(&good, "aud", json!([]))),
        ("no end", without(&good, "exp")),
        ("an end that is a text", with(&good, "exp", json!("9999999999"))),
        ("an end that is nothing", with(&good, "exp", json!(null))),
        ("a beginning in the future", with(&good, "nbf", json!(now() + 600))),
        ("a beginning that is a text", with(&good, "nbf", json!("1"))),
        ("no subject", without(&good, "sub")),
        ("an empty subject", with(&good, "sub", json!(""))),
        ("a subject that is a number", with(&good, "sub", json!(7))),
        ("a subject of several lines", with(&good, "sub", json!("alice\nbob"))),
        ("an endless subject", with(&good, "sub", json!("a".repeat(256)))),
    ] {
        bad.push((what, ours.token(&one, &claims)));
    }
    let whole = ours.token(&one, &good);
    let (head, signed) = whole.rsplit_once('.').unwrap();
    let bob = message(
        &json!({"alg": "ES256", "kid": "one"}),
        &with(&good, "sub", json!("bob")),
    );
    bad.push(("other claims", format!("{bob}.{signed}")));
    bad.push(("half a signature", format!("{head}.{}", &signed[..signed.len() / 2])));
    bad.push(("no signature", format!("{head}.")));
    bad.push(("nothing", "..".to_owned()));
    bad.push(("an endless one", format!("{head}.{}", "A".repeat(TOKEN_BYTES))));
    for (what, token) in bad {
        assert_eq!(verifier.verify(&token).await, Err(BadToken::Wrong), "{what}");
    }
    for (claims, why) in [
        (with(&good, "exp", json!(now() - 60)), BadToken::Expired),
        (without(&good, "scope"), BadToken::Scope),
        (
            with(&good, "scope", json!("sandcell:admin xsandcell sandcellx")),
            BadToken::Scope,
        ),
        (with(&good, "scope", json!(7)), BadToken::Scope),
    ] {
        assert_eq!(verifier.verify(&ours.token(&one, &claims)).await, Err(why), "{claims}");
    }
    assert!(verifier.verify(&whole).await.is_ok(), "the right one still is");
}

#[tokio::test]
async fn keys_may_rotate_and_a_flood_of_unknown_ones_does_not_reach_the_issuer() {
    let (old, new) = (Signer::ec(), Signer::ec());
    let issuer = Issuer::with(&[old.jwk("old")]);
    let verifier = issuer.verifier();
    let claims = issuer.claims();
    let [before, after] = [(&old, "old"), (&new, "new")].map(|(key, id)| key.token(&json!({"kid": id}), &claims));
    assert!(verifier.verify(&before).await.is_ok());
    let began = std::time::Instant::now();
    for number in 0..200 {
        let token = new.token(&json!({"kid": format!("unknown-{number}")}), &claims);
        assert_eq!(verifier.verify(&token).await, Err(BadToken::Wrong));
    }
    let pauses = usize::try_from(began.elapsed().as_millis() / 200).unwrap();
    assert!(
        issuer.asked("/keys") <= pauses + 2,
        "{} in {pauses}",
        issuer.asked("/keys")
    );
    issuer.publish(&[new.jwk("new")]);
    for _ in 0..100 {
        if verifier.verify(&after).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(verifier.verify(&after).await.is_ok(), "the new key is found");
    assert_eq!(
        verifier.verify(&before).await,
        Err(BadToken::Wrong),
        "the old one is no more"
    );
}

#[tokio::test]
async fn an_unreachable_issuer_means_unknown_keys_are_refused() {
    let key = Signer::ec();
    let issuer = Issuer::with(&[key.jwk("one")]);
    let token = key.token(&json!({"kid": "one"}), &issuer.claims());
    let known = issuer.verifier();
    assert!(known.verify(&token).await.is_ok());
    for (path, status, body) in [
        ("/keys", 500, String::new()),
        ("/keys", 200, "not JSON".to_owned()),
        ("/keys", 200, json!({"keys": "none"}).to_string()),
        ("/keys", 200, format!("{{\"keys\": [\"{}\"]}}", "x".repeat(300 << 10))),
        ("/keys", 302, format!("{}/elsewhere", issuer.url)),
        (
            "/.well-known/oauth-authorization-server",
            200,
            json!({"issuer": "https://evil.example.com"}).to_string(),
        ),
        ("/.well-known/oauth-authorization-server", 404, String::new()),
    ] {
        issuer.answer("/elsewhere", 200, &json!({"keys": [key.jwk("one")]}).to_string());
        issuer.answer(path, status, &body);
        assert_eq!(
            issuer.verifier().verify(&token).await,
            Err(BadToken::Unreachable),
            "{status} {body:.60}"
        );
        assert!(known.verify(&token).await.is_ok(), "keys that are known are used");
    }
    assert_eq!(issuer.asked("/elsewhere"), 0, "redirections are not followed");
}

#[tokio::test]
async fn keys_are_found_by_openid_connect_and_where_the_operator_says() {
    let key = Signer::ed();
    let issuer = Issuer::with(&[key.jwk("one")]);
    let claims = issuer.claims();
    issuer.answer("/.well-known/oauth-authorization-server", 404, "");
    let metadata = json!({"issuer": issuer.url, "jwks_uri": format!("{}/keys", issuer.url)});
    issuer.answer("/.well-known/openid-configuration", 200, &metadata.to_string());
    // The only key needs no name.
    let token = key.token(&json!({}), &claims);
    assert!(issuer.verifier().verify(&token).await.is_ok());
    issuer.answer("/.well-known/openid-configuration", 404, "");
    let options = OauthOptions {
        jwks_uri: format!("{}/keys", issuer.url),
        ..issuer.options()
    };
    assert!(Verifier::new(&options).unwrap().verify(&token).await.is_ok());
}

#[tokio::test]
async fn the_cache_of_callers_is_bounded() {
    let key = Signer::ec();
    let issuer = Issuer::with(&[key.jwk("one")]);
    let verifier = issuer.verifier();
    let of = |name: &str, exp: u64| {
        let claims = with(&with(&issuer.claims(), "sub", json!(name)), "exp", json!(exp));
        key.token(&json!({"kid": "one"}), &claims)
    };
    for name in ["a", "b", "c", "d"] {
        assert!(verifier.verify(&of(name, now() + 60)).await.is_ok());
    }
    assert_eq!(verifier.verify(&of("e", now() + 60)).await, Err(BadToken::Full));
    assert!(
        verifier.verify(&of("a", now() + 60)).await.is_ok(),
        "who is there stays"
    );
}

#[test]
fn insecure_settings_are_refused() {
    let good = OauthOptions {
        issuer: "https://id.example.com/realms/team".to_owned(),
        resource: RESOURCE_URL.to_owned(),
        ..OauthOptions::default()
    };
    let verifier = Verifier::new(&good).unwrap();
    let resource_metadata = verifier.resource_metadata();
    let place = "https://sandcell.example.com/.well-known/oauth-protected-resource/mcp";
    assert_eq!(resource_metadata.challenge, format!("resource_metadata=\"{place}\""));
    assert_eq!(
        resource_metadata.document["authorization_servers"],
        json!([good.issuer])
    );
    assert!(resource_metadata.document.get("scopes_supported").is_none());
    for issuer in [
        "http://id.example.com",
        "id.example.com",
        "https://user:secret@id.example.com",
        "https://id.example.com/?a=b",
        "https://id.example.com/#x",
        "https://id.example.com/ x",
        "file:///etc/passwd",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
    ] {
        let issuer = issuer.to_owned();
        assert!(
            Verifier::new(&OauthOptions {
                issuer: issuer.clone(),
                ..good.clone()
            })
            .is_err(),
            "{issuer}"
        );
        assert!(
            Verifier::new(&OauthOptions {
                jwks_uri: issuer.clone(),
                ..good.clone()
            })
            .is_err()
                || issuer.contains('?')
        );
    }
    for scope in ["", "a b", "a\"", "a\n", "ü"] {
        let scopes = vec![scope.to_owned()];
        assert!(
            Verifier::new(&OauthOptions { scopes, ..good.clone() }).is_err(),
            "{scope}"
        );
    }
}
