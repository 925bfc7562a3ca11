//! Reading the engine: counters, gauges and pages of its tables.
//!
//! Owns what management and Python may see. The name of a table and a question come in, a page of rows of plain cells
//! goes out; a page is found without building the rows that are not on it, so that fifty thousand queues cost
//! milliseconds. It must never change what it reads. Rule: columns are data (`columns.rs`);
//! docs/reference/management.md says what each one means.

mod columns;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::broker::VhostId;
use crate::conn::ConnId;
use crate::engine::Engine;
use crate::slab::{Id, Slab};
use crate::stats::{Quantiles, SIZES, Sketch};

pub use columns::TABLES;
use columns::{CONNECTIONS, CONSUMERS, EXCHANGES, QUEUES, STREAMS};

/// One value of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cell {
    /// It has no such value, or none yet.
    Absent,
    Flag(bool),
    Number(u64),
    /// A number that may be below zero.
    Integer(i64),
    Text(String),
}

/// A row of a snapshot.
pub type Row = Vec<(&'static str, Cell)>;

/// A column: its name, and how it is read from a thing of the table.
type Column<T> = (&'static str, fn(&Engine, Id<T>, &T) -> Cell);

/// A table: where its things are, what they are called, and their columns.
struct Table<T: 'static> {
    things: fn(&Engine) -> &Slab<T>,
    columns: &'static [Column<T>],
    /// Is it for others to see at all?
    shown: fn(&T) -> bool,
    vhost: fn(&Engine, &T) -> Option<VhostId>,
    name: for<'t> fn(&'t T) -> &'t [u8],
}

/// A thing with what it is sorted by: a cell, then the rank of its virtual host, its name and its number.
type Keyed<'e, T> = (Cell, u32, &'e [u8], Id<T>, &'e T);

/// Which rows of a table are wanted, in which order, and what of them.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Only what is in these virtual hosts.
    pub vhosts: Option<Vec<String>>,
    /// Only what has this in its name, whatever its case.
    pub contains: Option<String>,
    /// Only these.
    pub ids: Option<Vec<u64>>,
    /// A column; without one the order is by virtual host and name.
    pub sort: Option<String>,
    pub descending: bool,
    pub offset: usize,
    pub count: Option<usize>,
    pub columns: Option<Vec<String>>,
}

/// A part of a table.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Rows in the virtual hosts that were asked for; of the ids, where some were given.
    pub total: usize,
    /// Rows that also fit the rest of the question.
    pub matched: usize,
    pub rows: Vec<Row>,
}

impl Engine {
    /// (ready, unsettled, consumers) of a queue.
    pub fn queue_stats(&self, vhost: &str, queue: &str) -> Option<(usize, usize, usize)> {
        if self.broker.is_reply_open(queue.as_bytes()) {
            return Some((0, 0, 1));
        }
        let id = self.broker.find_queue(self.broker.find_vhost(vhost.as_bytes())?, queue.as_bytes())?;
        let ring = self.broker.queues.get(id)?.ring.len();
        let parts = self.broker.parts(id).into_iter().filter_map(|part| self.broker.queues.get(part));
        let (ready, unsettled) = parts.fold((0, 0), |sum, part| (sum.0 + part.len(), sum.1 + part.unsettled));
        Some((ready, unsettled, ring))
    }

    /// The number by which `page` knows a queue.
    pub fn queue_id(&self, vhost: &str, queue: &str) -> Option<u64> {
        let id = self.broker.find_queue(self.broker.find_vhost(vhost.as_bytes())?, queue.as_bytes())?;
        Some(id.raw())
    }

