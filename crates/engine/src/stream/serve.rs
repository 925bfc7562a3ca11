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

use super::reader::{Lane, Place, Reader};

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
            let end = self.serve((consumer_id, target, conn), &mut reader, filter.as_deref());
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
        (consumer_id, target, conn): (ConsumerId, Target, ConnId),
        reader: &mut Reader,
        filter: Option<&Filter>,
    ) -> End {
        let mut idle = 0;
        let mut left = RUN;
        while idle < reader.lanes.len() {
            let turn = reader.turn % reader.lanes.len();
            match self.serve_lane((consumer_id, target, conn), (turn, &mut reader.lanes[turn]), filter, &mut left) {
                Some(end) => return end,
                None => {
                    reader.turn = turn + 1;
                    idle += 1;
                }
            }
            if left == 0 {
                return End::Turn;
            }
        }
        End::Waits
    }

    /// A run of messages from one stream; None when there are no more now, or enough.
    fn serve_lane(
        &mut self,
        (consumer_id, target, conn): (ConsumerId, Target, ConnId),
        (at, lane): (usize, &mut Lane),
        filter: Option<&Filter>,
        left: &mut usize,
    ) -> Option<End> {
        if lane.place != Place::Found {
            return None;
        }
        let id = lane.stream;
        self.broker.read_ahead(consumer_id, at, lane);
        while *left > 0 {
            if self.broker.work_left == 0 {
                return Some(End::Turn);
            }
            let readiness = self.readiness(target, conn);
            if readiness != Readiness::Ready {
                return Some(End::Full(readiness));
            }
            let stream = self.broker.queues.get(id)?.stream.as_deref()?;
            let (offset, message) = lane.take(stream)?;
            *left -= 1;
            self.broker.spend(1);
            let entry = entry(message, offset, lane.tracker + 1, self.broker.now_ns);
            if filter.is_some_and(|filter| !filter.wants(&entry)) {
                continue;
            }
            self.broker.track(id, &entry);
            if let Some(consumer) = self.broker.consumers.get_mut(consumer_id) {
                consumer.delivered += 1;
            }
            self.hand_read(id, target, conn, entry);
        }
        None
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
