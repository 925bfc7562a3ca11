//! Rows of the broker's tables: made, changed and removed by Python's changes.
//!
//! Owns declare, delete, bind, unbind and the memory of grants. Names come in, ids are kept inside. It must never check
//! whether a change is allowed: that was Python's decision; it only refuses names that do not exist.
//! Rule: a deleted queue or exchange takes its bindings with it, in both directions.

use std::rc::Rc;

use weft_wire::amqp10::condition;
use weft_wire::amqp091::table::Table;

use super::{BindingRow, Broker, Fate, Permit, Principal, Route, Topics, Vhost, VhostId};
use crate::barrier;
use crate::change::{BindingSpec, ExchangeKind};
use crate::event::{Access, Resource};
use crate::hash::Map;
use crate::queue::ready::{Cursor, Ready};
use crate::queue::{Queue, QueueId, Settings};
use crate::routing::{Dest, Exchange, ExchangeId};

/// A change named something that is not there.
#[derive(Debug, PartialEq, Eq)]
pub struct Unknown(pub String);

fn unknown(what: &str, name: &str) -> Unknown {
    Unknown(format!("no {what} '{name}'"))
}

impl Broker {
    fn vhost_named(&self, name: &str) -> Result<VhostId, Unknown> {
        self.find_vhost(name.as_bytes()).ok_or_else(|| unknown("vhost", name))
    }

    /// A virtual host with its default exchange, to which every queue is bound by its name.
    pub fn create_vhost(&mut self, name: &str) {
        if self.find_vhost(name.as_bytes()).is_some() {
            return;
        }
        let key: Rc<[u8]> = Rc::from(name.as_bytes());
        let (exchanges, queues) = (Map::with_hasher(self.seed), Map::with_hasher(self.seed));
        let id = self.vhosts.insert(Vhost { name: Rc::clone(&key), exchanges, queues });
        self.vhost_names.insert(key, id);
        let default = Exchange::new(id, self.no_name(), ExchangeKind::Direct, self.seed);
        let default = self.exchanges.insert(default);
        if let Some(vhost) = self.vhosts.get_mut(id) {
            vhost.exchanges.insert(Rc::clone(&self.no_name), default);
        }
    }

    /// Drops a virtual host with everything in it.
    pub fn delete_vhost(&mut self, name: &str) -> Option<VhostId> {
        let id = self.vhost_names.remove(name.as_bytes())?;
        let vhost = self.vhosts.get(id)?;
        let queues: Vec<QueueId> = vhost.queues.values().copied().collect();
        let exchanges: Vec<ExchangeId> = vhost.exchanges.values().copied().collect();
        queues.into_iter().for_each(|queue| self.drop_queue(queue));
        exchanges.into_iter().for_each(|exchange| self.drop_exchange(exchange));
        self.vhosts.remove(id);
        self.generation += 1;
        Some(id)
    }

    /// Makes an exchange, or changes the settings of one that exists (its type and bindings stay).
    pub fn declare_exchange(
        &mut self,
        vhost: &str,
        name: &str,
        kind: ExchangeKind,
        flags: (bool, bool),
        (alternate, tap): (Option<&str>, Option<&str>),
        barrier: Option<barrier::Settings>,
    ) -> Result<(), Unknown> {
        let vhost = self.vhost_named(vhost)?;
        let id = match self.find_exchange(vhost, name.as_bytes()) {
            Some(id) => id,
            None => {
                let key: Rc<[u8]> = Rc::from(name.as_bytes());
                let id = self.exchanges.insert(Exchange::new(vhost, Rc::clone(&key), kind, self.seed));
                if let Some(vhost) = self.vhosts.get_mut(vhost) {
                    vhost.exchanges.insert(key, id);
                }
                id
            }
        };
        let old = self.exchanges.get_mut(id).and_then(|exchange| exchange.barrier.take());
        let barrier = self.renew_barrier(old, barrier);
        if let Some(exchange) = self.exchanges.get_mut(id) {
            (exchange.internal, exchange.delayed) = flags;
            exchange.alternate = alternate.map(|name| Rc::from(name.as_bytes()));
            exchange.tap = tap.map(|name| Rc::from(name.as_bytes()));
            exchange.barrier = barrier;
        }
        self.generation += 1;
        Ok(())
    }

    pub fn delete_exchange(&mut self, vhost: &str, name: &str) -> Result<(), Unknown> {
        let id = self.vhost_named(vhost)?;
        let exchange = self.find_exchange(id, name.as_bytes()).ok_or_else(|| unknown("exchange", name))?;
        self.drop_exchange(exchange);
        Ok(())
    }

