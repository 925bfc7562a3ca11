//! Readers get their messages: the pump of streams.
//!
//! Owns the turn of each reader of a stream. A stream that has something for somebody comes in from `delivery.rs`;
//! each reader gets a run of messages while it can take them, then the next reader has its turn. It must never take
//! anything out of a stream, nor let one reader hold up another. Rule: queue/consumers.rs (whose turn it is); a reader
//! at the end, or one that waits for the disk, sleeps until there is more.

use std::rc::Rc;

use crate::conn::ConnId;
use crate::delivery::Pump;
use crate::filter::Filter;
use crate::message::Message;
use crate::queue::QueueId;
use crate::queue::consumers::{ConsumerId, Target};
use crate::queue::ready::{Entry, NEVER};
use crate::session::Readiness;

use super::reader::{Place, Reader};

/// Messages that one reader gets, or that its filter passes over, before the next one has its turn.
const RUN: usize = 256;

/// Why a run ended.
enum End {
    /// Others have their turn.
    Turn,
    /// It cannot take more now.
    Full(Readiness),
    /// There is no more for it now.
    Waits,
}

impl Pump<'_> {
    /// Serves the readers of a stream while the budget lasts.
    pub(crate) fn read_stream(&mut self, id: QueueId) {
        let start = self.broker.work_left;
        loop {
            let Some(queue) = self.broker.queues.get_mut(id) else { return };
            let Some(consumer_id) = queue.ring.next() else { return };
            let Some(consumer) = self.broker.consumers.get_mut(consumer_id) else {
                queue.ring.leave(consumer_id);
                continue;
            };
            let (target, conn) = (consumer.target, ConnId::from_raw(consumer.conn));
            let (Some(mut reader), filter) = (consumer.reader.take(), consumer.filter.take()) else {
                queue.ring.sleep(consumer);
                continue;
            };
            let end = self.serve(id, (consumer_id, target, conn), &mut reader, filter.as_deref());
            let (Some(queue), Some(consumer)) =
                (self.broker.queues.get_mut(id), self.broker.consumers.get_mut(consumer_id))
            else {
                return;
            };
            (consumer.reader, consumer.filter) = (Some(reader), filter);
            match end {
                End::Turn => queue.ring.rotate(),
                End::Waits => queue.ring.park_searched(consumer_id, consumer),
                End::Full(readiness) => self.put_to_sleep(id, consumer_id, readiness),
            }
            if self.broker.work_left == 0 || start - self.broker.work_left > self.broker.limits.work_max / 8 {
                return self.broker.touch(id);
            }
        }
    }

    /// A run of messages for one reader.
    fn serve(
        &mut self,
        id: QueueId,
        (consumer_id, target, conn): (ConsumerId, Target, ConnId),
        reader: &mut Reader,
        filter: Option<&Filter>,
    ) -> End {
        if reader.place != Place::Found {
            return End::Waits;
        }
        self.broker.read_ahead(consumer_id, id, reader);
        for _ in 0..RUN {
            if self.broker.work_left == 0 {
                return End::Turn;
            }
            let readiness = self.readiness(target, conn);
            if readiness != Readiness::Ready {
                return End::Full(readiness);
            }
            let Some(stream) = self.broker.queues.get(id).and_then(|queue| queue.stream.as_deref()) else {
                return End::Waits;
            };
            let Some((offset, message)) = reader.take(stream) else { return End::Waits };
            self.broker.spend(1);
            let entry = entry(message, offset, reader.tracker + 1, self.broker.now_ns);
            if filter.is_some_and(|filter| !filter.wants(&entry)) {
                continue;
            }
            self.broker.track(id, &entry);
            self.hand_read(id, target, conn, entry);
        }
        End::Turn
    }
}

/// The envelope of a message on its way to a reader.
fn entry(message: Rc<Message>, offset: u64, reader: u16, now_ns: u64) -> Entry {
    Entry {
        message,
        position: offset,
        expires_ns: NEVER,
        since_ns: now_ns,
        failures: 0,
        redelivered: false,
        stored: false,
        reader,
    }
}
