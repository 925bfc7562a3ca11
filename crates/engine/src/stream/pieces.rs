//! What a stream removes at a time: stretches of it, with their bytes and the time they begin.
//!
//! Owns the coarse table behind retention and behind the search for a time. Appended messages are noted; which offset
//! the stream should begin at comes out. After a restart the times of old stretches are not known and are asked for one
//! by one, by whoever can read them. It must never grow with the stream: stretches are joined. Rule: what is kept is
//! never more than the limit, and at least fifteen sixteenths of it.

use std::collections::VecDeque;

use super::Retention;

/// A limit is cut into this many pieces, so that removing one removes little.
const PARTS: u64 = 16;
/// Largest piece.
const COUNT_MAX: u64 = 1_024;
const BYTES_MAX: u64 = 1 << 20;
/// Pieces of one stream; when there are more, each two become one.
const PIECES_MAX: usize = 4_096;
/// Pieces that a stream found on disk is cut into.
const FOUND_PIECES: u64 = 256;

/// A stretch up to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    first: u64,
    bytes: u64,
    /// When its first message arrived (milliseconds since 1970); None: it has to be read.
    began_ms: Option<u64>,
}

/// What retention has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// Everything is within its limits.
    None,
    /// The stream begins at this offset from now on.
    Until(u64),
    /// When did the message at this offset arrive? `tell` it and ask again.
    Ask(u64),
}

/// All pieces of a stream, without a gap.
#[derive(Debug)]
pub struct Pieces {
    list: VecDeque<Piece>,
    bytes: u64,
    /// Messages of the piece at the end.
    last_count: u64,
    /// When the last message arrived.
    last_ms: u64,
    /// A question for a time is out.
    asked: bool,
    /// How many messages, or bytes, make a piece: grows as pieces are joined.
    count_step: u64,
    bytes_step: u64,
}

