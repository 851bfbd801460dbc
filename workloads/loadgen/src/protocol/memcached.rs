//! The memcached text protocol: GET, multi-GET and SET.

use super::line::{decimal, LineBuffer};
use super::{push_decimal, Answer, Expect, Garbage, Parser, Progress, Workload};
use crate::rng::Rng;
use crate::zipf::Zipf;
use std::sync::Arc;

/// Relative weights of the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    pub get: u64,
    pub multiget: u64,
    pub set: u64,
}

impl Mix {
    /// Reads `get=90,set=10`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut mix = Self { get: 0, multiget: 0, set: 0 };
        for part in text.split(',') {
            let wrong = || {
                format!("`{part}` in the mix `{text}`: write get, multiget or set, = and a whole weight, such as get=90,set=10")
            };
            let (name, weight) = part.split_once('=').ok_or_else(wrong)?;
            let weight: u32 = weight.trim().parse().map_err(|_| wrong())?;
            *match name.trim() {
                "get" => &mut mix.get,
                "multiget" => &mut mix.multiget,
                "set" => &mut mix.set,
                _ => return Err(wrong()),
            } = u64::from(weight);
        }
        if mix.get + mix.multiget + mix.set == 0 {
            return Err(format!("the mix `{text}` has no weight above 0"));
        }
        Ok(mix)
    }
}

/// Names of the keys, and the value that SET stores.
pub struct KeySpace {
    pub count: u64,
    pub prefix: String,
    pub key_size: usize,
    pub value_size: usize,
}

impl KeySpace {
    /// Bytes left for the number of a key, or what to do if it does not fit.
    pub fn check(&self) -> Result<(), String> {
        let digits = self.count.saturating_sub(1).to_string().len();
        if self.key_size > 250 {
            return Err(format!("--key-size {}: memcached allows at most 250 bytes", self.key_size));
        }
        if self.prefix.is_empty() || self.prefix.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(format!("--key-prefix `{}`: it must not be empty nor hold blanks", self.prefix));
        }
        if self.prefix.len() + digits > self.key_size {
            return Err(format!(
                "--key-size {}: the prefix `{}` and {digits} digits for {} keys need at least {} bytes",
                self.key_size,
                self.prefix,
                self.count,
                self.prefix.len() + digits
            ));
        }
        Ok(())
    }

    fn push_key(&self, out: &mut Vec<u8>, key: u64) {
        out.extend_from_slice(self.prefix.as_bytes());
        push_decimal(out, key, self.key_size - self.prefix.len());
    }

    fn push_set(&self, out: &mut Vec<u8>, key: u64) {
        out.extend_from_slice(b"set ");
        self.push_key(out, key);
        out.extend_from_slice(b" 0 0 ");
        push_decimal(out, self.value_size as u64, 1);
        out.extend_from_slice(b"\r\n");
        out.resize(out.len() + self.value_size, b'a' + (key % 26) as u8);
        out.extend_from_slice(b"\r\n");
    }
}

/// Operations by weight on keys by Zipf.
pub struct Requests {
    pub keys: Arc<KeySpace>,
    pub mix: Mix,
    pub multiget_keys: u32,
    pub zipf: Zipf,
    pub seed: u64,
}

/// Streams of randomness below this number belong to the arrivals.
const REQUEST_STREAMS: u64 = 1 << 32;

impl Workload for Requests {
    fn write_request(&self, index: u64, out: &mut Vec<u8>) -> Expect {
        let mut rng = Rng::new(self.seed, REQUEST_STREAMS + index);
        let choice = rng.below(self.mix.get + self.mix.multiget + self.mix.set);
        if choice >= self.mix.get + self.mix.multiget {
            self.keys.push_set(out, self.zipf.sample(&mut rng));
            return Expect::Stored;
        }
        let keys = if choice < self.mix.get { 1 } else { self.multiget_keys };
        out.extend_from_slice(b"get");
        for _ in 0..keys {
            out.push(b' ');
            self.keys.push_key(out, self.zipf.sample(&mut rng));
        }
        out.extend_from_slice(b"\r\n");
        Expect::Values { keys }
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(Reader::default())
    }
}

