//! A page of a large table, found a part at a time.
//!
//! Owns the search for a page: what has been looked at, and the sort keys of what fits. A question comes in; `look`
//! goes on for a bounded number of rows, and `choose` tells which rows are on the page. It must never hold a reference
//! into the engine, so that messages flow between two looks and the choice can be made on another thread. Rule: fifty
//! thousand queues must not keep one message waiting (docs/decisions/0017-pages-in-parts.md).

use std::cmp::Ordering;

use super::columns::{CONNECTIONS, CONSUMERS, EXCHANGES, QUEUES, STREAMS};
use super::{Cell, Page, Question, Row, Table};
use crate::broker::VhostId;
use crate::engine::Engine;
use crate::slab::Id;

/// Room made for a name; longer ones make the room grow.
const NAME_BYTES: usize = 32;
/// A page that ends here or before is kept while the table is looked at: what cannot be on it is forgotten at once.
const KEPT_MAX: usize = 2_048;

/// What a row is sorted by: a cell, then the rank of its virtual host, its name and its number.
#[derive(Clone, Debug, Default)]
struct Key {
    cell: Cell,
    rank: u32,
    /// Where its name is, and how long. Names lie one after the other: as many small pieces of memory, given back by
    /// the thread that chooses, would cost the engine's thread milliseconds at some later time.
    name: (usize, usize),
    id: u64,
}

impl Key {
    fn name<'a>(&self, names: &'a [u8]) -> &'a [u8] {
        names.get(self.name.0..self.name.0 + self.name.1).unwrap_or_default()
    }

    fn cmp_named(&self, name: &[u8], other: &Self, other_name: &[u8]) -> Ordering {
        let before = self.cell.cmp(&other.cell).then(self.rank.cmp(&other.rank));
        before.then_with(|| name.cmp(other_name)).then(self.id.cmp(&other.id))
    }

    fn ordered(&self, other: &Self, names: &[u8], descending: bool) -> Ordering {
        let order = self.cmp_named(self.name(names), other, other.name(names));
        if descending { order.reverse() } else { order }
    }
}

/// A question that is being answered.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    table: String,
    question: Question,
    /// The next slot to look at, or the next of the question's ids.
    next: usize,
    total: usize,
    matched: usize,
    /// Where the page ends, if no more is to be kept than that.
    kept_max: Option<usize>,
    /// Once so many were found: the last of them, and its name.
    last: Option<(Key, Vec<u8>)>,
    keys: Vec<Key>,
    names: Vec<u8>,
}

impl Scan {
    /// `whole` keeps all that fits, for filters that the kernel does not know.
    pub fn new(table: &str, question: Question, whole: bool) -> Self {
        let end = question.count.map(|count| question.offset.saturating_add(count));
        let kept_max = end.filter(|end| !whole && (1..=KEPT_MAX).contains(end));
        Self { table: table.to_owned(), question, kept_max, ..Self::default() }
    }

    /// Rows in the virtual hosts that were asked for, and how many of them fit, as far as was looked.
    pub fn found(&self) -> (usize, usize) {
        (self.total, self.matched)
    }

    /// How many rows `choose` will choose from.
    pub fn held(&self) -> usize {
        self.keys.len()
    }

