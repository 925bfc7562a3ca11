//! Whether a message's head says the same as the one before.
//!
//! Owns `Likeness`: the last head that was taken apart, and which of its bytes tell what all columns hold that messages
//! do not have for themselves. Heads come in; yes or no goes out. Bytes are compared and not fields: where all but
//! time, place and id are the same at the same places, so is everything that was made of them. It must never say yes to
//! a head that would be taken apart otherwise. Rule: docs/decisions/0065-a-row-like-the-one-before.md.

use std::ops::Range;

use weft_journal::{Envelope, Stored};

/// A text that messages which are alike have each for themselves, and the column it goes to, if that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnText {
    pub(crate) column: Option<usize>,
    /// Where in the head.
    pub(crate) at: Range<usize>,
}

/// The last head, as the journal keeps it.
#[derive(Debug, Default)]
pub(crate) struct Likeness {
    head: Vec<u8>,
    /// The pieces of it that must be the same; none if no head can be like it.
    same: Vec<Range<usize>>,
    /// Where nothing but the envelope is looked at, messages' own heads may be of any length.
    any_length: bool,
    own: Vec<OwnText>,
    /// Bytes of the last head, whether it was kept or not.
    last_len: usize,
}

impl Likeness {
    /// Nothing is like what comes next.
    pub(crate) fn forget(&mut self) {
        self.same.clear();
    }

    /// The texts that rows of the same head have for themselves.
    pub(crate) fn own(&self) -> &[OwnText] {
        &self.own
    }

    /// When a message with this head arrived, if it is like the last one.
    #[inline]
    pub(crate) fn arrival(&self, head: &[u8]) -> Option<u64> {
        if self.same.is_empty() || !(self.any_length || self.head.len() == head.len()) {
            return None;
        }
        let is_same = |piece: &Range<usize>| self.head.get(piece.clone()) == head.get(piece.clone());
        // What is no text is taken apart as before, which knows what to make of it.
        let is_text = |own: &OwnText| head.get(own.at.clone()).is_some_and(|text| std::str::from_utf8(text).is_ok());
        let is_alike = self.same.iter().all(is_same) && self.own.iter().all(is_text);
        if is_alike { Envelope::arrival(head) } else { None }
    }

    /// Remembers a head that was taken apart: `own_len` bytes at its end are the message's own, of which `texts` were
    /// put into these columns; only the envelope matters where nothing of them was wanted.
    pub(crate) fn learn<'a>(
        &mut self,
        stored: &Stored<'a>,
        own_len: usize,
        wants_own: bool,
        texts: impl Iterator<Item = (Option<usize>, &'a [u8])>,
    ) {
        self.forget();
        self.own.clear();
        let head = stored.head;
        let is_repeated = self.last_len == head.len();
        self.last_len = head.len();
        // A stream whose heads are all of different lengths pays for no copies.
        if wants_own && !is_repeated {
            return;
        }
        self.any_length = !wants_own;
        self.head.clear();
        self.head.extend_from_slice(head);
        self.own.extend(texts.filter_map(|(column, text)| Some(OwnText { column, at: place(head, text)? })));
        self.own.sort_by_key(|own| own.at.start);
        let end = if wants_own { head.len() } else { head.len().saturating_sub(own_len) };
        let gaps = std::iter::once(&Envelope::OWN_FACTS).chain(self.own.iter().map(|own| &own.at));
        let mut start = 0;
        for next in gaps.map(|gap| (gap.start, gap.end)).chain([(end, end)]) {
            // One text inside another: no head that a node writes has that.
            if next.0 < start {
                return self.forget();
            }
            if next.0 > start {
                self.same.push(start..next.0);
            }
            start = next.1;
        }
    }
}

/// Where in the whole a part of it lies; `None` if it is not one.
fn place(whole: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    let end = start.checked_add(part.len())?;
    (start >= Envelope::OWN_FACTS.end && end <= whole.len()).then_some(start..end)
}
