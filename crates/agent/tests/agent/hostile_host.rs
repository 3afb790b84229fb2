//! Frames that a host must not send, to a real agent.

use std::io::{Read, Write};

use sandcell_agent::protocol::{Decoder, Hello, Kind, OutBuffer};
use sandcell_agent::server::ServeEnd;

use super::common::raw;

/// Sends the frames after HELLO. Returns the server's end and its last frame.
fn provoke(greet: bool, frames: impl FnOnce(&mut OutBuffer)) -> (ServeEnd, Vec<(Kind, u32, Vec<u8>)>) {
    let (mut to, mut from, server) = raw();
    let mut out = OutBuffer::default();
    if greet {
        assert!(out.message(Kind::Hello, 0, &Hello::ours()));
    }
    frames(&mut out);
    to.write_all(out.pending()).unwrap();
    drop(to);
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    let mut decoder = Decoder::default();
    let mut said = Vec::new();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let room = decoder.room();
        let count = room.len().min(rest.len());
        room[..count].copy_from_slice(&rest[..count]);
        decoder.filled(count);
        rest = &rest[count..];
        while let Some(frame) = decoder.next_frame().unwrap() {
            said.push((frame.kind, frame.stream, frame.payload.to_vec()));
        }
    }
    (server.join().unwrap(), said)
}

#[test]
fn a_protocol_error_ends_the_agent_with_a_goodbye() {
    type Frames = fn(&mut OutBuffer);
    let cases: [(&str, bool, Frames); 13] = [
        ("before HELLO", false, |out| {
            assert!(out.message(Kind::Request, 1, &serde_json::json!({"op": "ping"})))
        }),
        ("second HELLO", true, |out| {
            assert!(out.message(Kind::Hello, 0, &Hello::ours()))
        }),
        ("version 99", false, |out| {
            assert!(out.message(
                Kind::Hello,
                0,
                &serde_json::json!({"protocol": "sandcell-agent", "version": 99})
            ))
        }),
        ("stream 2", true, |out| {
            assert!(out.message(Kind::Request, 2, &serde_json::json!({"op": "ping"})))
        }),
        ("stream 1", true, |out| {
            for _ in 0..2 {
                assert!(out.message(Kind::Request, 1, &serde_json::json!({"op": "ping"})));
            }
        }),
        ("REQUEST", true, |out| {
            assert!(out.frame(Kind::Request, 1, &[b"\xff\xff"]))
        }),
        ("never opened", true, |out| out.data(7, 0, b"x")),
        ("may not send", true, |out| {
            assert!(out.message(Kind::Request, 1, &serde_json::json!({"op": "ping"})));
            assert!(out.frame(Kind::Event, 1, &[b"{}"]));
        }),
        ("channel that does not exist", true, |out| {
            spawn(out, 1);
            out.data(1, 3, b"x");
        }),
        ("beyond the window", true, |out| {
            spawn(out, 1);
            for _ in 0..5 {
                out.data(1, 0, &vec![0; 64 << 10]);
            }
        }),
        ("more credit", true, |out| {
            spawn(out, 1);
            out.credit(1, 1, 1);
        }),
        ("empty DATA", true, |out| {
            spawn(out, 1);
            assert!(out.frame(Kind::Data, 1, &[&[0]]));
        }),
        ("second CLOSE", true, |out| {
            spawn(out, 1);
            out.close(1, 0);
            out.close(1, 0);
        }),
    ];
    for (expected, greet, frames) in cases {
        let (end, said) = provoke(greet, frames);
        let ServeEnd::ProtocolError(error) = end else {
            panic!("{expected}: {end:?}")
        };
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        let (kind, _, payload) = said.last().unwrap();
        assert_eq!(*kind, Kind::Goodbye, "{expected}");
        assert!(String::from_utf8_lossy(payload).contains("reason"));
    }
}

fn spawn(out: &mut OutBuffer, stream: u32) {
    let request = serde_json::json!({
        "op": "spawn", "argv": ["sleep", "1000"], "env": {}, "cwd": "/", "stdin": "piped", "control": false,
    });
    assert!(out.message(Kind::Request, stream, &request));
}

#[test]
fn invalid_frames_end_the_agent() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 64],
        &[0; 64],
        &[5, 0, 0, 0, 99, 0, 0, 0, 0],
    ] {
        let (mut to, _from, server) = raw();
        to.write_all(bytes).unwrap();
        assert!(matches!(server.join().unwrap(), ServeEnd::ProtocolError(_)));
    }
}

#[test]
fn unknown_requests_are_answered_and_late_ones_are_ignored() {
    let (end, said) = provoke(true, |out| {
        assert!(out.message(Kind::Request, 1, &serde_json::json!({"op": "teleport", "token": "00"})));
        assert!(out.message(Kind::Request, 3, &serde_json::json!({"op": "open", "port": 0})));
        assert!(out.message(Kind::Request, 5, &serde_json::json!({"op": "open", "port": 80})));
        assert!(out.message(Kind::Request, 7, &serde_json::json!({"op": "read", "path": 1})));
        assert!(out.message(
            Kind::Request,
            9,
            &serde_json::json!({"op": "signal", "process": 3, "signal": "kill", "scope": "tree"})
        ));
        assert!(out.message(
            Kind::Request,
            11,
            &serde_json::json!({"op": "read", "path": "/", "offset": 0, "len": 1_u64 << 40})
        ));
        out.data(5, 4, b"late");
        out.credit(5, 4, 100);
        out.close(5, 4);
        out.reset(5);
        assert!(out.message(
            Kind::Request,
            13,
            &serde_json::json!({"op": "ping", "something": "new"})
        ));
    });
    assert!(matches!(end, ServeEnd::HostClosed), "{end:?}");
    let codes: Vec<String> = said
        .iter()
        .filter(|(kind, ..)| *kind == Kind::Reply)
        .map(|(_, stream, payload)| {
            let value: serde_json::Value = serde_json::from_slice(payload).unwrap();
            format!("{stream} {}", value["error"]["code"].as_str().unwrap_or("ok"))
        })
        .collect();
    let expected = [
        "1 unsupported",
        "3 invalid",
        "5 invalid",
        "7 invalid",
        "9 invalid",
        "11 invalid",
        "13 ok",
    ];
    assert_eq!(codes, expected);
    assert!(said.contains(&(Kind::Reset, 5, Vec::new())));
}

#[test]
fn a_host_that_does_not_read_cannot_make_the_agent_hold_more_than_its_bound() {
    let (mut to, from, server) = raw();
    let mut out = OutBuffer::default();
    assert!(out.message(Kind::Hello, 0, &Hello::ours()));
    to.write_all(out.pending()).unwrap();
    // Each answer is larger than its request. Without a bound the agent would hold all of them.
    let writer = std::thread::spawn(move || {
        let mut written = 0_usize;
        for stream in (1..2_000_001).step_by(2) {
            let mut out = OutBuffer::default();
            assert!(out.message(Kind::Request, stream, &serde_json::json!({"op": "x".repeat(40)})));
            if to.write_all(out.pending()).is_err() {
                break;
            }
            written += out.len();
        }
        written
    });
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(
        !writer.is_finished(),
        "the agent reads on although its answers are not read"
    );
    drop(from);
    assert!(writer.join().unwrap() < 16 << 20);
    assert!(matches!(server.join().unwrap(), ServeEnd::HostClosed));
}
