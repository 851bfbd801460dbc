//! What the engine asks of a protocol: bytes of request number n, and answers found in bytes as they come.
//! No sockets and no clocks here.

pub mod http;
mod line;
pub mod memcached;

/// What kind of answer a request in flight waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// memcached: values, then `END`
    Values { keys: u32 },
    /// memcached: `STORED`
    Stored,
    /// an HTTP response
    Http,
}

/// A complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// False for an error answer (memcached errors, HTTP status other than 2xx and 3xx).
    pub good: bool,
    /// Keys asked for and not held (memcached).
    pub misses: u32,
    /// The server closes the connection after this answer.
    pub closes: bool,
}

/// How far some input took the parser: bytes used, and the answer they completed. All input is used, or an answer came.
pub type Progress = (usize, Option<Answer>);

/// The bytes are no answer to the request; the connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage(pub &'static str);

pub trait Parser {
    /// Takes input for the oldest request in flight. Must be called with input that is not empty.
    fn advance(&mut self, expect: Expect, input: &[u8]) -> Result<Progress, Garbage>;

    /// The server closed the connection: an answer that ends this way is complete.
    fn end_of_stream(&mut self) -> Option<Answer> {
        None
    }

    /// Ready for a new connection.
    fn reset(&mut self);

    /// The first line of the last error answer.
    fn last_error(&self) -> &str;
}

pub trait Workload {
    /// Appends request number `index`: a pure function of the seed and the index.
    fn write_request(&self, index: u64, out: &mut Vec<u8>) -> Expect;

    fn parser(&self) -> Box<dyn Parser>;
}

/// Appends a number in decimal, with leading zeros to `width`.
fn push_decimal(out: &mut Vec<u8>, mut number: u64, width: usize) {
    let mut digits = [b'0'; 20];
    let mut start = digits.len();
    while number > 0 || start == digits.len() {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    let have = digits.len() - start;
    for _ in have..width {
        out.push(b'0');
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decimals are padded to their width and never cut.
    #[test]
    fn decimals() {
        for (number, width, text) in
            [(0, 1, "0"), (7, 3, "007"), (12345, 3, "12345"), (u64::MAX, 0, "18446744073709551615")]
        {
            let mut out = Vec::new();
            push_decimal(&mut out, number, width);
            assert_eq!(out, text.as_bytes());
        }
    }
}
