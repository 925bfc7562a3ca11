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

/// What a row is sorted by: a cell, then the rank of its virtual host, its name and its number.
type Key = (Cell, u32, Box<[u8]>, u64);

/// A question that is being answered.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    table: String,
    question: Question,
    /// The next slot to look at, or the next of the question's ids.
    next: usize,
    total: usize,
    keys: Vec<Key>,
}

impl Scan {
    pub fn new(table: &str, question: Question) -> Self {
        Self { table: table.to_owned(), question, ..Self::default() }
    }

    /// Rows in the virtual hosts that were asked for, and how many of them fit, as far as was looked.
    pub fn found(&self) -> (usize, usize) {
        (self.total, self.keys.len())
    }

    /// Names of some of what was found, by place, for filters that the kernel does not know.
    pub fn names(&self, from: usize, count: usize) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().skip(from).take(count).map(|key| &*key.2)
    }

    /// Keeps what was found at these places, which rise, and drops the rest.
    pub fn keep(&mut self, places: &[usize]) {
        let mut keys = std::mem::take(&mut self.keys);
        self.keys = places.iter().filter_map(|at| keys.get_mut(*at).map(std::mem::take)).collect();
    }

    /// The numbers of the rows on the page, in order; the search is over.
    pub fn choose(&mut self) -> Vec<u64> {
        let mut keys = std::mem::take(&mut self.keys);
        let Question { descending, offset, count, .. } = self.question;
        let from = offset.min(keys.len());
        let to = count.map_or(keys.len(), |count| from.saturating_add(count).min(keys.len()));
        let order = |one: &Key, other: &Key| if descending { other.cmp(one) } else { one.cmp(other) };
        part(&mut keys, from, to, order);
        keys[from..to].iter().map(|key| key.3).collect()
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
        let mut scan = Scan::new(table, question.clone());
        self.look(&mut scan, usize::MAX)?;
        let (total, matched) = scan.found();
        Some(Page { total, matched, rows: self.rows(table, &scan.choose(), question.columns.as_deref())? })
    }
}

impl<T> Table<T> {
    fn look(&self, engine: &Engine, scan: &mut Scan, count: usize) -> bool {
        let things = (self.things)(engine);
        let Scan { question, next, total, keys, .. } = scan;
        let find = |name: &String| engine.broker.find_vhost(name.as_bytes());
        let vhosts: Option<Vec<VhostId>> =
            question.vhosts.as_ref().map(|names| names.iter().filter_map(find).collect());
        let word = question.contains.as_ref().map(|word| word.to_ascii_lowercase());
        let column = question.sort.as_ref().and_then(|sort| self.columns.iter().find(|column| column.0 == sort));
        let ranks = engine.vhost_ranks();
        let all = question.ids.as_ref().map_or(things.slots(), Vec::len);
        let end = next.saturating_add(count).min(all);
        for at in std::mem::replace(next, end)..end {
            let found = match &question.ids {
                Some(ids) => things.get(Id::from_raw(ids[at])).map(|thing| (Id::from_raw(ids[at]), thing)),
                None => things.at(at),
            };
            let Some((id, thing)) = found.filter(|(_, thing)| (self.shown)(thing)) else { continue };
            let vhost = (self.vhost)(engine, thing);
            if !vhosts.as_ref().is_none_or(|wanted| vhost.is_some_and(|vhost| wanted.contains(&vhost))) {
                continue;
            }
            *total += 1;
            let name = (self.name)(thing);
            if word.as_ref().is_none_or(|word| contains(name, word.as_bytes())) {
                let cell = column.map_or(Cell::Absent, |column| (column.1)(engine, id, thing));
                let rank = vhost.and_then(|vhost| ranks.get(&vhost)).copied().unwrap_or(0);
                keys.push((cell, rank, name.into(), id.raw()));
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
        let key = |id| (Cell::Absent, 0, Box::<[u8]>::from(&[b'a' + id as u8][..]), id);
        let mut scan = Scan { keys: (0..5).map(key).collect(), ..Scan::default() };
        scan.keep(&[1, 4, 9]);
        assert_eq!(scan.names(0, 9).collect::<Vec<_>>(), [b"b", b"e"]);
        assert_eq!(scan.choose(), [1, 4]);
    }
}