    fn drop_exchange(&mut self, id: ExchangeId) {
        self.drop_bindings(Dest::Exchange(id));
        let outgoing = self.bindings.get(&id).cloned().unwrap_or_default();
        outgoing.keys().for_each(|row| self.drop_row(row));
        if let Some(exchange) = self.exchanges.remove(id)
            && let Some(vhost) = self.vhosts.get_mut(exchange.vhost)
        {
            vhost.exchanges.remove(&exchange.name);
        }
        self.generation += 1;
    }

    /// Makes a queue, or changes the settings of one that exists.
    pub fn declare_queue(&mut self, vhost: &str, name: &str, mut settings: Settings) -> Result<QueueId, Unknown> {
        let vhost = self.vhost_named(vhost)?;
        settings.durability.get_or_insert(self.durability);
        if let Some(id) = self.find_queue(vhost, name.as_bytes()) {
            if let Some(queue) = self.queues.get_mut(id) {
                if settings.priority_max != queue.settings.priority_max {
                    let waiting = queue.ready.drain();
                    queue.ready = Ready::new(settings.priority_max);
                    for entry in waiting {
                        queue.ready.put_back(entry);
                    }
                    for member in queue.ring.members() {
                        self.consumers
                            .get_mut(member)
                            .into_iter()
                            .for_each(|consumer| consumer.cursor = Cursor::default());
                    }
                }
                // Routes know who is tapped.
                self.generation += u64::from(queue.settings.tap != settings.tap);
                queue.settings = settings;
            }
            self.renew_queue_barrier(id);
            self.touch(id);
            self.trim(id);
            self.schedule(id);
            return Ok(id);
        }
        let key: Rc<[u8]> = Rc::from(name.as_bytes());
        let id = self.queues.insert(Queue::new(vhost, Rc::clone(&key), settings, self.now_ns));
        if let Some(vhost) = self.vhosts.get_mut(vhost) {
            vhost.queues.insert(key, id);
        }
        self.generation += 1;
        self.renew_queue_barrier(id);
        self.find_stored(id);
        self.schedule(id);
        Ok(id)
    }

    fn renew_queue_barrier(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        let (old, settings) = (queue.barrier.take(), queue.settings.barrier.clone());
        let barrier = self.renew_barrier(old, settings);
        if let Some(queue) = self.queues.get_mut(id) {
            queue.barrier = barrier;
        }
    }

    pub fn delete_queue(&mut self, vhost: &str, name: &str) -> Result<(), Unknown> {
        let id = self.vhost_named(vhost)?;
        let queue = self.find_queue(id, name.as_bytes()).ok_or_else(|| unknown("queue", name))?;
        self.drop_queue(queue);
        Ok(())
    }

    fn drop_queue(&mut self, id: QueueId) {
        self.drop_bindings(Dest::Queue(id));
        if self.watched {
            let members = self.queues.get(id).map(|queue| queue.ring.members()).into_iter().flatten();
            members.collect::<Vec<_>>().into_iter().for_each(|consumer| self.tell_consumer(consumer, false));
        }
        let deleted = Fate::refused(condition::RESOURCE_DELETED, "the queue was deleted");
        self.redeem_from(id, 0, &[], &deleted);
        let Some(queue) = self.queues.remove(id) else { return };
        if let Some(vhost) = self.vhosts.get_mut(queue.vhost) {
            vhost.queues.remove(&queue.name);
        }
        self.forget_queue(queue.settings.number);
        if let Some(stream) = &queue.stream {
            self.forget_offsets(&stream.trackers);
        }
        for consumer in queue.ring.members() {
            let consumer = self.consumers.remove(consumer);
            consumer.iter().for_each(|consumer| self.end_reading(consumer));
            self.cancelled.extend(consumer);
        }
        self.generation += 1;
    }

    /// Resolves the two ends of a binding.
    fn row(&self, spec: &BindingSpec) -> Result<BindingRow, Unknown> {
        let vhost = self.vhost_named(&spec.vhost)?;
        let source =
            self.find_exchange(vhost, spec.source.as_bytes()).ok_or_else(|| unknown("exchange", &spec.source))?;
        let name = spec.destination.as_bytes();
        let dest = match spec.kind {
            Resource::Queue => self.find_queue(vhost, name).map(Dest::Queue),
            Resource::Exchange => self.find_exchange(vhost, name).map(Dest::Exchange),
        };
        let dest = dest.ok_or_else(|| unknown("destination", &spec.destination))?;
        let routing_key = spec.routing_key.as_bytes().into();
        Ok(BindingRow { source, dest, routing_key, arguments: spec.arguments.clone() })
    }

