//! What publishers and consumers know, and what follows from it when all is over.
//!
//! Owns the record of letters: sent, confirmed, arrived. Peers write into it; `judge` reads it at the end. It must
//! never guess: of a letter that was sent and not confirmed when a node died nobody knows whether it is there, so it
//! counts as neither lost nor unexpected. Rule: docs/guides/durability.md, "After a crash"; docs/guides/idempotency.md.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a letter's body: the same for all, so that they are found at the end of any message.
pub const LETTER_BYTES: usize = 24;

/// One message: who sent it, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Letter {
    pub publisher: u8,
    pub number: u32,
}

impl Letter {
    /// Its text, which is its body and its message id.
    pub fn text(self) -> String {
        format!("letter {:02} number {:07}", self.publisher, self.number)
    }

    /// The letter at the end of a message's bytes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes.get(bytes.len().checked_sub(LETTER_BYTES)?..)?).ok()?;
        let mut words = text.split(' ').skip(1).step_by(2);
        Some(Self { publisher: words.next()?.parse().ok()?, number: words.next()?.parse().ok()? })
    }
}

/// One queue as the outside sees it.
#[derive(Debug, Default)]
struct Column {
    guarded: bool,
    sent: BTreeSet<Letter>,
    confirmed: BTreeSet<Letter>,
    /// In order, each with its redelivered flag.
    arrived: Vec<(Letter, bool)>,
}

/// Everything that happened.
#[derive(Debug, Default)]
pub struct Ledger {
    columns: BTreeMap<&'static str, Column>,
    streams: BTreeMap<&'static str, Stream>,
    mistakes: Vec<String>,
}

/// What was ever seen of a stream, by offset.
#[derive(Debug, Default)]
struct Stream {
    /// It keeps its newest messages only.
    trimmed: bool,
    letters: BTreeMap<u64, Letter>,
}

/// How a simulation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub confirmed: usize,
    pub arrived: usize,
    /// Delivered again, and said so.
    pub redelivered: usize,
    /// Offsets of streams that were read.
    pub read: usize,
    pub lost: usize,
    pub doubles: usize,
}

impl Ledger {
    /// A queue, with a barrier on the way to it or without.
    pub fn open(&mut self, queue: &'static str, guarded: bool) {
        self.columns.insert(queue, Column { guarded, ..Column::default() });
    }

    /// A stream, with retention or without.
    pub fn open_stream(&mut self, stream: &'static str, trimmed: bool) {
        self.streams.insert(stream, Stream { trimmed, ..Stream::default() });
    }

    pub fn is_trimmed(&self, stream: &str) -> bool {
        self.streams.get(stream).is_some_and(|stream| stream.trimmed)
    }

    /// Somebody read a letter at an offset: whoever looks there later finds the same.
    pub fn seen(&mut self, stream: &'static str, offset: u64, letter: Letter) {
        let Some(known) = self.streams.get_mut(stream) else { return };
        let first = *known.letters.entry(offset).or_insert(letter);
        if first != letter {
            self.mistakes.push(format!("{stream}: at {offset} was {first:?}, now {letter:?}"));
        }
    }

    /// Everything that was seen of a stream has arrived there, in the order of its offsets: how much, and the last.
    pub fn all_arrived(&mut self, stream: &'static str) -> (usize, Option<u64>) {
        let letters = self.streams.get(stream).map(|stream| stream.letters.clone()).unwrap_or_default();
        let seen = (letters.len(), letters.keys().next_back().copied());
        letters.into_values().for_each(|letter| self.arrived(stream, letter, false));
        seen
    }

    /// Something is wrong that a peer saw by itself.
    pub fn mistake(&mut self, what: String) {
        self.mistakes.push(what);
    }

    pub fn sent(&mut self, queues: &[&'static str], letter: Letter) {
        self.each(queues, |column| column.sent.extend([letter]));
    }

    pub fn confirmed(&mut self, queues: &[&'static str], letter: Letter) {
        self.each(queues, |column| column.confirmed.extend([letter]));
    }

    pub fn arrived(&mut self, queue: &'static str, letter: Letter, redelivered: bool) {
        self.each(&[queue], |column| column.arrived.push((letter, redelivered)));
    }

    fn each(&mut self, queues: &[&'static str], mut change: impl FnMut(&mut Column)) {
        for queue in queues {
            self.columns.get_mut(queue).into_iter().for_each(&mut change);
        }
    }

    /// The counts, and every mistake in words.
    pub fn judge(&self) -> (Counts, Vec<String>) {
        let (mut counts, mut mistakes) = (Counts::default(), self.mistakes.clone());
        for (queue, column) in &self.columns {
            let got: BTreeSet<Letter> = column.arrived.iter().map(|(letter, _)| *letter).collect();
            counts.confirmed += column.confirmed.len();
            counts.arrived += got.len();
            for lost in column.confirmed.difference(&got) {
                counts.lost += 1;
                mistakes.push(format!("{queue}: {lost:?} was confirmed and is lost"));
            }
            for stranger in got.difference(&column.sent) {
                mistakes.push(format!("{queue}: {stranger:?} was never sent"));
            }
            column.judge_order(queue, &mut counts, &mut mistakes);
        }
        counts.read = self.streams.values().map(|stream| stream.letters.len()).sum();
        (counts, mistakes)
    }
}

impl Column {
    /// Behind a barrier a letter comes once, or again and says so; what comes for the first time comes in order.
    fn judge_order(&self, queue: &str, counts: &mut Counts, mistakes: &mut Vec<String>) {
        let (mut seen, mut last) = (BTreeSet::new(), BTreeMap::new());
        for (letter, redelivered) in &self.arrived {
            if !seen.insert(*letter) {
                counts.redelivered += usize::from(*redelivered);
                if self.guarded && !redelivered {
                    counts.doubles += 1;
                    mistakes.push(format!("{queue}: {letter:?} came twice"));
                }
                continue;
            }
            let before = last.insert(letter.publisher, letter.number);
            if before.is_some_and(|before| before > letter.number) {
                mistakes.push(format!("{queue}: {letter:?} came first after {before:?}"));
            }
        }
    }
}
