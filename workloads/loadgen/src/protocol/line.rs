//! Lines out of bytes that come in any pieces.

use super::Garbage;

const LONGEST_BYTES: usize = 16 * 1024;

/// Puts together a line that came in several pieces; a line that came whole is not copied.
#[derive(Default)]
pub struct LineBuffer {
    partial: Vec<u8>,
}

/// The end of a line within some input.
pub struct Found {
    pub used: usize,
    /// The line began in an earlier piece and is in the buffer.
    pub buffered: bool,
}

impl LineBuffer {
    /// Looks for the end of the line; without one, keeps the whole input.
    pub fn find(&mut self, input: &[u8]) -> Result<Option<Found>, Garbage> {
        let end = input.iter().position(|b| *b == b'\n');
        let piece = &input[..end.map_or(input.len(), |i| i + 1)];
        if self.partial.len() + piece.len() > LONGEST_BYTES {
            return Err(Garbage("a line of more than 16 KiB"));
        }
        if end.is_none() {
            self.partial.extend_from_slice(piece);
            return Ok(None);
        }
        let buffered = !self.partial.is_empty();
        if buffered {
            self.partial.extend_from_slice(piece);
        }
        Ok(Some(Found { used: piece.len(), buffered }))
    }

    /// The line found, without its end; `clear` must follow before the next one.
    pub fn line<'a>(&'a self, found: &Found, input: &'a [u8]) -> &'a [u8] {
        let whole = if found.buffered { &self.partial[..] } else { &input[..found.used] };
        let line = whole.strip_suffix(b"\n").unwrap_or(whole);
        line.strip_suffix(b"\r").unwrap_or(line)
    }

    pub fn clear(&mut self) {
        self.partial.clear();
    }
}

/// A decimal number and nothing else.
pub fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0')))
}