    /// Names of some of what was found, by place, for filters that the kernel does not know.
    pub fn names(&self, from: usize, count: usize) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().skip(from).take(count).map(|key| key.name(&self.names))
    }

    /// Keeps what was found at these places, which rise, and drops the rest.
    pub fn keep(&mut self, places: &[usize]) {
        let mut keys = std::mem::take(&mut self.keys);
        self.keys = places.iter().filter_map(|at| keys.get_mut(*at).map(std::mem::take)).collect();
        self.matched = self.keys.len();
    }

    /// Takes a row that fits, if it may be on the page.
    fn take(&mut self, cell: Cell, rank: u32, name: &[u8], id: u64) {
        self.matched += 1;
        let key = Key { cell, rank, name: (self.names.len(), name.len()), id };
        if let Some((last, last_name)) = &self.last {
            let order = key.cmp_named(name, last, last_name);
            if order == if self.question.descending { Ordering::Less } else { Ordering::Greater } {
                return;
            }
        }
        self.keys.push(key);
        self.names.extend_from_slice(name);
        if let Some(max) = self.kept_max
            && self.keys.len() >= 2 * max
        {
            self.forget(max);
        }
    }

    /// Forgets all but the first of what was found.
    fn forget(&mut self, kept: usize) {
        let (descending, names) = (self.question.descending, std::mem::take(&mut self.names));
        let order = |one: &Key, other: &Key| one.ordered(other, &names, descending);
        part(&mut self.keys, kept - 1, kept, order);
        self.keys.truncate(kept);
        self.last = self.keys.last().map(|key| (key.clone(), key.name(&names).to_vec()));
        for key in &mut self.keys {
            let start = self.names.len();
            self.names.extend_from_slice(key.name(&names));
            key.name.0 = start;
        }
    }

    /// The numbers of the rows on the page, in order; the search is over.
    pub fn choose(&mut self) -> Vec<u64> {
        let mut keys = std::mem::take(&mut self.keys);
        let Question { descending, offset, count, .. } = self.question;
        let from = offset.min(keys.len());
        let to = count.map_or(keys.len(), |count| from.saturating_add(count).min(keys.len()));
        let names = self.names.as_slice();
        part(&mut keys, from, to, |one, other| one.ordered(other, names, descending));
        keys[from..to].iter().map(|key| key.id).collect()
    }
}

impl Engine {
    /// Looks at so many more rows; are there more still? None if there is no such table.
    pub fn look(&self, scan: &mut Scan, count: usize) -> Option<bool> {
        match scan.table.as_str() {
            "connections" => Some(CONNECTIONS.look(self, scan, count)),
            "consumers" => Some(CONSUMERS.look(self, scan, count)),
            "queues" => Some(QUEUES.look(self, scan, count)),
            "streams" => Some(STREAMS.look(self, scan, count)),
            "exchanges" => Some(EXCHANGES.look(self, scan, count)),
            _ => None,
        }
    }

    /// The rows of these numbers that are still there, in the same order; None if there is no such table.
    pub fn rows(&self, table: &str, ids: &[u64], columns: Option<&[String]>) -> Option<Vec<Row>> {
        match table {
            "connections" => Some(CONNECTIONS.rows(self, ids, columns)),
            "consumers" => Some(CONSUMERS.rows(self, ids, columns)),
            "queues" => Some(QUEUES.rows(self, ids, columns)),
            "streams" => Some(STREAMS.rows(self, ids, columns)),
            "exchanges" => Some(EXCHANGES.rows(self, ids, columns)),
            _ => None,
        }
    }

    /// A page of one table in one go; None if there is no such table.
    pub fn page(&self, table: &str, question: &Question) -> Option<Page> {
        if table == "links" {
            return Some(self.link_page(question));
        }
        let mut scan = Scan::new(table, question.clone(), false);
        self.look(&mut scan, usize::MAX)?;
        let (total, matched) = scan.found();
        Some(Page { total, matched, rows: self.rows(table, &scan.choose(), question.columns.as_deref())? })
    }
}

impl<T> Table<T> {
    fn look(&self, engine: &Engine, scan: &mut Scan, count: usize) -> bool {
        let things = (self.things)(engine);
        let question = &scan.question;
        let find = |name: &String| engine.broker.find_vhost(name.as_bytes());
        let vhosts: Option<Vec<VhostId>> =
            question.vhosts.as_ref().map(|names| names.iter().filter_map(find).collect());
        let word = question.contains.as_ref().map(|word| word.to_ascii_lowercase());
        let column = question.sort.as_ref().and_then(|sort| self.columns.iter().find(|column| column.0 == sort));
        let ranks = engine.vhost_ranks();
        let all = question.ids.as_ref().map_or(things.slots(), Vec::len);
        let end = scan.next.saturating_add(count).min(all);
        if scan.next == 0 {
            // Growing later would copy everything in one look.
            let room = scan.kept_max.map_or(all, |max| all.min(2 * max));
            scan.keys.reserve(room);
            scan.names.reserve(room * NAME_BYTES);
        }
        for at in std::mem::replace(&mut scan.next, end)..end {
            let found = match &scan.question.ids {
                Some(ids) => things.get(Id::from_raw(ids[at])).map(|thing| (Id::from_raw(ids[at]), thing)),
                None => things.at(at),
            };
            let Some((id, thing)) = found.filter(|(_, thing)| (self.shown)(thing)) else { continue };
            let vhost = (self.vhost)(engine, thing);
            if !vhosts.as_ref().is_none_or(|wanted| vhost.is_some_and(|vhost| wanted.contains(&vhost))) {
                continue;
            }
            scan.total += 1;
            let name = (self.name)(thing);
            if word.as_ref().is_none_or(|word| contains(name, word.as_bytes())) {
                let cell = column.map_or(Cell::Absent, |column| (column.1)(engine, id, thing));
                let rank = vhost.and_then(|vhost| ranks.get(&vhost)).copied().unwrap_or(0);
                scan.take(cell, rank, name, id.raw());
            }
        }
        end < all
    }

