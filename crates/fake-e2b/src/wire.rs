//! Hand-written HTTP for the fake service: requests, answers, and checks of both.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

/// Checks an object against its description: no unknown fields, none missing, each of the right type.
pub fn shape(value: &Value, fields: &[(&str, &str, bool)]) -> Result<(), String> {
    let object = value.as_object().ok_or("no object")?;
    for (name, value) in object {
        let (_, kind, _) = fields
            .iter()
            .find(|(known, ..)| known == name)
            .ok_or_else(|| format!("a field {name} that is not described"))?;
        let texts = |value: &Value| {
            value
                .as_object()
                .is_some_and(|inner| inner.values().all(Value::is_string))
        };
        let fits = match *kind {
            "string" => value.is_string(),
            "u64" => value.is_u64(),
            "bool" => value.is_boolean(),
            "list" => value.as_array().is_some_and(|list| list.iter().all(Value::is_string)),
            "texts" => texts(value),
            "object" => value.is_object(),
            other => panic!("{other}"),
        };
        if !fits {
            return Err(format!("{name} is no {kind}: {value}"));
        }
    }
    match fields
        .iter()
        .find(|(name, _, required)| *required && !object.contains_key(*name))
    {
        Some((name, ..)) => Err(format!("{name} is missing")),
        None => Ok(()),
    }
}

pub fn frame(flags: u8, value: &Value) -> Vec<u8> {
    let body = value.to_string();
    let mut frame = vec![flags];
    frame.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    frame.extend(body.as_bytes());
    frame
}

pub fn chunk(writer: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let mut text = format!("{:x}\r\n", bytes.len()).into_bytes();
    text.extend_from_slice(bytes);
    text.extend_from_slice(b"\r\n");
    writer.write_all(&text)
}

pub fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

pub struct Request {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub raw: String,
}

impl Request {
    pub fn read(reader: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut first = String::new();
        reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
        let mut words = first.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (path, query) = (path.to_owned(), query.to_owned());
        let mut raw = first.clone();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            raw.push_str(&line);
            match line.trim_end().split_once(':') {
                Some((name, value)) => headers.push((name.to_lowercase(), value.trim().to_owned())),
                None => break,
            }
        }
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let mut body = vec![0; length.map_or(0, |(_, value)| value.parse().unwrap())];
        reader.read_exact(&mut body).ok()?;
        Some(Self {
            method,
            path,
            query,
            headers,
            body,
            raw,
        })
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    }

    pub fn query(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.into_iter().find(|(known, _)| *known == name)?;
        let mut bytes = Vec::new();
        let mut rest = value.bytes();
        while let Some(byte) = rest.next() {
            match byte {
                b'+' => bytes.push(b' '),
                b'%' => {
                    let code = [rest.next()?, rest.next()?];
                    bytes.push(u8::from_str_radix(std::str::from_utf8(&code).ok()?, 16).ok()?);
                }
                other => bytes.push(other),
            }
        }
        String::from_utf8(bytes).ok()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

pub struct Answer {
    pub status: u16,
    pub kind: &'static str,
    pub headers: String,
    pub body: Vec<u8>,
    pub sent: bool,
}

impl Answer {
    pub fn bytes(status: u16, body: Vec<u8>) -> Self {
        Self {
            status,
            kind: "application/octet-stream",
            headers: String::new(),
            body,
            sent: false,
        }
    }

    pub fn json(status: u16, value: &Value) -> Self {
        Self {
            kind: "application/json",
            ..Self::bytes(status, value.to_string().into_bytes())
        }
    }

    pub fn error(status: u16, message: &str) -> Self {
        Self::json(status, &json!({"code": status, "message": message}))
    }

    pub fn empty(status: u16) -> Self {
        Self::bytes(status, Vec::new())
    }

    /// Returns the placeholder for an answer that was streamed.
    pub fn sent() -> Self {
        Self {
            sent: true,
            ..Self::empty(200)
        }
    }

    pub fn write(self, writer: &mut TcpStream) -> std::io::Result<()> {
        if self.sent {
            return Ok(());
        }
        let length = match self.status {
            204 => String::new(),
            _ => format!("Content-Length: {}\r\n", self.body.len()),
        };
        let head = format!(
            "HTTP/1.1 {} Fake\r\nContent-Type: {}\r\n{length}{}\r\n",
            self.status, self.kind, self.headers
        );
        writer.write_all(head.as_bytes())?;
        writer.write_all(&self.body)
    }
}
