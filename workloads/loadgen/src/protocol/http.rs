//! HTTP/1.1 GET on connections kept alive.

use super::line::{decimal, LineBuffer};
use super::{push_decimal, Answer, Expect, Garbage, Parser, Progress, Workload};
use crate::rng::Rng;
use crate::zipf::Zipf;

/// The paths asked for, most popular first.
pub enum Paths {
    List(Vec<String>),
    /// `before`, the rank, `after`
    Pattern {
        before: String,
        after: String,
    },
}

/// GET requests for paths by Zipf.
pub struct Requests {
    pub paths: Paths,
    pub zipf: Zipf,
    pub seed: u64,
    /// Everything of the request after the path.
    pub tail: Vec<u8>,
}

const REQUEST_STREAMS: u64 = 1 << 32;

impl Requests {
    pub fn new(paths: Paths, zipf: Zipf, seed: u64, host: &str, headers: &[String]) -> Self {
        let mut tail = format!(" HTTP/1.1\r\nHost: {host}\r\n");
        for header in headers {
            tail.push_str(header);
            tail.push_str("\r\n");
        }
        tail.push_str("\r\n");
        Self { paths, zipf, seed, tail: tail.into_bytes() }
    }
}

impl Workload for Requests {
    fn write_request(&self, index: u64, out: &mut Vec<u8>) -> Expect {
        let rank = self.zipf.sample(&mut Rng::new(self.seed, REQUEST_STREAMS + index));
        out.extend_from_slice(b"GET ");
        match &self.paths {
            Paths::List(paths) => out.extend_from_slice(paths[rank as usize].as_bytes()),
            Paths::Pattern { before, after } => {
                out.extend_from_slice(before.as_bytes());
                push_decimal(out, rank, 1);
                out.extend_from_slice(after.as_bytes());
            }
        }
        out.extend_from_slice(&self.tail);
        Expect::Http
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(Reader::default())
    }
}

/// Where in a response the parser is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Status,
    Header,
    Body {
        left: u64,
    },
    BodyToEnd,
    ChunkSize,
    Chunk {
        left: u64,
    },
    ChunkEnd,
    Trailer,
}

/// What is known of the response being read.
#[derive(Clone, Copy, Default)]
struct Head {
    status: u16,
    length: Option<u64>,
    chunked: bool,
    closes: bool,
}

#[derive(Default)]
struct Reader {
    line: LineBuffer,
    at: At,
    head: Head,
    last_error: String,
}

/// `HTTP/1.1 200 OK`: the status, and whether the version closes by default.
fn read_status(line: &[u8]) -> Result<Head, Garbage> {
    let wrong = Garbage("a status line that is not HTTP/1.x");
    let minor = line.strip_prefix(b"HTTP/1.").ok_or(wrong)?;
    let [version @ (b'0' | b'1'), b' ', code @ ..] = minor else {
        return Err(wrong);
    };
    let digits = code.split(|b| *b == b' ').next().unwrap_or(&[]);
    match decimal(digits) {
        Some(status @ 100..=599) if digits.len() == 3 => {
            Ok(Head { status: status as u16, closes: *version == b'0', ..Head::default() })
        }
        _ => Err(wrong),
    }
}

