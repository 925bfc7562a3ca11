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
            if filter.is_none() && self.broker.spans.is_none() {
                let count = self.serve_run((consumer_id, target, conn), lane, *left);
                *left -= count;
                if count > 0 {
                    continue;
                }
            }
            let stream = self.broker.queues.get(id)?.stream.as_deref()?;
            let (offset, message) = lane.take(stream, &self.broker.own_account)?;
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

    /// What came from disk, as it lies there; how many.
    fn serve_run(
        &mut self,
        (consumer_id, target, conn_id): (ConsumerId, Target, ConnId),
        lane: &mut Lane,
        count_max: usize,
    ) -> usize {
        let (id, reader) = (lane.stream, lane.tracker + 1);
        let Some(stream) = self.broker.queues.get(id).and_then(|queue| queue.stream.as_deref()) else { return 0 };
        let Some(conn) = self.conns.get_mut(conn_id) else { return 0 };
        let visible = stream.visible();
        let (count_max, before) = (count_max.min(self.broker.work_left as usize), conn.io.output.len());
        let messages = lane.run(visible).take(count_max);
        let count = conn.session.deliver_stored(&mut conn.io, self.broker, target, (id, reader), messages);
        if count == 0 {
            return 0;
        }
        conn.io.messages_out += count as u64;
        *self.output_bytes += conn.io.output.len() - before;
        if !std::mem::replace(&mut conn.io.listed, true) {
            self.written.push(conn_id);
        }
        self.broker.track_all(id, reader, lane.run(visible).take(count).map(|stored| stored.position));
        lane.pass(count);
        self.broker.spend(count as u32);
        self.broker.note_unwaited(count as u64);
        self.broker.totals.delivered += count as u64;
        if let Some(consumer) = self.broker.consumers.get_mut(consumer_id) {
            consumer.delivered += count as u64;
        }
        if let Some(queue) = self.broker.queues.get_mut(id) {
            queue.unsettled += count;
            queue.counters.delivered += count as u64;
        }
        count
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