    fn rows(&self, engine: &Engine, ids: &[u64], columns: Option<&[String]>) -> Vec<Row> {
        let wanted = |name: &str| columns.is_none_or(|names| names.iter().any(|own| own == name));
        let columns: Vec<_> = self.columns.iter().filter(|column| wanted(column.0)).collect();
        let known = ids.iter().filter_map(|raw| {
            let id = Id::from_raw(*raw);
            Some((id, (self.things)(engine).get(id).filter(|thing| (self.shown)(thing))?))
        });
        known.map(|(id, thing)| columns.iter().map(|(name, read)| (*name, read(engine, id, thing))).collect()).collect()
    }
}

/// Brings what belongs at `from..to` there, in order; the rest stays in any order.
fn part<T>(items: &mut [T], from: usize, to: usize, order: impl Fn(&T, &T) -> Ordering + Copy) {
    if to < items.len() && to > 0 {
        items.select_nth_unstable_by(to - 1, order);
    }
    if from > 0 && from < to {
        items[..to].select_nth_unstable_by(from, order);
    }
    items[from..to].sort_unstable_by(order);
}

fn contains(name: &[u8], word: &[u8]) -> bool {
    word.is_empty() || name.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_what_is_sorted_is_the_same_as_sorting_and_then_cutting() {
        let items: Vec<u32> = (0..200).map(|n| n * 7919 % 101).collect();
        let mut sorted = items.clone();
        sorted.sort_unstable();
        for (from, to) in [(0, 0), (0, 1), (0, 200), (13, 14), (50, 120), (199, 200), (200, 200)] {
            let mut parted = items.clone();
            part(&mut parted, from, to, u32::cmp);
            assert_eq!(parted[from..to], sorted[from..to], "{from}..{to}");
        }
    }

    #[test]
    fn a_word_is_found_anywhere_in_any_case() {
        assert!(contains(b"Orders.new", b"orders"));
        assert!(contains(b"orders", b""));
        assert!(contains(b"a-ORDER", b"order"));
        assert!(!contains(b"ord", b"order"));
    }

    #[test]
    fn what_is_kept_stays_in_its_place() {
        let key = |id| Key { name: (id as usize, 1), id, ..Key::default() };
        let mut scan = Scan { keys: (0..5).map(key).collect(), names: b"abcde".to_vec(), ..Scan::default() };
        scan.keep(&[1, 4, 9]);
        assert_eq!(scan.names(0, 9).collect::<Vec<_>>(), [b"b", b"e"]);
        assert_eq!(scan.choose(), [1, 4]);
    }

    #[test]
    fn a_page_is_the_same_whether_all_is_kept_or_only_what_may_be_on_it() {
        for (descending, offset, count) in [(false, 0, 3), (true, 0, 3), (false, 7, 5), (true, 40, 200), (false, 0, 1)]
        {
            let question = Question { descending, offset, count: Some(count), ..Question::default() };
            let mut scans = [true, false].map(|whole| Scan::new("queues", question.clone(), whole));
            for id in 0..300_u64 {
                let (cell, name) = (Cell::Number(id * 7919 % 13), (id * 31 % 17).to_string());
                for scan in &mut scans {
                    scan.take(cell.clone(), (id % 3) as u32, name.as_bytes(), id);
                }
            }
            let [mut whole, mut kept] = scans;
            assert_eq!((whole.held(), whole.found()), (300, (0, 300)));
            assert!(kept.held() <= 300.min(2 * (offset + count) - 1), "{}", kept.held());
            assert_eq!(kept.found(), whole.found());
            assert_eq!(kept.choose(), whole.choose(), "{descending} {offset} {count}");
        }
    }
}
