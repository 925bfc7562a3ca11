//! A stream: a log of messages that readers follow, each at its own place.
//!
//! Owns what a stream knows of itself: its first and next offset, what of it a reader may see, the newest messages as
//! long as somebody follows them, and the pieces that retention removes. Messages come in by `append`; readers take
//! copies, nothing is ever taken away by them. It must never know a session, nor read a disk by itself (`log.rs` does).
//! Rules: docs/guides/streams.md; the offset of a message is its position in the journal.

mod log;
pub mod offsets;
pub mod pieces;
pub mod reader;
mod serve;
mod shards;
pub mod start;
pub(crate) mod tap;

use std::collections::VecDeque;
use std::rc::Rc;

use crate::message::Message;
use crate::queue::QueueId;
use offsets::Tracker;
use pieces::Pieces;

/// The newest messages that a stream with readers keeps in memory; older ones are read from disk.
const WINDOW_COUNT: usize = 4_096;
const WINDOW_BYTES: u64 = 4 << 20;

/// What a stream keeps. The last message is always kept: its offset says where the stream goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    pub age_ms_max: Option<u64>,
    pub bytes_max: Option<u64>,
    pub count_max: Option<u64>,
}

/// The log of one queue.
#[derive(Debug)]
pub struct Stream {
    first: u64,
    next: u64,
    /// Offsets below this are on the disk itself, if the node has one: no crash can give them to other messages.
    visible: u64,
    /// (batch, next offset) of what the disk has not answered for.
    unsynced: VecDeque<(u64, u64)>,
    /// The messages before `next`, without a gap.
    window: VecDeque<Rc<Message>>,
    window_bytes: u64,
    /// Lanes of readers in this stream, and the streams this one is a part of that have such readers.
    readers: usize,
    wholes: Vec<QueueId>,
    pub(crate) pieces: Pieces,
    pub(crate) trackers: Vec<Tracker>,
}

impl Stream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::found(0, 0, 0)
    }

    /// A stream that was on disk: its first and next offset, and the bytes of the bodies between.
    pub fn found(first: u64, next: u64, bytes: u64) -> Self {
        Self {
            first,
            next,
            visible: next,
            unsynced: VecDeque::new(),
            window: VecDeque::new(),
            window_bytes: 0,
            readers: 0,
            wholes: Vec::new(),
            pieces: Pieces::found(first, next, bytes),
            trackers: Vec::new(),
        }
    }

    /// The first offset that is kept.
    pub fn first(&self) -> u64 {
        self.first
    }
    /// The offset that the next message gets.
    pub fn next(&self) -> u64 {
        self.next
    }
    /// Readers may have everything below this.
    #[inline]
    pub fn visible(&self) -> u64 {
        self.visible
    }
    /// Messages that are kept.
    pub fn len(&self) -> usize {
        (self.next - self.first) as usize
    }
    pub fn is_empty(&self) -> bool {
        self.next == self.first
    }
    /// Bytes of their bodies.
    pub fn bytes(&self) -> u64 {
        self.pieces.bytes()
    }

    /// The first offset that is in memory; `next` if none is.
    #[inline]
    pub fn window_first(&self) -> u64 {
        self.next - self.window.len() as u64
    }

    /// A message that is in memory.
    #[inline]
    pub fn recent(&self, offset: u64) -> Option<&Rc<Message>> {
        self.window.get(usize::try_from(offset.checked_sub(self.window_first())?).ok()?)
    }

    /// Takes the next offset for a message. True when a piece was begun: time to look at the retention.
    #[inline]
    fn append(&mut self, message: &Rc<Message>, retention: &Retention, now_ms: u64, keep: bool) -> bool {
        let offset = self.next;
        self.next += 1;
        let bytes = message.body_len() as u64;
        if keep {
            self.window.push_back(Rc::clone(message));
            self.window_bytes += bytes;
        }
        self.pieces.note(offset, bytes, now_ms, retention)
    }

    /// The message that was appended last could not be stored: as if it had never come.
    fn retract(&mut self, bytes: u64) {
        self.next -= 1;
        self.window.pop_back();
        self.window_bytes -= bytes.min(self.window_bytes);
        self.pieces.retract(self.next, bytes);
    }

    /// Lets the oldest messages in memory go beyond what a window may hold.
    #[inline]
    fn bound_window(&mut self) {
        while self.window.len() > WINDOW_COUNT || self.window_bytes > WINDOW_BYTES && self.window.len() > 1 {
            self.pop_window();
        }
    }

    fn pop_window(&mut self) {
        if let Some(message) = self.window.pop_front() {
            self.window_bytes -= message.body_len() as u64;
        }
    }

    /// Nobody reads: nothing has to be in memory.
    fn drop_window(&mut self) {
        self.window = VecDeque::new();
        self.window_bytes = 0;
    }

    /// Everything so far is visible: this node has no disk.
    fn show_all(&mut self) {
        self.visible = self.next;
    }

    /// Everything so far is in this batch or an earlier one. True if nothing waited for the disk before.
    fn note_batch(&mut self, batch: u64) -> bool {
        let was_empty = self.unsynced.is_empty();
        match self.unsynced.back_mut() {
            Some(last) if last.0 >= batch => last.1 = self.next,
            _ => self.unsynced.push_back((batch, self.next)),
        }
        was_empty
    }

    /// Batches up to this one are on the disk. True if there is more to see.
    fn note_synced(&mut self, synced: u64) -> bool {
        let before = self.visible;
        while self.unsynced.front().is_some_and(|waits| waits.0 <= synced) {
            self.visible = self.unsynced.pop_front().map_or(self.visible, |waits| waits.1);
        }
        self.visible > before
    }

    /// What came before this offset is gone.
    fn cut(&mut self, first: u64) {
        self.first = first.clamp(self.first, self.next);
        self.visible = self.visible.max(self.first);
        self.pieces.cut(self.first);
        while self.window_first() < self.first {
            self.pop_window();
        }
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::message;

    const ALL: Retention = Retention { age_ms_max: None, bytes_max: None, count_max: None };

    #[test]
    fn readers_see_only_what_the_disk_has() {
        let mut stream = Stream::new();
        for batch in [3, 3, 4] {
            stream.append(&message(b"x", 0), &ALL, 1, true);
            stream.note_batch(batch);
        }
        assert_eq!((stream.visible(), stream.next()), (0, 3));
        assert!(!stream.note_synced(2));
        assert!(stream.note_synced(3));
        assert_eq!(stream.visible(), 2);
        assert!(stream.note_synced(9));
        assert_eq!(stream.visible(), 3);
    }

    #[test]
    fn the_window_holds_the_newest_and_follows_a_cut() {
        let mut stream = Stream::new();
        for at in 0..WINDOW_COUNT + 10 {
            stream.append(&message(format!("{at}").as_bytes(), 0), &ALL, 1, true);
            stream.bound_window();
        }
        assert_eq!(stream.window_first(), 10);
        assert!(stream.recent(9).is_none());
        let text = |stream: &Stream, at: u64| stream.recent(at).map(|message| message.body().gather());
        assert_eq!(text(&stream, 10), Some(b"10".to_vec()));
        stream.cut(100);
        assert_eq!((stream.first(), stream.window_first(), text(&stream, 100)), (100, 100, Some(b"100".to_vec())));
        stream.retract(2);
        assert_eq!(stream.next(), WINDOW_COUNT as u64 + 9);
        assert!(stream.recent(stream.next()).is_none());
        stream.cut(u64::MAX);
        assert!(stream.is_empty() && stream.window_first() == stream.next());
    }
}
