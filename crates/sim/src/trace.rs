//! The trace: everything that happens in a world, hashed, with the last events kept readable.
//!
//! The hash covers times, kinds and numbers only; never an address, a pointer or the order of a hash map, so the same seed
//! gives the same hash in every process and on every machine.

use std::collections::VecDeque;

/// Events kept for the readable tail.
const TAIL_MAX: usize = 16384;

/// One event: a template with `{}` for each of its numbers.
#[derive(Clone, Debug)]
enum Entry {
    Event { at_ns: u64, template: &'static str, args: [u64; 4] },
    Note { at_ns: u64, text: String },
}

/// See the module.
pub struct Trace {
    hash: u64,
    events: u64,
    tail: VecDeque<Entry>,
}

impl Default for Trace {
    fn default() -> Self {
        Trace { hash: 0xCBF2_9CE4_8422_2325, events: 0, tail: VecDeque::new() }
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    // The multiply-rotate step of the FNV and xxHash families: stable, fast, good enough to tell two traces apart.
    (hash ^ word).wrapping_mul(0x9E37_79B1_85EB_CA87).rotate_left(31)
}

fn mix_bytes(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        hash = mix(hash, u64::from_le_bytes(word.try_into().expect("chunks of eight bytes")));
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(mix(hash, u64::from_le_bytes(last)), bytes.len() as u64)
}

impl Trace {
    /// Records an event: `template` has one `{}` for each number of `args` that matters.
    pub fn event(&mut self, at_ns: u64, template: &'static str, args: [u64; 4]) {
        self.hash = mix(mix_bytes(self.hash, template.as_bytes()), at_ns);
        for arg in args {
            self.hash = mix(self.hash, arg);
        }
        self.push(Entry::Event { at_ns, template, args });
    }

    /// Records a line of text.
    pub fn note(&mut self, at_ns: u64, text: String) {
        self.hash = mix(mix_bytes(self.hash, text.as_bytes()), at_ns);
        self.push(Entry::Note { at_ns, text });
    }

    fn push(&mut self, entry: Entry) {
        self.events += 1;
        if self.tail.len() == TAIL_MAX {
            self.tail.pop_front();
        }
        self.tail.push_back(entry);
    }

    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The last `lines` events, oldest first.
    pub fn tail(&self, lines: usize) -> Vec<String> {
        self.tail.iter().skip(self.tail.len().saturating_sub(lines)).map(render).collect()
    }
}

fn render(entry: &Entry) -> String {
    let (at_ns, text) = match entry {
        Entry::Note { at_ns, text } => (*at_ns, text.clone()),
        Entry::Event { at_ns, template, args } => {
            let mut text = String::with_capacity(64);
            let mut args = args.iter();
            let mut pieces = template.split("{}");
            text.push_str(pieces.next().unwrap_or_default());
            for piece in pieces {
                if let Some(arg) = args.next() {
                    text.push_str(&arg.to_string());
                }
                text.push_str(piece);
            }
            (*at_ns, text)
        }
    };
    format!("{:>14.6} ms  {text}", at_ns as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_time_kind_and_numbers() {
        let hash = |at, template, arg| {
            let mut trace = Trace::default();
            trace.event(at, template, [arg, 0, 0, 0]);
            trace.hash()
        };
        assert_eq!(hash(1, "a {}", 1), hash(1, "a {}", 1));
        assert!([hash(2, "a {}", 1), hash(1, "b {}", 1), hash(1, "a {}", 2)].iter().all(|h| *h != hash(1, "a {}", 1)));
    }

    #[test]
    fn the_tail_is_readable_and_bounded() {
        let mut trace = Trace::default();
        for i in 0..20_000 {
            trace.event(i * 1_000_000, "disk {} writes {} bytes", [3, i, 0, 0]);
        }
        let tail = trace.tail(2);
        assert_eq!(tail[1].trim(), "19999.000000 ms  disk 3 writes 19999 bytes");
        assert_eq!((tail.len(), trace.tail(99_999).len(), trace.events()), (2, TAIL_MAX, 20_000));
    }
}
