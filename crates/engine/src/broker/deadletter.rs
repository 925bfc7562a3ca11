//! Messages that could not be delivered, and where they go next.
//!
//! Owns the death record and the way from a queue to its dead-letter exchange. Entries that a queue or a consumer gave
//! up come in; they leave as new envelopes around the same letter, with the record beside it. It must never copy a body
//! or rewrite a head: sessions write the record out as `x-death` or as an annotation. Rules: RabbitMQ's dead lettering,
//! its cycle detection included.

use std::rc::Rc;

use super::Broker;
use crate::fields;
use crate::message::{Message, Name, Traits};
use crate::queue::QueueId;
use crate::queue::ready::Entry;

/// Different deaths that one message may die. After these it is forgotten: a record cut short could hide a cycle.
const DEATHS_MAX: usize = 64;

/// Why a message left its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Rejected,
    Expired,
    MaxLen,
    DeliveryLimit,
}

impl Reason {
    /// The reason that a word stands for.
    pub fn from_word(word: &[u8]) -> Option<Self> {
        [Self::Rejected, Self::Expired, Self::MaxLen, Self::DeliveryLimit]
            .into_iter()
            .find(|reason| reason.word().as_bytes() == word)
    }

    /// The word that clients know.
    pub fn word(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::MaxLen => "maxlen",
            Self::DeliveryLimit => "delivery_limit",
        }
    }
}

/// One line of a message's death record: newest first, one per queue and reason.
#[derive(Clone, Debug)]
pub struct Death {
    pub queue: Name,
    pub reason: Reason,
    pub count: u64,
    pub time_s: u64,
    pub exchange: Name,
    pub routing_keys: Vec<Name>,
    /// The time to live that the message had, if it had one: it is taken away, so that it dies only once of it.
    pub expiration_ms: Option<u64>,
}

/// A message that left a queue for good and may go to its dead letters.
#[derive(Debug)]
pub(super) struct Dying {
    pub queue: QueueId,
    pub message: Rc<Message>,
    pub reason: Reason,
    /// Its position in the queue, if it was in it.
    pub position: Option<u64>,
    /// It is on disk: forgotten once it has been sent on.
    pub stored: bool,
}

impl Dying {
    pub(super) fn new(queue: QueueId, entry: Entry, reason: Reason) -> Self {
        Self { queue, message: entry.message, reason, position: Some(entry.position), stored: entry.stored }
    }
}

impl Broker {
    /// Buries what died, while the budget lasts. Where queues are `pumped`, a limited one that wants it has its turn
    /// before the next dead letter is offered to it.
    pub fn bury(&mut self, pumped: bool) {
        self.pump_first = false;
        while let Some(dying) = self.dying.pop_front() {
            self.totals.expired += u64::from(dying.reason == Reason::Expired);
            self.dead_letter_copy(dying.queue, &dying.message, dying.reason);
            if let Some(position) = dying.position {
                self.redeem_dead(dying.queue, position, dying.reason);
                if dying.stored {
                    self.forget(dying.queue, position);
                }
            }
            self.spend(1);
            if self.work_left == 0 || pumped && self.pump_first {
                break;
            }
        }
    }

    /// Is there something left to bury?
    pub fn has_dying(&self) -> bool {
        !self.dying.is_empty()
    }

    /// Sends a message of `id` to the queue's dead-letter exchange, if there is one.
    fn dead_letter_copy(&mut self, id: QueueId, message: &Rc<Message>, reason: Reason) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        let Some(exchange_name) = queue.settings.dead_letter_exchange.clone() else { return };
        let own_key = queue.settings.dead_letter_key.clone();
        let (vhost, queue_name) = (queue.vhost, Rc::clone(&queue.name));
        queue.counters.dead_lettered += 1;
        let Some(exchange) = self.find_exchange(vhost, &exchange_name) else { return };
        let Some(deaths) = add_death(message, queue_name, reason, self.wall_ns / 1_000_000_000) else { return };
        // A key of the queue's own is the only key from now on.
        let copied = message.traits.copied && own_key.is_none();
        // This node publishes it anew: wherever it came from, it may go back there.
        let (_, serial) = self.stamp();
        let traits = Traits { ttl_ms: None, delivery_count: 0, copied, relayed: false, serial, ..message.traits };
        let routing_key = own_key.unwrap_or_else(|| Rc::clone(&message.routing_key));
        let letter = Rc::new(message.relabel((exchange_name, routing_key), traits, Some(deaths)));
        let more_keys = if copied { fields::copy_keys(&letter) } else { Vec::new() };
        let mut targets = self.route_of(exchange, &letter, &more_keys);
        self.matches.count();
        if reason != Reason::Rejected {
            let deaths = letter.deaths.as_deref().unwrap_or_default();
            targets.retain(|target| !self.queues.get(*target).is_some_and(|queue| is_cycle(&queue.name, deaths)));
        }
        self.totals.dead_lettered += 1;
        self.deliver_to(exchange, &targets, &letter);
        self.recycle_route(targets);
    }
}

fn add_death(message: &Message, queue: Name, reason: Reason, time_s: u64) -> Option<Rc<[Death]>> {
    let mut deaths: Vec<Death> = match &message.deaths {
        Some(deaths) => deaths.to_vec(),
        None => fields::deaths(message),
    };
    let known = deaths.iter().position(|death| death.queue == queue && death.reason == reason);
    let death = match known {
        Some(at) => {
            let old = deaths.remove(at);
            Death { count: old.count + 1, time_s, ..old }
        }
        None if deaths.len() >= DEATHS_MAX => return None,
        None => Death {
            queue,
            reason,
            count: 1,
            time_s,
            exchange: Rc::clone(&message.exchange),
            routing_keys: {
                let copies = if message.traits.copied { fields::copy_keys(message) } else { Vec::new() };
                let copies = copies.into_iter().map(Name::from);
                std::iter::once(Rc::clone(&message.routing_key)).chain(copies).collect()
            },
            expiration_ms: message.traits.ttl_ms,
        },
    };
    deaths.insert(0, death);
    Some(Rc::from(deaths))
}

/// Did the message die in this queue before, and was never rejected by a consumer since? Then it would go round for
/// ever.
fn is_cycle(queue: &[u8], deaths: &[Death]) -> bool {
    match deaths.iter().position(|death| *death.queue == *queue) {
        Some(at) => deaths[..=at].iter().all(|death| death.reason != Reason::Rejected),
        None => false,
    }
}
