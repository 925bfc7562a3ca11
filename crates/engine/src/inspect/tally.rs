//! Sums over all queues and connections, taken a part at a time.
//!
//! Owns counting what no counter keeps: how much waits in all queues, and what each virtual host has of it. `tally`
//! goes on for a bounded number of queues or connections, `stats_of` and `vhosts_of` tell the result. It must never
//! hold a reference into the engine, so that messages flow between two parts. Rule: fifty thousand queues must not
//! keep one message waiting (docs/decisions/0067-sums-in-parts.md); what changes meanwhile is counted as it is when
//! its turn comes.

use std::collections::BTreeMap;

use crate::broker::VhostId;
use crate::engine::Engine;

/// What one virtual host has.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    queues: u64,
    ready: u64,
    unsettled: u64,
    connections: u64,
}

/// Sums that are being taken.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The next slot to count: of the queues, then of the connections.
    next_queue: usize,
    next_conn: usize,
    consumers: u64,
    unsynced: u64,
    channels: u64,
    blocked: u64,
    vhosts: BTreeMap<VhostId, Share>,
}

impl Engine {
    /// Counts so many more queues or connections; are there more still?
    pub fn tally(&self, tally: &mut Tally, count: usize) -> bool {
        let (queues, conns) = (&self.broker.queues, &self.conns);
        if tally.next_queue < queues.slots() {
            let end = tally.next_queue.saturating_add(count).min(queues.slots());
            for slot in std::mem::replace(&mut tally.next_queue, end)..end {
                let Some((_, queue)) = queues.at(slot).filter(|(_, queue)| !queue.is_own()) else { continue };
                tally.consumers += queue.ring.len() as u64;
                tally.unsynced += self.broker.unsynced_messages(queue);
                let share = tally.vhosts.entry(queue.vhost).or_default();
                share.queues += 1;
                share.ready += queue.len() as u64;
                share.unsettled += queue.unsettled as u64;
            }
            return true;
        }
        let end = tally.next_conn.saturating_add(count).min(conns.slots());
        for slot in std::mem::replace(&mut tally.next_conn, end)..end {
            let Some((_, conn)) = conns.at(slot) else { continue };
            tally.channels += conn.session.describe().channels as u64;
            tally.blocked += u64::from(conn.io.blocked);
            if let Some(principal) = self.broker.principal(conn.io.principal) {
                tally.vhosts.entry(principal.vhost).or_default().connections += 1;
            }
        }
        end < conns.slots()
    }

    fn tally_whole(&self) -> Tally {
        let mut tally = Tally::default();
        while self.tally(&mut tally, usize::MAX) {}
        tally
    }

    /// Node-wide counters and gauges. What belongs to the node itself is left out.
    pub fn stats(&self) -> BTreeMap<&'static str, u64> {
        self.stats_of(&self.tally_whole())
    }

    /// The same, with sums that were taken already.
    pub fn stats_of(&self, tally: &Tally) -> BTreeMap<&'static str, u64> {
        let (broker, totals) = (&self.broker, &self.broker.totals);
        let sum = |of: fn(&Share) -> u64| tally.vhosts.values().map(of).sum();
        BTreeMap::from([
            ("channels", tally.channels),
            ("connections", self.conns.len() as u64),
            ("connections_blocked", tally.blocked),
            ("connections_opened", totals.connections_opened),
            ("consumers", tally.consumers),
            ("dead_lettered", totals.dead_lettered),
            ("delayed", broker.delayed_len() as u64),
            ("delivered", totals.delivered),
            ("duplicate", totals.duplicates),
            ("exchanges", broker.exchanges.len() as u64),
            ("looped", totals.looped),
            ("memory_bytes", broker.ledger.used()),
            ("memory_bytes_max", broker.ledger.max()),
            ("published", totals.published),
            ("queues", sum(|share| share.queues)),
            ("ready", sum(|share| share.ready)),
            ("redelivered", totals.redelivered),
            ("expired", totals.expired),
            ("returned", totals.returned),
            ("settled", totals.settled),
            ("undecided", totals.undecided),
            ("committed", totals.committed),
            ("rolled_back", totals.rolled_back),
            ("unroutable", totals.unroutable),
            ("unsettled", sum(|share| share.unsettled)),
            ("unsynced", tally.unsynced),
        ])
    }

    /// Every virtual host: its name, and the queues, ready and unsettled messages and connections in it.
    pub fn vhosts_of(&self, tally: &Tally) -> Vec<(String, u64, u64, u64, u64)> {
        let named = self.broker.vhosts.iter().map(|(id, vhost)| {
            let share = tally.vhosts.get(&id).copied().unwrap_or_default();
            let name = String::from_utf8_lossy(&vhost.name).into_owned();
            (name, share.queues, share.ready, share.unsettled, share.connections)
        });
        named.collect()
    }
}