fn has_token(value: &[u8], token: &str) -> bool {
    value.split(|b| *b == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

fn read_header(head: &mut Head, line: &[u8]) -> Result<(), Garbage> {
    let colon = line.iter().position(|b| *b == b':').ok_or(Garbage("a header line without a colon"))?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    if name.eq_ignore_ascii_case(b"content-length") {
        let length = decimal(value).ok_or(Garbage("a Content-Length that is no number"))?;
        if head.length.is_some_and(|before| before != length) {
            return Err(Garbage("two different Content-Length headers"));
        }
        head.length = Some(length);
    } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
        head.chunked = has_token(value, "chunked");
    } else if name.eq_ignore_ascii_case(b"connection") {
        head.closes = has_token(value, "close") || (head.closes && !has_token(value, "keep-alive"));
    }
    Ok(())
}

fn read_chunk_size(line: &[u8]) -> Result<u64, Garbage> {
    let digits = line.split(|b| *b == b';').next().unwrap_or(&[]).trim_ascii();
    if digits.is_empty() || digits.len() > 15 {
        return Err(Garbage("a chunk size that is no number"));
    }
    let text = std::str::from_utf8(digits).map_err(|_| Garbage("a chunk size that is no number"))?;
    if text.starts_with('+') {
        return Err(Garbage("a chunk size that is no number"));
    }
    u64::from_str_radix(text, 16).map_err(|_| Garbage("a chunk size that is no number"))
}

impl Reader {
    /// The headers are over: what follows them.
    fn body(&self) -> Option<At> {
        let head = &self.head;
        match head.status {
            100..=199 => Some(At::Status),
            204 | 304 => None,
            _ if head.chunked => Some(At::ChunkSize),
            _ => match head.length {
                Some(0) => None,
                Some(left) => Some(At::Body { left }),
                None => Some(At::BodyToEnd),
            },
        }
    }

    fn complete(&mut self) -> Answer {
        self.at = At::Status;
        Answer { good: (200..400).contains(&self.head.status), misses: 0, closes: self.head.closes }
    }

    /// Takes one line where lines are expected; true if it ended the response.
    fn take_line(at: At, head: &mut Head, line: &[u8], last_error: &mut String) -> Result<At, Garbage> {
        Ok(match at {
            At::Status => {
                *head = read_status(line)?;
                if !(100..400).contains(&head.status) {
                    *last_error = String::from_utf8_lossy(line).into_owned();
                }
                At::Header
            }
            At::Header => {
                read_header(head, line)?;
                At::Header
            }
            At::ChunkSize => match read_chunk_size(line)? {
                0 => At::Trailer,
                left => At::Chunk { left },
            },
            At::ChunkEnd if line.is_empty() => At::ChunkSize,
            At::ChunkEnd => return Err(Garbage("a chunk longer than its size")),
            other => other,
        })
    }

    /// Bytes of a body: how many of them are used, and where that leads.
    fn take_body(&mut self, input: &[u8]) -> Option<(usize, Option<Answer>)> {
        let take = |left: u64| left.min(input.len() as u64);
        match self.at {
            At::Body { left } => {
                let n = take(left);
                self.at = At::Body { left: left - n };
                let answer = (n == left).then(|| self.complete());
                Some((n as usize, answer))
            }
            At::Chunk { left } => {
                let n = take(left);
                self.at = if n == left { At::ChunkEnd } else { At::Chunk { left: left - n } };
                Some((n as usize, None))
            }
            At::BodyToEnd => Some((input.len(), None)),
            _ => None,
        }
    }

    /// A line found: goes on, or completes the response.
    fn after_line(&mut self, empty: bool, next: At) -> Option<Answer> {
        match (self.at, empty) {
            (At::Header, true) => match self.body() {
                Some(at) => {
                    self.at = at;
                    None
                }
                None => Some(self.complete()),
            },
            (At::Trailer, true) => Some(self.complete()),
            _ => {
                self.at = next;
                None
            }
        }
    }
}

impl Parser for Reader {
    fn advance(&mut self, _expect: Expect, input: &[u8]) -> Result<Progress, Garbage> {
        let mut used = 0;
        while used < input.len() {
            let rest = &input[used..];
            if let Some((n, answer)) = self.take_body(rest) {
                used += n;
                if answer.is_some() {
                    return Ok((used, answer));
                }
                continue;
            }
            let Some(found) = self.line.find(rest)? else {
                return Ok((input.len(), None));
            };
            let line = self.line.line(&found, rest);
            let ends = line.is_empty() && matches!(self.at, At::Header | At::Trailer);
            let next = if ends {
                self.at
            } else {
                Self::take_line(self.at, &mut self.head, line, &mut self.last_error)?
            };
            self.line.clear();
            used += found.used;
            if let Some(answer) = self.after_line(ends, next) {
                return Ok((used, Some(answer)));
            }
        }
        Ok((used, None))
    }

    fn end_of_stream(&mut self) -> Option<Answer> {
        (self.at == At::BodyToEnd).then(|| {
            self.head.closes = true;
            self.complete()
        })
    }

    fn reset(&mut self) {
        self.line.clear();
        self.at = At::Status;
    }

    fn last_error(&self) -> &str {
        &self.last_error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in_pieces(input: &[u8], size: usize) -> Result<(Vec<Answer>, Reader), Garbage> {
        let mut reader = Reader::default();
        let mut answers = Vec::new();
        for mut piece in input.chunks(size) {
            while !piece.is_empty() {
                let (used, answer) = reader.advance(Expect::Http, piece)?;
                answers.extend(answer);
                piece = &piece[used..];
            }
        }
        Ok((answers, reader))
    }

    /// Lengths, chunks with extensions and trailers, empty bodies, interim and error answers are read in pieces of every size.
    #[test]
    fn answers_in_pieces() {
        let input = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/\
            HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, Chunked\r\n\r\n5;a=b\r\n0\r\n\r\n\r\n00a\r\n0123456789\r\n0\r\nX: y\r\n\r\n\
            HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n\
            HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204\r\n\r\n\
            HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n\
            HTTP/1.1 503 Busy\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nno\
            HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx\
            HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx";
        let expected = [
            (true, false),
            (true, false),
            (true, false),
            (true, false),
            (false, false),
            (false, true),
            (true, true),
            (true, false),
        ];
        for size in 1..input.len() {
            let (answers, reader) = read_in_pieces(input, size).unwrap();
            let seen: Vec<(bool, bool)> = answers.iter().map(|a| (a.good, a.closes)).collect();
            assert_eq!(seen, expected, "pieces of {size}");
            assert_eq!(reader.last_error, "HTTP/1.1 503 Busy");
        }
    }

    /// A body without a length ends with the connection, and only such a body does.
    #[test]
    fn body_to_end_of_stream() {
        let (answers, mut reader) = read_in_pieces(b"HTTP/1.1 200 OK\r\n\r\nsome", 1).unwrap();
        assert!(answers.is_empty());
        assert_eq!(reader.end_of_stream(), Some(Answer { good: true, misses: 0, closes: true }));
        let (_, mut reader) = read_in_pieces(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome", 1).unwrap();
        assert_eq!(reader.end_of_stream(), None);
    }

    /// Bytes that are no response are refused, however they come.
    #[test]
    fn garbage() {
        let long = vec![b'a'; 20_000];
        for input in [
            &b"\x16\x03\x01\x02\x00\n"[..],
            b"HTTP/2 200\r\n",
            b"HTTP/1.1 20 OK\r\n",
            b"HTTP/1.1 999 OK\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
            &long,
        ] {
            for size in [1, 7, 20_000] {
                assert!(read_in_pieces(input, size).is_err(), "{:?}", String::from_utf8_lossy(input));
            }
        }
    }

    /// A request has its path, host and headers; the same index gives the same path.
    #[test]
    fn request_bytes() {
        let headers = ["Accept-Encoding: gzip".to_string()];
        let write = |paths, n, index| {
            let mut out = Vec::new();
            Requests::new(paths, Zipf::new(n, 1.0), 1, "h:80", &headers).write_request(index, &mut out);
            String::from_utf8(out).unwrap()
        };
        let list = || Paths::List(vec!["/a".to_string()]);
        assert_eq!(write(list(), 1, 0), "GET /a HTTP/1.1\r\nHost: h:80\r\nAccept-Encoding: gzip\r\n\r\n");
        let pattern = || Paths::Pattern { before: "/p/".to_string(), after: ".html".to_string() };
        assert!((0..50).all(|i| write(pattern(), 9, i) == write(pattern(), 9, i)));
        let third = (0..2000).filter(|i| write(pattern(), 9, *i).starts_with("GET /p/3.html ")).count();
        assert!((110..250).contains(&third), "a share of 1/4 over the sum of 1/1 to 1/9: {third}");
    }
}