impl Pieces {
    /// A stream of which only the ends are known.
    pub fn found(first: u64, next: u64, bytes: u64) -> Self {
        let count = next - first;
        let parts = count.min(FOUND_PIECES);
        let (each, each_bytes) = (count.checked_div(parts).unwrap_or(0), bytes.checked_div(parts).unwrap_or(0));
        let piece = |part| {
            let rest = if part + 1 == parts { bytes - each_bytes * parts } else { 0 };
            Piece { first: first + part * each, bytes: each_bytes + rest, began_ms: None }
        };
        Self {
            list: (0..parts).map(piece).collect(),
            bytes,
            last_count: COUNT_MAX,
            last_ms: 0,
            asked: false,
            count_step: COUNT_MAX,
            bytes_step: BYTES_MAX,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A message was appended. True when it begins a piece.
    #[inline]
    pub fn note(&mut self, offset: u64, bytes: u64, now_ms: u64, retention: &Retention) -> bool {
        self.bytes += bytes;
        self.last_ms = now_ms;
        let part = |limit: Option<u64>, most: u64| limit.map_or(most, |limit| (limit / PARTS).clamp(1, most));
        if let Some(last) = self.list.back_mut() {
            let young = retention.age_ms_max.is_none_or(|age_ms| {
                last.began_ms.is_some_and(|began_ms| now_ms.saturating_sub(began_ms) <= age_ms / PARTS)
            });
            if young
                && self.last_count < part(retention.count_max, self.count_step)
                && last.bytes + bytes <= part(retention.bytes_max, self.bytes_step)
            {
                self.last_count += 1;
                last.bytes += bytes;
                return false;
            }
        }
        self.last_count = 1;
        self.list.push_back(Piece { first: offset, bytes, began_ms: Some(now_ms) });
        if self.list.len() > PIECES_MAX {
            self.join();
        }
        true
    }

    /// The last message was not taken after all.
    pub fn retract(&mut self, offset: u64, bytes: u64) {
        self.bytes -= bytes;
        self.last_count = self.last_count.saturating_sub(1);
        match self.list.back_mut() {
            Some(last) if last.first == offset => drop(self.list.pop_back()),
            Some(last) => last.bytes -= bytes,
            None => {}
        }
    }

    /// Each two pieces become one.
    fn join(&mut self) {
        let mut old = std::mem::take(&mut self.list);
        while let Some(mut piece) = old.pop_front() {
            piece.bytes += old.pop_front().map_or(0, |next| next.bytes);
            self.list.push_back(piece);
        }
        self.count_step *= 2;
        self.bytes_step *= 2;
    }

    /// What has to go, for a stream that ends at `next`.
    pub fn excess(&mut self, retention: &Retention, next: u64, now_ms: u64) -> Excess {
        let Some(front) = self.list.front() else { return Excess::None };
        let (mut first, mut bytes) = (front.first, self.bytes);
        for (piece, after) in self.list.iter().zip(self.list.iter().skip(1)) {
            let many = retention.count_max.is_some_and(|most| next - first > most)
                || retention.bytes_max.is_some_and(|most| bytes > most);
            let old = match retention.age_ms_max.filter(|_| !many) {
                None => false,
                Some(age_ms) => match after.began_ms {
                    None if first > front.first => return Excess::Until(first),
                    None if self.asked => return Excess::None,
                    None => {
                        self.asked = true;
                        return Excess::Ask(after.first);
                    }
                    Some(began_ms) => began_ms.saturating_add(age_ms) < now_ms,
                },
            };
            if !many && !old {
                break;
            }
            (first, bytes) = (after.first, bytes - piece.bytes);
        }
        let all_old = |age_ms: u64| self.last_ms > 0 && self.last_ms.saturating_add(age_ms) < now_ms;
        if retention.age_ms_max.is_some_and(all_old) {
            first = first.max(next.saturating_sub(1));
        }
        if first > front.first { Excess::Until(first) } else { Excess::None }
    }

    /// When the message at `offset` arrived, as `excess` asked.
    pub fn tell(&mut self, offset: u64, arrived_ms: u64) {
        self.asked = false;
        if let Some(piece) = self.list.iter_mut().find(|piece| piece.first == offset) {
            piece.began_ms = Some(arrived_ms);
        }
    }

    /// When something may become too old next.
    pub fn deadline_ms(&self, retention: &Retention) -> Option<u64> {
        let age_ms = retention.age_ms_max.filter(|_| !self.asked)?;
        let next = match self.list.get(1) {
            Some(after) => after.began_ms.unwrap_or(0),
            None if self.last_count > 1 => self.last_ms,
            None => return None,
        };
        Some(next.saturating_add(age_ms).saturating_add(1))
    }

    /// The stream begins at `first` from now on.
    pub fn cut(&mut self, first: u64) {
        while self.list.get(1).is_some_and(|after| after.first <= first) {
            let gone = self.list.pop_front().map_or(0, |piece| piece.bytes);
            self.bytes -= gone;
        }
        let (alone, rest) = (self.list.len() == 1, self.last_count);
        let Some(front) = self.list.front_mut().filter(|front| front.first < first) else { return };
        if alone && rest > 1 {
            // Only the last message is left: its share is what is known of its size.
            let share = front.bytes / rest;
            self.bytes -= front.bytes - share;
            (front.bytes, front.began_ms, self.last_count) = (share, Some(self.last_ms), 1);
        }
        front.first = first;
    }

    /// A stretch that holds the first message that arrived at `time_ms` or later: not before, and not after.
    pub fn around(&self, time_ms: u64) -> (Option<u64>, Option<u64>) {
        let before = self.list.iter().rev().find(|piece| piece.began_ms.is_some_and(|began_ms| began_ms < time_ms));
        let after = self.list.iter().find(|piece| piece.began_ms.is_some_and(|began_ms| began_ms >= time_ms));
        (before.map(|piece| piece.first), after.map(|piece| piece.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Retention = Retention { age_ms_max: None, bytes_max: None, count_max: None };

    /// Appends `count` messages of `bytes` each, one per millisecond, and cuts as retention says. The first offset.
    fn run(retention: &Retention, count: u64, bytes: u64) -> (Pieces, u64) {
        let (mut pieces, mut first) = (Pieces::found(0, 0, 0), 0);
        for offset in 0..count {
            if pieces.note(offset, bytes, 1_000 + offset, retention)
                && let Excess::Until(until) = pieces.excess(retention, offset + 1, 1_000 + offset)
            {
                pieces.cut(until);
                first = until;
            }
        }
        (pieces, first)
    }

    #[test]
    fn each_limit_keeps_no_more_and_not_much_less() {
        let kept = |retention: Retention, bytes| 10_000 - run(&retention, 10_000, bytes).1;
        let by_count = kept(Retention { count_max: Some(1_000), ..ALL }, 10);
        assert!((937..=1_062).contains(&by_count), "{by_count}");
        let by_bytes = kept(Retention { bytes_max: Some(10_000), ..ALL }, 10);
        assert!((930..=1_070).contains(&by_bytes), "{by_bytes}");
        let by_age = kept(Retention { age_ms_max: Some(1_000), ..ALL }, 10);
        assert!((930..=1_130).contains(&by_age), "{by_age}");
        assert_eq!(kept(ALL, 10), 10_000);
        assert_eq!(kept(Retention { count_max: Some(1), ..ALL }, 10), 1);
        assert_eq!(kept(Retention { bytes_max: Some(0), ..ALL }, 10), 1, "the last one stays");
    }

    #[test]
    fn bytes_are_those_of_what_is_left() {
        let (pieces, first) = run(&Retention { count_max: Some(160), ..ALL }, 1_000, 7);
        assert_eq!(pieces.bytes(), (1_000 - first) * 7);
    }

    #[test]
    fn the_last_message_outlives_its_age() {
        let retention = Retention { age_ms_max: Some(1_600), ..ALL };
        let (mut pieces, _) = run(&retention, 50, 8);
        assert_eq!(pieces.excess(&retention, 50, 2_000), Excess::None);
        assert_eq!(pieces.excess(&retention, 50, 9_999), Excess::Until(49));
        pieces.cut(49);
        assert_eq!((pieces.bytes(), pieces.deadline_ms(&retention)), (8, None));
        assert_eq!(pieces.excess(&retention, 50, 99_999), Excess::None);
    }

    #[test]
    fn what_was_found_on_disk_is_asked_for_its_age() {
        let retention = Retention { age_ms_max: Some(1_000), ..ALL };
        let mut pieces = Pieces::found(100, 612, 51_200);
        assert_eq!(pieces.excess(&retention, 612, 5_000), Excess::Ask(102));
        pieces.tell(102, 3_000);
        assert_eq!(pieces.excess(&retention, 612, 5_000), Excess::Until(102));
        pieces.cut(102);
        assert_eq!(pieces.bytes(), 51_000);
        pieces.tell(104, 4_500);
        assert_eq!(pieces.excess(&retention, 612, 5_000), Excess::None);
        assert_eq!(pieces.deadline_ms(&retention), Some(5_501));
        assert_eq!(Pieces::found(7, 7, 0).excess(&retention, 7, 5_000), Excess::None);
        assert_eq!(Pieces::found(7, 10, 5).bytes(), 5);
    }

    #[test]
    fn a_stream_without_end_has_few_pieces_and_finds_its_times() {
        let mut pieces = Pieces::found(0, 0, 0);
        for offset in 0..20_000_000 {
            pieces.note(offset, 1, offset / 1_000, &ALL);
        }
        assert!(pieces.list.len() <= PIECES_MAX);
        let (before, after) = pieces.around(10_000);
        let (before, after) = (before.expect("known"), after.expect("known"));
        assert!(before < 10_000_000 && 10_000_000 <= after && after - before < 50_000, "{before}..{after}");
        assert_eq!(pieces.around(0), (None, Some(0)));
        let mut whole = 0;
        for (piece, next) in pieces.list.iter().zip(pieces.list.iter().skip(1)) {
            assert_eq!(piece.bytes, next.first - piece.first);
            whole += piece.bytes;
        }
        assert_eq!(whole + pieces.list.back().map_or(0, |last| last.bytes), pieces.bytes());
    }
}