/// Stores every key once, in order.
pub struct Preload {
    pub keys: Arc<KeySpace>,
}

impl Workload for Preload {
    fn write_request(&self, index: u64, out: &mut Vec<u8>) -> Expect {
        self.keys.push_set(out, index % self.keys.count);
        Expect::Stored
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(Reader::default())
    }
}

/// Reads answers.
#[derive(Default)]
struct Reader {
    line: LineBuffer,
    /// Bytes of a value, and the line end after it, still to come.
    value_left: u64,
    values_seen: u32,
    last_error: String,
}

enum Line {
    Value { bytes: u64 },
    Complete(Answer),
}

fn is_error(line: &[u8]) -> bool {
    line == b"ERROR" || line.starts_with(b"SERVER_ERROR") || line.starts_with(b"CLIENT_ERROR")
}

fn read_line(line: &[u8], expect: Expect, values_seen: u32) -> Result<Line, Garbage> {
    if is_error(line) {
        return Ok(Line::Complete(Answer { good: false, misses: 0, closes: false }));
    }
    let good = |misses| Ok(Line::Complete(Answer { good: true, misses, closes: false }));
    match expect {
        Expect::Stored if line == b"STORED" => good(0),
        Expect::Values { keys } if line == b"END" => good(keys.saturating_sub(values_seen)),
        Expect::Values { .. } if line.starts_with(b"VALUE ") => {
            let bytes = line.split(|b| *b == b' ').nth(3).and_then(decimal);
            bytes.map(|bytes| Line::Value { bytes }).ok_or(Garbage("a VALUE line without a length"))
        }
        _ => Err(Garbage("a line that answers no GET or SET")),
    }
}

impl Parser for Reader {
    fn advance(&mut self, expect: Expect, input: &[u8]) -> Result<Progress, Garbage> {
        let mut used = 0;
        while used < input.len() {
            if self.value_left > 0 {
                let skip = self.value_left.min((input.len() - used) as u64);
                self.value_left -= skip;
                used += skip as usize;
                continue;
            }
            let rest = &input[used..];
            let Some(found) = self.line.find(rest)? else {
                return Ok((input.len(), None));
            };
            let line = self.line.line(&found, rest);
            let meaning = read_line(line, expect, self.values_seen)?;
            if let Line::Complete(Answer { good: false, .. }) = meaning {
                self.last_error = String::from_utf8_lossy(line).into_owned();
            }
            self.line.clear();
            used += found.used;
            match meaning {
                Line::Value { bytes } => {
                    self.values_seen += 1;
                    self.value_left = bytes + 2;
                }
                Line::Complete(answer) => {
                    self.values_seen = 0;
                    return Ok((used, Some(answer)));
                }
            }
        }
        Ok((used, None))
    }

    fn reset(&mut self) {
        self.line.clear();
        self.value_left = 0;
        self.values_seen = 0;
    }