    /// Node-wide counters and gauges. What belongs to the node itself is left out.
    pub fn stats(&self) -> BTreeMap<&'static str, u64> {
        let (broker, totals) = (&self.broker, &self.broker.totals);
        let (mut queues, mut ready, mut unsettled, mut consumers) = (0, 0, 0, 0);
        for (_, queue) in broker.queues.iter().filter(|(_, queue)| !queue.is_own()) {
            queues += 1;
            ready += queue.len() as u64;
            unsettled += queue.unsettled as u64;
            consumers += queue.ring.len() as u64;
        }
        BTreeMap::from([
            ("connections", self.conns.len() as u64),
            ("connections_opened", totals.connections_opened),
            ("consumers", consumers),
            ("dead_lettered", totals.dead_lettered),
            ("delayed", broker.delayed_len() as u64),
            ("delivered", totals.delivered),
            ("duplicate", totals.duplicates),
            ("exchanges", broker.exchanges.len() as u64),
            ("looped", totals.looped),
            ("memory_bytes", broker.ledger.used()),
            ("memory_bytes_max", broker.ledger.max()),
            ("published", totals.published),
            ("queues", queues),
            ("ready", ready),
            ("redelivered", totals.redelivered),
            ("expired", totals.expired),
            ("returned", totals.returned),
            ("settled", totals.settled),
            ("unroutable", totals.unroutable),
            ("unsettled", unsettled),
        ])
    }

    /// The place of each virtual host among the names of all.
    fn vhost_ranks(&self) -> BTreeMap<VhostId, u32> {
        let mut named: Vec<(VhostId, &[u8])> =
            self.broker.vhosts.iter().map(|(id, vhost)| (id, &*vhost.name)).collect();
        named.sort_unstable_by_key(|one| one.1);
        named.into_iter().enumerate().map(|(rank, (id, _))| (id, rank as u32)).collect()
    }

    /// Every virtual host: its name, and the queues, ready and unsettled messages and connections in it.
    pub fn vhosts(&self) -> Vec<(String, u64, u64, u64, u64)> {
        let mut totals: BTreeMap<VhostId, (u64, u64, u64, u64)> = BTreeMap::new();
        for (_, queue) in self.broker.queues.iter().filter(|(_, queue)| !queue.is_own()) {
            let total = totals.entry(queue.vhost).or_default();
            total.0 += 1;
            total.1 += queue.len() as u64;
            total.2 += queue.unsettled as u64;
        }
        for (_, conn) in self.conns.iter() {
            if let Some(principal) = self.broker.principal(conn.io.principal) {
                totals.entry(principal.vhost).or_default().3 += 1;
            }
        }
        let named = self.broker.vhosts.iter().map(|(id, vhost)| {
            let (queues, ready, unsettled, conns) = totals.get(&id).copied().unwrap_or_default();
            (String::from_utf8_lossy(&vhost.name).into_owned(), queues, ready, unsettled, conns)
        });
        named.collect()
    }

    /// How long messages take on this node: name, durations counted, quantiles. Time in queue comes a second time by
    /// the size of the body, with the largest size of each bucket (None: any larger).
    pub fn latencies(&self) -> Vec<(&'static str, Option<u64>, u64, Quantiles)> {
        let latency = &self.broker.latency;
        let in_queue = latency.in_queue();
        let named = [("time_in_queue", &in_queue), ("settle", &latency.to_settle), ("confirm", &latency.to_confirm)];
        let told = |name, size, sketch: &Sketch| Some((name, size, sketch.len(), sketch.quantiles()?));
        let all = named.iter().filter_map(|(name, sketch)| told(*name, None, sketch));
        let sizes = SIZES.iter().copied().map(Some).chain([None]).zip(&latency.by_size);
        all.chain(sizes.filter_map(|(size, sketch)| told("size", size, sketch))).collect()
    }

    /// All rows of one table; None if there is no such table.
    pub fn inspect(&self, table: &str) -> Option<Vec<Row>> {
        self.page(table, &Question::default()).map(|page| page.rows)
    }

    /// Every channel and session of these connections, or of all.
    pub fn sessions(&self, conns: Option<&[u64]>) -> Vec<Row> {
        let ids: Vec<ConnId> = match conns {
            Some(conns) => conns.iter().map(|raw| ConnId::from_raw(*raw)).collect(),
            None => self.conns.iter().map(|(id, _)| id).collect(),
        };
        let found = ids.into_iter().filter_map(|id| Some((id, self.conns.get(id)?)));
        let parts = found.flat_map(|(id, conn)| conn.session.parts().into_iter().map(move |part| (id, part)));
        let number = |number: usize| Cell::Number(number as u64);
        parts
            .map(|(id, part)| {
                vec![
                    ("conn", Cell::Number(id.raw())),
                    ("number", number(part.number.into())),
                    ("consumers", number(part.links)),
                    ("unsettled", number(part.unsettled)),
                    ("prefetch", number(part.prefetch.into())),
                    ("confirm", Cell::Flag(part.published.is_some())),
                    ("published", part.published.map_or(Cell::Absent, Cell::Number)),
                    ("transactional", Cell::Flag(part.transactional)),
                ]
            })
            .collect()
    }

    /// A page of one table; None if there is no such table.
    pub fn page(&self, table: &str, question: &Question) -> Option<Page> {
        match table {
            "connections" => Some(CONNECTIONS.page(self, question)),
            "consumers" => Some(CONSUMERS.page(self, question)),
            "queues" => Some(QUEUES.page(self, question)),
            "streams" => Some(STREAMS.page(self, question)),
            "exchanges" => Some(EXCHANGES.page(self, question)),
            "links" => Some(self.link_page(question)),
            _ => None,
        }
    }

    /// (id, virtual host, name) of everything in one table, for filters that only Python knows.
    pub fn names(&self, table: &str) -> Option<Vec<(u64, String, String)>> {
        match table {
            "connections" => Some(CONNECTIONS.names(self)),
            "consumers" => Some(CONSUMERS.names(self)),
            "queues" => Some(QUEUES.names(self)),
            "streams" => Some(STREAMS.names(self)),
            "exchanges" => Some(EXCHANGES.names(self)),
            "links" => Some(Vec::new()),
            _ => None,
        }
    }
}

