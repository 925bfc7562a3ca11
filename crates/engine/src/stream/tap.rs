//! Taps: streams that get a copy of what an exchange routes, or a queue is offered, and change nothing.
//!
//! Owns how a route names those who only watch: behind all queues, after a mark. The taps that a message came by come
//! in; their streams get it as one more target of the same record. A tap must never be counted as a place that a
//! message was routed to, nor hold a confirm back. Rule: docs/guides/streams.md, "Taps".

use std::rc::Rc;

use crate::broker::{Broker, VhostId};
use crate::message::{Message, Name};
use crate::queue::QueueId;

/// In a list of queues that a message goes to: what comes behind this only watches.
fn is_mark(id: QueueId) -> bool {
    id.raw() == 0
}

/// The queues of a route, and those who watch.
#[inline]
pub(crate) fn split(targets: &[QueueId]) -> (&[QueueId], &[QueueId]) {
    match targets.iter().position(|id| is_mark(*id)) {
        None => (targets, &[]),
        Some(at) => (&targets[..at], &targets[at..]),
    }
}

impl Broker {
    /// Adds the streams of these taps to a route, each once, unless the message goes there anyway.
    pub(crate) fn add_watchers(&mut self, targets: &mut Vec<QueueId>, taps: &[(VhostId, Name)], mark: u64) {
        let start = targets.len();
        for (vhost, name) in taps {
            let Some(id) = self.find_queue(*vhost, name) else { continue };
            let Some(queue) = self.queues.get_mut(id).filter(|queue| queue.stream.is_some()) else { continue };
            if std::mem::replace(&mut queue.mark, mark) != mark {
                if targets.len() == start {
                    targets.push(QueueId::from_raw(0));
                }
                targets.push(id);
            }
        }
    }

    /// Those who watch get the message as well.
    pub(crate) fn show_watchers(&mut self, watchers: &[QueueId], message: &Rc<Message>) {
        for id in watchers {
            if let Some(part) = self.part_of(*id, message) {
                self.append(part, message, true);
            }
        }
    }
}
