//! Frames that an agent must not send, to a real client.

use std::time::Duration;

use sandcell_agent::client::{AgentClient, AgentEnd};
use sandcell_agent::protocol::{Decoder, Hello, Kind, OutBuffer};
use sandcell_sandbox::SandboxError;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::common::{TEST_TIMEOUT, command, path};

/// The agent's side of a connection, played by a test.
struct Fake {
    stream: DuplexStream,
    decoder: Decoder,
}

impl Fake {
    async fn connect() -> (AgentClient, Self) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let mut fake = Self {
            stream: ours,
            decoder: Decoder::default(),
        };
        fake.send(|out| assert!(out.message(Kind::Hello, 0, &Hello::ours())))
            .await;
        let (reader, writer) = tokio::io::split(theirs);
        let client = AgentClient::connect(reader, writer).await.unwrap();
        assert_eq!(fake.frame().await.0, Kind::Hello);
        (client, fake)
    }

    async fn send(&mut self, make: impl FnOnce(&mut OutBuffer)) {
        let mut out = OutBuffer::default();
        make(&mut out);
        self.stream.write_all(out.pending()).await.unwrap();
    }

    async fn frame(&mut self) -> (Kind, u32, Vec<u8>) {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return (frame.kind, frame.stream, frame.payload.to_vec());
            }
            let count = self.stream.read(self.decoder.room()).await.unwrap();
            assert!(count > 0, "the client has closed");
            self.decoder.filled(count);
        }
    }
}

