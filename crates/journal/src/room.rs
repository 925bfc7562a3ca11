//! Memory that messages are read into.
//!
//! Owns the buffer of a read, and a shelf of large pages that many reads use one after the other. A reader asks for so
//! many bytes; what is large enough to come past the page cache gets a page that lies in one piece of the machine's
//! memory, because a disk fills one piece at once and 512 small ones one by one. A page goes back to its shelf by
//! itself. It must never be needed: without such pages, or with too many in use, ordinary memory does. Rule: decision
//! 0071.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::MmapMut;

/// A large page of the machines this runs on; on others it is as good as any size.
pub(crate) const PAGE_BYTES: usize = 2 << 20;
/// Less than this is not worth a page.
const PAGE_USE_MIN: usize = 512 << 10;
/// Pages in use at a time: what readers hold beyond that is in ordinary memory, as large as it has to be.
const PAGES_MAX: usize = 16;
/// Pages kept for reads to come: as much as a few readers use at a time.
const PAGES_IDLE_MAX: usize = 4;

/// Bytes that were read, or will be.
pub struct Room(Memory);

enum Memory {
    Own(Vec<u8>),
    Page(Page),
}

/// A large page, and where it goes back to.
struct Page {
    /// None only while it is dropped.
    map: Option<MmapMut>,
    /// Where in the map the page begins.
    start: usize,
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Debug, Default)]
struct Shelf {
    idle: Vec<MmapMut>,
    in_use: usize,
}

/// The pages of a journal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages(Arc<Mutex<Shelf>>);

impl Pages {
    /// Room for so many bytes.
    pub(crate) fn room(&self, bytes: usize) -> Room {
        let page = if (PAGE_USE_MIN..=PAGE_BYTES).contains(&bytes) { self.page() } else { None };
        Room(page.map_or_else(|| Memory::Own(vec![0; bytes]), Memory::Page))
    }

    /// Gives back what is kept for reads to come.
    pub(crate) fn clear(&self) {
        lock(&self.0).idle = Vec::new();
    }

    fn page(&self) -> Option<Page> {
        let mut shelf = lock(&self.0);
        if shelf.in_use == PAGES_MAX {
            return None;
        }
        let map = match shelf.idle.pop() {
            Some(map) => map,
            None => new_map()?,
        };
        shelf.in_use += 1;
        let start = map.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        Some(Page { map: Some(map), start, shelf: Arc::clone(&self.0) })
    }
}

/// Memory with a whole page in it; the rest of it is never touched.
fn new_map() -> Option<MmapMut> {
    let map = MmapMut::map_anon(2 * PAGE_BYTES).ok()?;
    #[cfg(target_os = "linux")]
    let _unless_refused = map.advise(memmap2::Advice::HugePage);
    Some(map)
}

fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Page {
    fn drop(&mut self) {
        let mut shelf = lock(&self.shelf);
        shelf.in_use -= 1;
        if shelf.idle.len() < PAGES_IDLE_MAX {
            shelf.idle.extend(self.map.take());
        }
    }
}

impl Room {
    /// Makes it at least so long; what is in it stays.
    pub(crate) fn grow(&mut self, bytes: usize) {
        if self.len() < bytes {
            self.own().resize(bytes, 0);
        }
    }

    /// Adds bytes at its end.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.own().extend_from_slice(bytes);
    }

    fn own(&mut self) -> &mut Vec<u8> {
        if let Memory::Page(page) = &self.0 {
            self.0 = Memory::Own(page.bytes().to_vec());
        }
        match &mut self.0 {
            Memory::Own(bytes) => bytes,
            Memory::Page(_) => unreachable!("it was made its own above"),
        }
    }
}

impl Page {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], |map| &map[self.start..self.start + PAGE_BYTES])
    }
}

impl Default for Room {
    fn default() -> Self {
        Self(Memory::Own(Vec::new()))
    }
}

impl From<Vec<u8>> for Room {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Memory::Own(bytes))
    }
}

impl Clone for Room {
    fn clone(&self) -> Self {
        Self(Memory::Own(self.to_vec()))
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Room({} bytes)", self.len())
    }
}

impl Deref for Room {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Own(bytes) => bytes,
            Memory::Page(page) => page.bytes(),
        }
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Own(bytes) => bytes,
            Memory::Page(page) => match &mut page.map {
                Some(map) => &mut map[page.start..page.start + PAGE_BYTES],
                None => &mut [],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_read_gets_a_page_and_gives_it_back() {
        let pages = Pages::default();
        let mut room = pages.room(PAGE_USE_MIN);
        assert_eq!((room.len(), room.as_ptr() as usize % PAGE_BYTES), (PAGE_BYTES, 0));
        room[PAGE_BYTES - 1] = 7;
        let place = room.as_ptr();
        drop(room);
        let again = pages.room(PAGE_BYTES);
        assert_eq!((again.as_ptr(), again[PAGE_BYTES - 1]), (place, 7), "the same page");
        drop(again);
        pages.clear();
        assert_eq!(pages.room(PAGE_BYTES)[PAGE_BYTES - 1], 0, "a new one");
        assert_eq!(pages.room(PAGE_USE_MIN - 1).len(), PAGE_USE_MIN - 1);
        assert_eq!(pages.room(PAGE_BYTES + 1).len(), PAGE_BYTES + 1);
    }

    #[test]
    fn there_are_only_so_many_pages() {
        let pages = Pages::default();
        let many: Vec<Room> = (0..PAGES_MAX).map(|_| pages.room(PAGE_USE_MIN)).collect();
        assert!(many.iter().all(|room| room.len() == PAGE_BYTES));
        assert_eq!(pages.room(PAGE_USE_MIN).len(), PAGE_USE_MIN, "ordinary memory");
        drop(many);
        assert_eq!(lock(&pages.0).idle.len(), PAGES_IDLE_MAX);
        assert_eq!(pages.room(PAGE_USE_MIN).len(), PAGE_BYTES);
    }

    #[test]
    fn a_room_that_grows_keeps_what_is_in_it() {
        let mut room = Pages::default().room(PAGE_BYTES);
        room[5] = 9;
        room.grow(10);
        assert_eq!(room.len(), PAGE_BYTES);
        room.grow(PAGE_BYTES + 1);
        assert_eq!((room.len(), room[5]), (PAGE_BYTES + 1, 9));
        room.extend(b"end");
        assert!(room.ends_with(b"end"));
    }
}
