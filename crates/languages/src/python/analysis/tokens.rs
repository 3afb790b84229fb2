//! Splits Python source into tokens: names, punctuation and ends of statements. Skips strings, numbers and comments,
//! including the code in braces of f-strings.

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Name,
    Mark,
    /// A string or a number, of which only the position is recorded.
    Literal,
    /// The end of a statement: a line's end outside of brackets, or a semicolon.
    End,
}

/// A token and its start; lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) line: u32,
    pub(super) column: u32,
    /// The number of open brackets around it.
    pub(super) depth: u32,
}

/// The reason why a source is certainly no valid program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) message: &'static str,
    pub(super) line: u32,
    pub(super) column: u32,
}

struct Reader<'a> {
    source: &'a str,
    /// The number of bytes read, the current line and the offset of its first byte.
    at: usize,
    line: u32,
    line_start: usize,
    tokens: Vec<Token<'a>>,
    /// Open brackets: the closing byte and the position of each.
    open: Vec<(u8, u32, u32)>,
    fault: Option<Fault>,
}

/// Returns all tokens, and the first fault that no Python accepts.
pub(super) fn tokens(source: &str) -> (Vec<Token<'_>>, Option<Fault>) {
    let mut reader = Reader {
        source,
        at: 0,
        line: 1,
        line_start: 0,
        tokens: Vec::new(),
        open: Vec::new(),
        fault: None,
    };
    while let Some(byte) = reader.peek(0) {
        reader.step(byte);
    }
    if let Some((_, line, column)) = reader.open.first().copied() {
        reader.fail("this bracket is never closed", line, column);
    }
    (reader.tokens, reader.fault)
}

impl<'a> Reader<'a> {
    fn peek(&self, offset: usize) -> Option<u8> {
        self.source.as_bytes().get(self.at + offset).copied()
    }

    fn fail(&mut self, message: &'static str, line: u32, column: u32) {
        self.fault.get_or_insert(Fault { message, line, column });
    }

    /// Returns the column in characters. Called once per token, and bounded: very long lines are counted in bytes.
    fn column(&self) -> u32 {
        let before = self.source.get(self.line_start..self.at).unwrap_or_default();
        let count = if before.len() > 400 {
            before.len()
        } else {
            before.chars().count()
        };
        u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1)
    }

    fn push(&mut self, kind: Kind, length: usize) {
        let text = self.source.get(self.at..self.at + length).unwrap_or_default();
        let (line, column) = (self.line, self.column());
        self.at += length;
        let depth = u32::try_from(self.open.len()).unwrap_or(u32::MAX);
        self.tokens.push(Token {
            kind,
            text,
            line,
            column,
            depth,
        });
    }

    fn new_line(&mut self) {
        self.at += 1;
        self.line = self.line.saturating_add(1);
        self.line_start = self.at;
    }

    fn step(&mut self, byte: u8) {
        match byte {
            b'\n' if self.open.is_empty() => {
                self.push(Kind::End, 0);
                self.new_line();
            }
            b'\n' => self.new_line(),
            b' ' | b'\t' | b'\r' | 0x0C => self.at += 1,
            b'#' => {
                let rest = self.source.as_bytes().get(self.at..).unwrap_or_default();
                self.at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            }
            b'\\' if self.peek(1) == Some(b'\n') => {
                self.at += 1;
                self.new_line();
            }
            b'\\' => self.at += 1,
            b';' if self.open.is_empty() => self.push(Kind::End, 1),
            b'"' | b'\'' => self.string(),
            b'(' | b'[' | b'{' => {
                let closes = match byte {
                    b'(' => b')',
                    b'[' => b']',
                    _ => b'}',
                };
                let column = self.column();
                self.push(Kind::Mark, 1);
                self.open.push((closes, self.line, column));
            }
            b')' | b']' | b'}' => {
                let column = self.column();
                if self.open.pop().is_none_or(|(closes, ..)| closes != byte) {
                    self.fail("this bracket closes nothing that is open", self.line, column);
                }
                self.push(Kind::Mark, 1);
            }
            b'0'..=b'9' => self.number(),
            b if b == b'_' || b.is_ascii_alphabetic() || b >= 0x80 => self.word(),
            _ => self.push(Kind::Mark, 1),
        }
    }

    fn number(&mut self) {
        let rest = self.source.as_bytes().get(self.at..).unwrap_or_default();
        let fits = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'.' || *byte == b'_';
        let length = rest.iter().position(|byte| !fits(byte)).unwrap_or(rest.len());
        self.push(Kind::Literal, length);
    }

    fn word(&mut self) {
        let rest = self.source.as_bytes().get(self.at..).unwrap_or_default();
        let fits = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
        let length = rest.iter().position(|byte| !fits(byte)).unwrap_or(rest.len());
        let word = rest.get(..length).unwrap_or_default();
        let quoted = matches!(rest.get(length), Some(b'"' | b'\''));
        let prefix = length <= 2 && word.iter().all(|byte| b"rRbBuUfFtT".contains(byte));
        if quoted && prefix {
            self.at += length;
            self.string();
        } else {
            self.push(Kind::Name, length);
        }
    }

    /// Reads a string from its quote on. A backslash hides a quote in raw strings, too.
    fn string(&mut self) {
        let bytes = self.source.as_bytes();
        let (line, column) = (self.line, self.column());
        let quote = self.peek(0).unwrap_or(b'"');
        let triple = self.peek(1) == Some(quote) && self.peek(2) == Some(quote);
        let depth = u32::try_from(self.open.len()).unwrap_or(u32::MAX);
        self.tokens.push(Token {
            kind: Kind::Literal,
            text: "",
            line,
            column,
            depth,
        });
        self.at += if triple { 3 } else { 1 };
        while let Some(byte) = bytes.get(self.at).copied() {
            match byte {
                b'\\' => {
                    if self.peek(1) == Some(b'\n') {
                        self.at += 1;
                        self.new_line();
                    } else {
                        self.at += 2;
                    }
                }
                b'\n' if triple => self.new_line(),
                b'\n' => break,
                byte if byte == quote && !triple => {
                    self.at += 1;
                    return;
                }
                byte if byte == quote && self.peek(1) == Some(quote) && self.peek(2) == Some(quote) => {
                    self.at += 3;
                    return;
                }
                _ => self.at += 1,
            }
        }
        self.fail("this string is never closed", line, column);
    }
}