    fn last_error(&self) -> &str {
        &self.last_error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: Expect = Expect::Values { keys: 1 };

    /// Feeds pieces of `size` bytes and collects the answers.
    fn read_in_pieces(expects: &[Expect], input: &[u8], size: usize) -> Result<Vec<Answer>, Garbage> {
        let mut reader = Reader::default();
        let mut answers = Vec::new();
        for mut piece in input.chunks(size) {
            while !piece.is_empty() {
                let (used, answer) = reader.advance(expects[answers.len()], piece)?;
                answers.extend(answer);
                piece = &piece[used..];
            }
        }
        Ok(answers)
    }

    /// Hits, misses, values that look like answers, sets and errors are read alike in pieces of every size.
    #[test]
    fn answers_in_pieces() {
        let input = b"VALUE key-1 0 5\r\nEND\r\n\r\nEND\r\nEND\r\nSTORED\r\nSERVER_ERROR out of memory storing object\r\n\
            VALUE a 0 0\r\n\r\nVALUE b 0 3 99\r\nabc\r\nEND\r\nERROR\r\nCLIENT_ERROR bad\r\n";
        let many = Expect::Values { keys: 3 };
        let expects = [GET, GET, Expect::Stored, Expect::Stored, many, GET, Expect::Stored, GET];
        for size in 1..input.len() {
            let answers = read_in_pieces(&expects, input, size).unwrap();
            let seen: Vec<(bool, u32)> = answers.iter().map(|a| (a.good, a.misses)).collect();
            let expected = [(true, 0), (true, 1), (true, 0), (false, 0), (true, 1), (false, 0), (false, 0)];
            assert_eq!(seen, expected, "pieces of {size}");
        }
    }

    /// Bytes that are no answer are refused, however they come.
    #[test]
    fn garbage() {
        let long = vec![b'x'; 20_000];
        for (expect, input) in [
            (GET, &b"STORED\r\n"[..]),
            (Expect::Stored, b"END\r\n"),
            (GET, b"VALUE key 0\r\n"),
            (GET, b"VALUE key 0 -5\r\n"),
            (GET, b"VALUE key 0 99999999999999999999\r\n"),
            (GET, b"\x00\xff\xfe\r\n"),
            (GET, b"\r\n"),
            (GET, &long),
        ] {
            for size in [1, 7, 20_000] {
                assert!(read_in_pieces(&[expect; 4], input, size).is_err(), "{input:?}");
            }
        }
    }

    fn requests(mix: &str) -> Requests {
        let keys = KeySpace { count: 1000, prefix: "key-".to_string(), key_size: 16, value_size: 10 };
        keys.check().unwrap();
        let mix = Mix::parse(mix).unwrap();
        Requests { keys: Arc::new(keys), mix, multiget_keys: 3, zipf: Zipf::new(1000, 0.99), seed: 42 }
    }

    /// Request n is the same each time it is written, in any order; and the mix has the asked shares.
    #[test]
    fn requests_depend_on_seed_and_index_only() {
        let workload = requests("get=80,set=15,multiget=5");
        let write = |index| {
            let mut out = Vec::new();
            let expect = workload.write_request(index, &mut out);
            (expect, out)
        };
        let forward: Vec<_> = (0..2000).map(write).collect();
        let backward: Vec<_> = (0..2000).rev().map(write).collect();
        assert!(forward.iter().eq(backward.iter().rev()));
        let sets = forward.iter().filter(|(e, _)| *e == Expect::Stored).count();
        let many = forward.iter().filter(|(e, _)| *e == Expect::Values { keys: 3 }).count();
        assert!((220..380).contains(&sets) && (60..140).contains(&many), "{sets} {many}");
    }

    /// The bytes of each operation are those of the protocol.
    #[test]
    fn request_bytes() {
        let line = |mix: &str| {
            let mut out = Vec::new();
            requests(mix).write_request(5, &mut out);
            String::from_utf8(out).unwrap()
        };
        let get = line("get=1");
        assert!(
            get.starts_with("get key-000000000") && get.ends_with("\r\n") && get.len() == 4 + 16 + 2,
            "{get}"
        );
        assert_eq!(line("multiget=1").matches("key-").count(), 3);
        let set = line("set=1");
        assert!(set.contains(" 0 0 10\r\n") && set.len() == 4 + 16 + 9 + 12, "{set}");
    }

    /// Mixes and key spaces that cannot work are refused.
    #[test]
    fn bad_settings() {
        for bad in ["", "get", "get=x", "put=1", "get=0,set=0"] {
            assert!(Mix::parse(bad).is_err(), "{bad}");
        }
        let keys = |prefix: &str, key_size| KeySpace {
            count: 1001,
            prefix: prefix.to_string(),
            key_size,
            value_size: 1,
        };
        assert!(keys("key-", 8).check().is_ok());
        assert!(keys("key-", 7).check().is_err() && keys("k y", 16).check().is_err());
        assert!(keys("key-", 251).check().is_err() && keys("", 16).check().is_err());
    }
}
