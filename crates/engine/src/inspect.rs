//! Reading the engine: counters, gauges and snapshots of its tables.
//!
//! Owns what management and Python may see. Names of tables come in, rows of plain cells go out; also the calls that
//! Python itself uses to publish and consume in-process. It must never change what it reads. Rule:
//! docs/reference/statistics.md.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::broker::{Outcome, Unknown};
use crate::engine::Engine;
use crate::message::{Message, Name};
use crate::routing::ExchangeId;

/// One value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    Number(u64),
    Flag(bool),
}

/// A row of a snapshot.
pub type Row = Vec<(&'static str, Cell)>;

fn text(bytes: &[u8]) -> Cell {
    Cell::Text(String::from_utf8_lossy(bytes).into_owned())
}

impl Engine {
    fn vhost_text(&self, id: crate::broker::VhostId) -> Cell {
        self.broker.vhosts.get(id).map_or(Cell::Text(String::new()), |vhost| text(&vhost.name))
    }

    /// (ready, unsettled, consumers) of a queue.
    pub fn queue_stats(&self, vhost: &str, queue: &str) -> Option<(usize, usize, usize)> {
        if self.broker.is_reply_open(queue.as_bytes()) {
            return Some((0, 0, 1));
        }
        let id = self.broker.find_queue(self.broker.find_vhost(vhost.as_bytes())?, queue.as_bytes())?;
        let queue = self.broker.queues.get(id)?;
        Some((queue.len(), queue.unsettled, queue.ring.len()))
    }

    /// Node-wide counters and gauges.
    pub fn stats(&self) -> BTreeMap<&'static str, u64> {
        let (broker, totals) = (&self.broker, &self.broker.totals);
        let ready: usize = broker.queues.iter().map(|(_, queue)| queue.len()).sum();
        let unsettled: usize = broker.queues.iter().map(|(_, queue)| queue.unsettled).sum();
        BTreeMap::from([
            ("connections", self.conns.len() as u64),
            ("connections_opened", totals.connections_opened),
            ("consumers", broker.consumers.len() as u64),
            ("dead_lettered", totals.dead_lettered),
            ("delayed", broker.delayed_len() as u64),
            ("delivered", totals.delivered),
            ("exchanges", broker.exchanges.len() as u64),
            ("memory_bytes", broker.ledger.used()),
            ("memory_bytes_max", broker.ledger.max()),
            ("published", totals.published),
            ("queues", broker.queues.len() as u64),
            ("ready", ready as u64),
            ("returned", totals.returned),
            ("settled", totals.settled),
            ("unroutable", totals.unroutable),
            ("unsettled", unsettled as u64),
        ])
    }

    /// A snapshot of one table; None if there is no such table.
    pub fn inspect(&self, table: &str) -> Option<Vec<Row>> {
        match table {
            "connections" => Some(self.connection_rows()),
            "consumers" => Some(self.consumer_rows()),
            "queues" => Some(self.queue_rows()),
            "streams" => Some(self.stream_rows()),
            "exchanges" => Some(self.exchange_rows()),
            _ => None,
        }
    }

    fn connection_rows(&self) -> Vec<Row> {
        let row = |(id, conn): (crate::conn::ConnId, &crate::conn::Conn)| {
            let (io, about) = (&conn.io, conn.session.describe());
            let principal = self.broker.principal(io.principal);
            vec![
                ("conn", Cell::Number(id.raw())),
                ("protocol", Cell::Text(about.protocol.to_owned())),
                ("user", principal.map_or(Cell::Text(String::new()), |own| text(&own.user))),
                ("vhost", principal.map_or(Cell::Text(String::new()), |own| self.vhost_text(own.vhost))),
                ("channels", Cell::Number(about.channels as u64)),
                ("consumers", Cell::Number(about.consumers.len() as u64)),
                ("tls", Cell::Flag(io.tls)),
                ("bytes_in", Cell::Number(io.bytes_in)),
                ("bytes_out", Cell::Number(io.bytes_out)),
                ("message_bytes", Cell::Number(io.account.used())),
                ("blocked", Cell::Flag(io.blocked)),
            ]
        };
        self.conns.iter().map(row).collect()
    }

    fn consumer_rows(&self) -> Vec<Row> {
        let rows = self.broker.consumers.iter().filter_map(|(_, consumer)| {
            let queue = self.broker.queues.get(consumer.queue)?;
            Some(vec![
                ("conn", Cell::Number(consumer.conn)),
                ("vhost", self.vhost_text(queue.vhost)),
                ("queue", text(&queue.name)),
                ("exclusive", Cell::Flag(consumer.exclusive)),
                ("browse", Cell::Flag(consumer.browse)),
            ])
        });
        rows.collect()
    }

    fn queue_rows(&self) -> Vec<Row> {
        let rows = self.broker.queues.iter().map(|(_, queue)| {
            let counters = queue.counters;
            vec![
                ("vhost", self.vhost_text(queue.vhost)),
                ("name", text(&queue.name)),
                ("ready", Cell::Number(queue.len() as u64)),
                ("ready_bytes", Cell::Number(queue.bytes())),
                ("unsettled", Cell::Number(queue.unsettled as u64)),
                ("consumers", Cell::Number(queue.ring.len() as u64)),
                ("published", Cell::Number(counters.published)),
                ("delivered", Cell::Number(counters.delivered)),
                ("settled", Cell::Number(counters.settled)),
                ("returned", Cell::Number(counters.returned)),
                ("expired", Cell::Number(counters.expired)),
                ("dropped", Cell::Number(counters.dropped)),
                ("dead_lettered", Cell::Number(counters.dead_lettered)),
            ]
        });
        rows.collect()
    }

    fn stream_rows(&self) -> Vec<Row> {
        let rows = self.broker.queues.iter().filter_map(|(_, queue)| {
            let stream = queue.stream.as_ref()?;
            Some(vec![
                ("vhost", self.vhost_text(queue.vhost)),
                ("name", text(&queue.name)),
                ("first_offset", Cell::Number(stream.first())),
                ("next_offset", Cell::Number(stream.next())),
                ("bytes", Cell::Number(stream.bytes())),
                ("readers", Cell::Number(queue.ring.len() as u64)),
                ("appended", Cell::Number(queue.counters.published)),
                ("read", Cell::Number(queue.counters.delivered)),
            ])
        });
        rows.collect()
    }

    fn exchange_rows(&self) -> Vec<Row> {
        let rows = self.broker.exchanges.iter().map(|(_, exchange)| {
            vec![
                ("vhost", self.vhost_text(exchange.vhost)),
                ("name", text(&exchange.name)),
                ("type", Cell::Text(format!("{:?}", exchange.kind).to_lowercase())),
                ("internal", Cell::Flag(exchange.internal)),
            ]
        });
        rows.collect()
    }

    /// An exchange by its names, for `publish`.
    pub fn exchange(&self, vhost: &str, exchange: &str) -> Result<(ExchangeId, Name), Unknown> {
        let found = self.broker.find_vhost(vhost.as_bytes());
        let found = found.and_then(|vhost| self.broker.find_exchange(vhost, exchange.as_bytes()));
        let name = found.and_then(|id| self.broker.exchanges.get(id)).map(|exchange| Rc::clone(&exchange.name));
        found.zip(name).ok_or_else(|| Unknown(format!("no exchange '{exchange}' in vhost '{vhost}'")))
    }

    /// A message of Python's own; how many queues it reached.
    pub fn publish(&mut self, exchange: ExchangeId, message: &Rc<Message>) -> usize {
        self.broker.work_left = self.broker.limits.work_max;
        let published = self.broker.publish(exchange, message, &[]);
        self.work();
        published.queues
    }

    /// A local consumer.
    pub fn subscribe(&mut self, vhost: &str, queue: &str, credit: usize) -> Result<u64, Unknown> {
        let found = self.broker.find_vhost(vhost.as_bytes());
        let found = found.and_then(|vhost| self.broker.find_queue(vhost, queue.as_bytes()));
        let id = found.ok_or_else(|| Unknown(format!("no queue '{queue}' in vhost '{vhost}'")))?;
        let handle = self.locals.subscribe(&mut self.broker, id, credit);
        self.broker.work_left = self.broker.limits.work_max;
        self.work();
        Ok(handle)
    }

    /// Ends a local consumer.
    pub fn unsubscribe(&mut self, handle: u64) {
        self.locals.unsubscribe(&mut self.broker, handle);
        self.broker.work_left = self.broker.limits.work_max;
        self.work();
    }

    /// Ends a delivery to a local consumer; None if it holds no such delivery.
    pub fn settle(&mut self, handle: u64, tag: u64, outcome: Outcome) -> Option<u32> {
        if !self.locals.settle(&mut self.broker, handle, tag, outcome) {
            return None;
        }
        self.broker.work_left = self.broker.limits.work_max;
        self.work();
        Some(self.signals())
    }
}