impl<T> Table<T> {
    fn vhost_name<'e>(&self, engine: &'e Engine, thing: &T) -> &'e [u8] {
        let vhost = (self.vhost)(engine, thing).and_then(|id| engine.broker.vhosts.get(id));
        vhost.map_or(&[], |vhost| &vhost.name)
    }

    fn names(&self, engine: &Engine) -> Vec<(u64, String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let shown = (self.things)(engine).iter().filter(|(_, thing)| (self.shown)(thing));
        shown.map(|(id, thing)| (id.raw(), text(self.vhost_name(engine, thing)), text((self.name)(thing)))).collect()
    }

    fn page(&self, engine: &Engine, question: &Question) -> Page {
        let things = (self.things)(engine);
        let find = |name: &String| engine.broker.find_vhost(name.as_bytes());
        let vhosts: Option<Vec<VhostId>> =
            question.vhosts.as_ref().map(|names| names.iter().filter_map(find).collect());
        let inside = |thing: &T| match &vhosts {
            Some(vhosts) => (self.vhost)(engine, thing).is_some_and(|vhost| vhosts.contains(&vhost)),
            None => true,
        };
        let word = question.contains.as_ref().map(|word| word.to_ascii_lowercase());
        let fits = |thing: &T| word.as_ref().is_none_or(|word| contains((self.name)(thing), word.as_bytes()));
        let (mut total, mut found) = (0, Vec::new());
        match &question.ids {
            Some(ids) => {
                let known = ids.iter().map(|raw| Id::from_raw(*raw)).filter_map(|id| Some((id, things.get(id)?)));
                found.extend(known.filter(|(_, thing)| (self.shown)(thing) && inside(thing) && fits(thing)));
                total = found.len();
            }
            None => {
                for (id, thing) in things.iter().filter(|(_, thing)| (self.shown)(thing) && inside(thing)) {
                    total += 1;
                    if fits(thing) {
                        found.push((id, thing));
                    }
                }
            }
        }
        let matched = found.len();
        let page = self.cut(engine, question, found);
        let wanted = |name: &str| question.columns.as_ref().is_none_or(|names| names.iter().any(|own| own == name));
        let columns: Vec<&Column<T>> = self.columns.iter().filter(|column| wanted(column.0)).collect();
        let row =
            |(id, thing): (Id<T>, &T)| columns.iter().map(|(name, read)| (*name, read(engine, id, thing))).collect();
        Page { total, matched, rows: page.into_iter().map(row).collect() }
    }

    /// The part of `found` that the question asks for, in its order. Only that part is sorted.
    fn cut<'e>(&self, engine: &Engine, question: &Question, found: Vec<(Id<T>, &'e T)>) -> Vec<(Id<T>, &'e T)> {
        let column = question.sort.as_ref().and_then(|sort| self.columns.iter().find(|column| column.0 == sort));
        let ranks = engine.vhost_ranks();
        let mut keyed: Vec<Keyed<'e, T>> = found
            .into_iter()
            .map(|(id, thing)| {
                let cell = column.map_or(Cell::Absent, |column| (column.1)(engine, id, thing));
                let rank = (self.vhost)(engine, thing).and_then(|vhost| ranks.get(&vhost)).copied().unwrap_or(0);
                (cell, rank, (self.name)(thing), id, thing)
            })
            .collect();
        let order = |one: &Keyed<'e, T>, other: &Keyed<'e, T>| {
            let way = (&one.0, one.1, one.2, one.3).cmp(&(&other.0, other.1, other.2, other.3));
            if question.descending { way.reverse() } else { way }
        };
        let from = question.offset.min(keyed.len());
        let to = question.count.map_or(keyed.len(), |count| from.saturating_add(count).min(keyed.len()));
        part(&mut keyed, from, to, order);
        keyed.drain(from..to).map(|(_, _, _, id, thing)| (id, thing)).collect()
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
}