    /// bind(source, topic, target); a second time changes nothing.
    pub fn bind(&mut self, spec: &BindingSpec) -> Result<(), Unknown> {
        let row = self.row(spec)?;
        let seed = self.seed;
        let known = self.bindings.entry(row.source).or_insert_with(|| Map::with_hasher(seed));
        if known.insert(row.clone(), ()).is_some() {
            return Ok(());
        }
        let arguments = Table::parse(&row.arguments).unwrap_or(Table::EMPTY);
        if let Some(exchange) = self.exchanges.get_mut(row.source) {
            exchange.bind(&mut self.matches, &row.routing_key, arguments, row.dest);
            self.headers_bound += usize::from(exchange.reads_headers());
        }
        self.bound.entry(row.dest).or_insert_with(|| Map::with_hasher(seed)).insert(row, ());
        self.generation += 1;
        Ok(())
    }

    /// unbind(source, topic, target); what is not bound stays unbound.
    pub fn unbind(&mut self, spec: &BindingSpec) -> Result<(), Unknown> {
        let row = self.row(spec)?;
        self.drop_row(&row);
        Ok(())
    }

    /// Messages that matched a binding; None if there is no such binding.
    pub fn matched(&mut self, spec: &BindingSpec) -> Option<u64> {
        let row = self.row(spec).ok()?;
        let arguments = Table::parse(&row.arguments).unwrap_or(Table::EMPTY);
        let id = self.exchanges.get(row.source)?.match_id(&row.routing_key, arguments, row.dest)?;
        Some(self.matches.get(id))
    }

    fn drop_row(&mut self, row: &BindingRow) {
        let Some(rows) = self.bindings.get_mut(&row.source) else { return };
        if rows.remove(row).is_none() {
            return;
        }
        if rows.is_empty() {
            self.bindings.remove(&row.source);
        }
        let arguments = Table::parse(&row.arguments).unwrap_or(Table::EMPTY);
        if let Some(exchange) = self.exchanges.get_mut(row.source) {
            exchange.unbind(&mut self.matches, &row.routing_key, arguments, row.dest);
            self.headers_bound -= usize::from(exchange.reads_headers());
        }
        if let Some(rows) = self.bound.get_mut(&row.dest) {
            rows.remove(row);
            if rows.is_empty() {
                self.bound.remove(&row.dest);
            }
        }
        self.generation += 1;
    }

    fn drop_bindings(&mut self, dest: Dest) {
        let rows = self.bound.get(&dest).cloned().unwrap_or_default();
        rows.keys().for_each(|row| self.drop_row(row));
    }

    /// A user in a virtual host; what was granted before is forgotten.
    pub fn set_principal(
        &mut self,
        id: u32,
        user: &str,
        vhost: &str,
        impersonate: bool,
        topics: Topics,
        channels_max: Option<u32>,
    ) -> Result<(), Unknown> {
        let vhost = self.vhost_named(vhost)?;
        let quota = self.quota_of(user);
        quota.bound(channels_max);
        let user = Rc::from(user.as_bytes());
        self.principals.insert(id, Principal::new(user, vhost, impersonate, topics, quota, self.seed));
        self.generation += 1;
        Ok(())
    }

    pub fn revoke(&mut self, id: u32) {
        if let Some(principal) = self.principals.get_mut(&id) {
            principal.grants.iter_mut().for_each(Map::clear);
            principal.addresses.clear();
        }
        self.generation += 1;
    }

    /// Remembers an answer and wakes those who waited for it.
    pub fn grant(
        &mut self,
        id: u32,
        access: Access,
        kind: Resource,
        name: &str,
        permit: Permit,
    ) -> Result<(), Unknown> {
        let most = self.limits.addresses_max;
        let principal = self.principals.get_mut(&id).ok_or_else(|| unknown("principal", &id.to_string()))?;
        let grants = &mut principal.grants[Principal::slot(access, kind)];
        if grants.len() >= most {
            grants.clear();
        }
        grants.insert(Rc::from(name.as_bytes()), permit);
        self.answered.push(id);
        Ok(())
    }

    /// Remembers where an address leads and wakes those who waited for it.
    pub fn set_address(&mut self, id: u32, address: &str, route: Route) -> Result<(), Unknown> {
        let most = self.limits.addresses_max;
        let principal = self.principals.get_mut(&id).ok_or_else(|| unknown("principal", &id.to_string()))?;
        if principal.addresses.len() >= most {
            principal.addresses.clear();
        }
        principal.addresses.insert(Rc::from(address.as_bytes()), route);
        self.answered.push(id);
        Ok(())
    }
}