async fn protocol_error_of(client: &AgentClient) -> String {
    match tokio::time::timeout(TEST_TIMEOUT, client.closed()).await.unwrap() {
        AgentEnd::ProtocolError(text) => text,
        end => panic!("{end:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_handshake_is_a_clear_error() {
    for (hello, expected) in [
        (&b"SSH-2.0-OpenSSH_9.2\r\n"[..], "a frame of"),
        (&[9, 0, 0, 0, 1, 0, 0, 0, 0, b'n', b'u', b'l', b'l'], "HELLO"),
        (&[5, 0, 0, 0, 8, 0, 0, 0, 0], "before HELLO"),
    ] {
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        ours.write_all(hello).await.unwrap();
        let (reader, writer) = tokio::io::split(theirs);
        let error = AgentClient::connect(reader, writer).await.unwrap_err();
        assert!(
            matches!(&error, SandboxError::Protocol(text) if text.contains(expected)),
            "{error}"
        );
    }
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let mut out = OutBuffer::default();
    assert!(out.message(
        Kind::Hello,
        0,
        &json!({"protocol": "sandcell-agent", "version": 2, "features": []})
    ));
    ours.write_all(out.pending()).await.unwrap();
    let (reader, writer) = tokio::io::split(theirs);
    let error = AgentClient::connect(reader, writer).await.unwrap_err().to_string();
    assert!(error.contains("version 2") && error.contains("version 1"), "{error}");
    // An empty stream.
    let (_ours, theirs) = tokio::io::duplex(1 << 16);
    let (reader, writer) = tokio::io::split(theirs);
    assert!(matches!(
        AgentClient::connect(reader, writer).await,
        Err(SandboxError::Setup { .. })
    ));
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    drop(ours);
    let (reader, writer) = tokio::io::split(theirs);
    assert!(matches!(
        AgentClient::connect(reader, writer).await,
        Err(SandboxError::Gone(_))
    ));
}

#[tokio::test]
async fn unrequested_frames_end_the_connection() {
    type Frames = fn(&mut OutBuffer);
    let cases: [(&str, Frames); 6] = [
        ("not open", |out| out.data(1, 1, b"x")),
        ("not open", |out| {
            assert!(out.message(Kind::Reply, 99, &json!({"ok": {}})))
        }),
        ("bad REQUEST", |out| {
            assert!(out.message(Kind::Request, 2, &json!({"op": "open"})))
        }),
        ("not open", |out| assert!(out.message(Kind::Hello, 0, &Hello::ours()))),
        ("not open", |out| out.reset(1)),
        ("ended the connection: tired", |out| {
            assert!(out.message(Kind::Goodbye, 0, &json!({"reason": "tired"})))
        }),
    ];
    for (expected, frames) in cases {
        let (client, mut fake) = Fake::connect().await;
        fake.send(frames).await;
        let text = protocol_error_of(&client).await;
        assert!(text.contains(expected), "{text}");
        assert!(matches!(client.ping().await, Err(SandboxError::Protocol(_))));
    }
}

#[tokio::test]
async fn a_program_that_violates_the_protocol_ends_the_connection() {
    type Frames = fn(&mut OutBuffer);
    let cases: [(&str, Frames); 11] = [
        ("channel 0", |out| out.data(1, 0, b"x")),
        ("channel 4", |out| out.data(1, 4, b"x")),
        ("closed", |out| out.data(1, 3, b"no control was asked for")),
        ("closed", |out| {
            out.close(1, 1);
            out.data(1, 1, b"x");
        }),
        ("twice", |out| {
            out.close(1, 1);
            out.close(1, 1);
        }),
        ("twice", |out| {
            for _ in 0..2 {
                assert!(out.message(Kind::Event, 1, &json!({"event": "exited", "exit": {"code": 0}})));
            }
        }),
        ("EVENT", |out| {
            assert!(out.message(Kind::Event, 1, &json!({"event": "exited", "exit": {"code": 256}})))
        }),
        ("second answer", |out| {
            assert!(out.message(Kind::Reply, 1, &json!({"ok": {"pid": 3}})))
        }),
        ("credit", |out| out.credit(1, 0, 1)),
        // Sixteen fill the channel, which has no reader, and four fill the window.
        ("window", |out| {
            for _ in 0..21 {
                out.data(1, 1, &[0; 65_472]);
            }
        }),
        ("may not send", |out| out.reset(1)),
    ];
    for (expected, frames) in cases {
        let (client, mut fake) = Fake::connect().await;
        let asking = {
            let client = client.clone();
            tokio::spawn(async move { client.spawn(command(&["x"])).await })
        };
        assert_eq!(fake.frame().await.0, Kind::Request);
        fake.send(|out| assert!(out.message(Kind::Reply, 1, &json!({"ok": {"pid": 2}}))))
            .await;
        let process = asking.await.unwrap().unwrap();
        fake.send(frames).await;
        let text = protocol_error_of(&client).await;
        assert!(text.contains(expected), "{expected}: {text}");
        drop(process);
    }
}

#[tokio::test]
async fn output_before_the_answer_to_a_start_is_a_protocol_error() {
    let (client, mut fake) = Fake::connect().await;
    let asking = {
        let client = client.clone();
        tokio::spawn(async move { client.spawn(command(&["x"])).await })
    };
    fake.frame().await;
    fake.send(|out| out.data(1, 1, b"early")).await;
    assert!(protocol_error_of(&client).await.contains("not started"));
    assert!(matches!(asking.await.unwrap(), Err(SandboxError::Protocol(_))));
}

#[tokio::test]
async fn oversized_answers_and_malformed_answers_are_protocol_errors() {
    type Frames = fn(&mut OutBuffer);
    let cases: [(bool, Frames); 5] = [
        (true, |out| out.data(1, 4, &[0; 11])),
        (true, |out| out.data(1, 1, b"x")),
        (true, |out| {
            assert!(out.message(Kind::Reply, 1, &json!({"ok": {"total": "many"}})))
        }),
        (true, |out| assert!(out.frame(Kind::Reply, 1, &[b"\xff"]))),
        (false, |out| {
            let entry = json!({"name": "a", "kind": "file", "size": 1, "modified_ms": 1});
            assert!(out.message(
                Kind::Reply,
                1,
                &json!({"ok": {"entries": [entry, entry], "omitted": 0}})
            ));
        }),
    ];
    for (read, frames) in cases {
        let (client, mut fake) = Fake::connect().await;
        let asking = {
            let client = client.clone();
            tokio::spawn(async move {
                if read {
                    client.files().read(&path("/x"), 0, 10).await.map(drop)
                } else {
                    client.files().list(&path("/x"), false, 1).await.map(drop)
                }
            })
        };
        fake.frame().await;
        fake.send(frames).await;
        protocol_error_of(&client).await;
        assert!(asking.await.unwrap().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_answer_times_out_and_late_frames_are_ignored() {
    let (client, mut fake) = Fake::connect().await;
    let error = client.usage().await.unwrap_err();
    assert!(matches!(error, SandboxError::Setup { .. }), "{error}");
    assert_eq!(fake.frame().await.0, Kind::Request);
    assert_eq!(fake.frame().await, (Kind::Reset, 1, Vec::new()));
    fake.send(|out| {
        assert!(out.message(Kind::Reply, 1, &json!({"ok": {}})));
        out.data(1, 1, b"late");
        out.reset(1);
    })
    .await;
    let asking = {
        let client = client.clone();
        tokio::spawn(async move { client.ping().await })
    };
    let (_, stream, _) = fake.frame().await;
    fake.send(|out| assert!(out.message(Kind::Reply, stream, &json!({"ok": {}}))))
        .await;
    asking.await.unwrap().unwrap();
    // After the confirmation the stream is closed permanently.
    fake.send(|out| out.data(1, 1, b"later")).await;
    assert!(protocol_error_of(&client).await.contains("not open"));
}

#[tokio::test]
async fn arbitrary_bytes_after_the_handshake_end_the_connection_and_nothing_else() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..200 {
        let (client, mut fake) = Fake::connect().await;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            seed.to_be_bytes()[0]
        })
        .take(300)
        .collect();
        fake.stream.write_all(&bytes).await.unwrap();
        drop(fake);
        tokio::time::timeout(Duration::from_secs(10), client.closed())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn an_agent_that_opens_unrequested_streams_is_disconnected() {
    let open = |forward: u32| json!({"op": "open", "forward": forward, "target": "network"});
    // No port was requested, and the stream has an id of the host.
    for stream in [2, 3] {
        let (client, mut fake) = Fake::connect().await;
        fake.send(|out| assert!(out.message(Kind::Request, stream, &open(1))))
            .await;
        protocol_error_of(&client).await;
    }
    // A requested port, bytes beyond the window, and the same id twice.
    for case in ["flood", "twice", "credit", "channel"] {
        let (client, mut fake) = Fake::connect().await;
        let asking = {
            let client = client.clone();
            tokio::spawn(async move { client.forward(3128, "network").await })
        };
        let (kind, id, _) = fake.frame().await;
        assert_eq!((kind, id), (Kind::Request, 1));
        fake.send(|out| assert!(out.message(Kind::Reply, 1, &json!({"ok": {"port": 3128}}))))
            .await;
        let _forward = asking.await.unwrap().unwrap();
        fake.send(|out| assert!(out.message(Kind::Request, 2, &open(1)))).await;
        assert_eq!(fake.frame().await.0, Kind::Reply);
        fake.send(|out| match case {
            "flood" => (0..6).for_each(|_| out.data(2, 4, &[0; 65000])),
            "twice" => assert!(out.message(Kind::Request, 2, &open(1))),
            "credit" => out.credit(2, 4, 100_000_000),
            _ => out.data(2, 1, b"x"),
        })
        .await;
        let text = protocol_error_of(&client).await;
        assert!(!text.is_empty(), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_larger_than_asked_for_is_a_protocol_error() {
    for reply in [
        json!({"ok": {"position": 4097, "bytes": 10}}),
        json!({"ok": {"position": u64::MAX, "bytes": u64::MAX}}),
        json!({"ok": {"position": 0, "bytes": u64::MAX}}),
    ] {
        let (client, mut fake) = Fake::connect().await;
        let files = client.clone();
        let asking = tokio::spawn(async move { files.saved_files().unwrap().image(1, 4096).await.unwrap_err() });
        let (kind, stream, _) = fake.frame().await;
        assert_eq!(kind, Kind::Request);
        fake.send(|out| assert!(out.message(Kind::Reply, stream, &reply))).await;
        assert!(protocol_error_of(&client).await.contains("larger image"));
        assert!(matches!(asking.await.unwrap(), SandboxError::Protocol(_)));
    }
}
