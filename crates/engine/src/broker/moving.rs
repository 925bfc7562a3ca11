//! Messages change their queue because an operator said so.
//!
//! Owns purging and moving by name: to an exchange with a key, or back to where a dead letter died first. Names and a
//! count come in; how many went comes out. It must never lose a message on the way: one that nobody takes goes back to
//! its place and ends the move. Rule: what one call moves is one unit in the journal, there or here after a crash.

use std::rc::Rc;

use super::{Broker, Fate, Unknown};
use crate::message::{Message, Name};
use crate::queue::QueueId;
use crate::queue::ready::Entry;
use crate::routing::ExchangeId;

/// Messages that one call may move before others get their turn.
pub const MOVE_COUNT_MAX: usize = 1_000;

/// What a move did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub count: usize,
    /// The next one is on its way from the disk: ask again soon.
    pub waits: bool,
    /// The next one found no queue that takes it.
    pub refused: bool,
}

impl Broker {
    fn queue_named(&self, vhost: &str, queue: &str) -> Result<QueueId, Unknown> {
        let found = self.find_vhost(vhost.as_bytes()).and_then(|vhost| self.find_queue(vhost, queue.as_bytes()));
        found.ok_or_else(|| Unknown(format!("no queue '{queue}' in vhost '{vhost}'")))
    }

    /// Drops what is ready in a queue; how many.
    pub fn purge_named(&mut self, vhost: &str, queue: &str) -> Result<usize, Unknown> {
        let id = self.queue_named(vhost, queue)?;
        Ok(self.purge(id))
    }

    /// Moves up to `count` ready messages to an exchange and key, or without `to` back to where they died first.
    pub fn move_messages(
        &mut self,
        vhost: &str,
        queue: &str,
        to: Option<(&str, &str)>,
        count: usize,
    ) -> Result<Moved, Unknown> {
        let id = self.queue_named(vhost, queue)?;
        let to = to.map(|(exchange, key)| (Name::from(exchange.as_bytes()), Name::from(key.as_bytes())));
        let ready = self.queues.get(id).map_or(0, |queue| queue.len());
        let mut moved = Moved::default();
        self.begin();
        self.moving = true;
        while moved.count < count.min(ready).min(MOVE_COUNT_MAX) {
            if self.is_coming(id) {
                moved.waits = true;
                break;
            }
            let Some(entry) = self.queues.get_mut(id).and_then(|queue| queue.ready.pop_front()) else { break };
            match self.send_on(id, &entry, to.as_ref()) {
                true => {
                    moved.count += 1;
                    if entry.stored {
                        self.forget(id, entry.position);
                    }
                    self.redeem(id, entry.position, Fate::default);
                }
                false => {
                    moved.refused = true;
                    self.put_back(id, entry);
                    break;
                }
            }
        }
        self.moving = false;
        self.commit();
        self.schedule(id);
        self.when_empty(id);
        Ok(moved)
    }

    /// Publishes a message of a queue anew; false if nobody took it.
    fn send_on(&mut self, id: QueueId, entry: &Entry, to: Option<&(Name, Name)>) -> bool {
        let Some(vhost) = self.queues.get(id).map(|queue| queue.vhost) else { return false };
        let Some((exchange_name, key)) = to.cloned().or_else(|| origin(&entry.message)) else { return false };
        let Some(exchange): Option<ExchangeId> = self.find_exchange(vhost, &exchange_name) else { return false };
        let message = &entry.message;
        let letter = Rc::new(message.relabel((exchange_name, key), message.traits, message.deaths.clone()));
        let published = self.publish(exchange, &letter, &[]);
        published.queues > 0 && !published.rejected
    }
}

/// The queue that a dead letter first died in, as the default exchange knows it.
fn origin(message: &Message) -> Option<(Name, Name)> {
    let deaths = match &message.deaths {
        Some(deaths) => deaths.to_vec(),
        None => crate::fields::deaths(message),
    };
    deaths.last().map(|death| (Name::from(&b""[..]), Rc::clone(&death.queue)))
}
