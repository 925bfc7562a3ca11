//! A stream's messages on their way to a reader, many at a time.
//!
//! Owns the short way from what the disk gave to frames: most messages of a stream look like the one before but for
//! their body, so the frames around it are made once and copied with another tag and offset. Stored messages come in,
//! frames go out; nothing is decoded that the last one told already. It must never take more than prefetch, flow and
//! output allow. Rules: decision 0035 (most messages look like the one before), content.rs for those that do not.

use weft_journal::{Envelope, Stored};
use weft_wire::amqp091::encode_deliver;

use super::Session;
use super::content::{Told, put_header, write_body, write_read};
use super::runs::Run;
use crate::broker::Broker;
use crate::conn::Io;
use crate::queue::QueueId;
use crate::record;

/// The frames before a body, as they were for the last message.
#[derive(Default)]
struct Alike<'m> {
    head: Option<&'m [u8]>,
    body_len: usize,
    frames: Vec<u8>,
    /// Where the delivery tag and the offset stand in them.
    tag_at: usize,
    offset_at: usize,
}

/// Where the frames go.
struct Place<'a> {
    channel: u16,
    consumer_tag: &'a [u8],
    part: Option<u32>,
}

impl<'m> Alike<'m> {
    /// Makes these frames fit a message; false if it needs more than its place put into its properties.
    #[inline]
    fn fit(&mut self, place: &Place<'_>, stored: &Stored<'m>) -> bool {
        let is_alike = self.head.is_some_and(|head| Envelope::is_alike(head, stored.head));
        is_alike && self.body_len == stored.body.len() || self.make(place, stored)
    }

    fn make(&mut self, place: &Place<'_>, stored: &Stored<'m>) -> bool {
        self.head = None;
        let Some(envelope) = Envelope::decode(stored.head) else { return false };
        if envelope.is_amqp10 || !envelope.deaths.is_empty() {
            return false;
        }
        self.frames.clear();
        let (tag, channel) = (place.consumer_tag, place.channel);
        self.tag_at = encode_deliver(&mut self.frames, channel, tag, 0, false, envelope.exchange, envelope.routing_key);
        let told = Told { failures: None, offset: Some(0), part: place.part };
        let Some(offset_at) = put_header(&mut self.frames, channel, envelope.own, stored.body.len(), told) else {
            return false;
        };
        (self.head, self.body_len, self.offset_at) = (Some(stored.head), stored.body.len(), offset_at);
        true
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>, tag: u64, offset: u64) {
        let start = out.len();
        out.extend_from_slice(&self.frames);
        for (at, number) in [(self.tag_at, tag), (self.offset_at, offset)] {
            out[start + at..start + at + size_of::<u64>()].copy_from_slice(&number.to_be_bytes());
        }
    }
}

impl Session {
    /// Delivers messages of a stream, as they were stored, while they can be taken and read; how many. None to a
    /// consumer that does not acknowledge: `deliver` settles its messages.
    pub fn deliver_stored<'m>(
        &mut self,
        io: &mut Io,
        broker: &Broker,
        (number, slot): (u16, u32),
        (queue, reader): (QueueId, u16),
        messages: impl Iterator<Item = Stored<'m>>,
    ) -> usize {
        let frame_max = self.frame_max;
        let Some(channel) = self.channel(number).filter(|channel| !channel.stopped) else { return 0 };
        let Some(Some(tap)) = channel.taps.get_mut(slot as usize) else { return 0 };
        if tap.no_ack {
            return 0;
        }
        let left = |limit: u16, inflight: u32| match limit {
            0 => usize::MAX,
            limit => u32::from(limit).saturating_sub(inflight) as usize,
        };
        let credit = left(channel.limit, channel.inflight).min(left(tap.prefetch, tap.inflight));
        let part = broker.queues.get(queue).and_then(|queue| queue.settings.part);
        let place = Place { channel: number, consumer_tag: &tap.tag, part };
        let (mut alike, mut names) = (Alike::default(), record::Names::default());
        let mut count = 0;
        let mut messages = messages.take(credit);
        while io.has_room(broker.limits.output_bytes_max) {
            let Some(stored) = messages.next() else { break };
            let tag = channel.unacked.next_tag();
            if alike.fit(&place, &stored) {
                alike.write(&mut io.output, tag, stored.position);
                write_body(&mut io.output, number, frame_max, stored.body);
            } else if let Some(message) = record::decode(stored.head, stored.body, &broker.own_account, &mut names) {
                let (exchange, key) = (&message.exchange, &message.routing_key);
                encode_deliver(&mut io.output, number, place.consumer_tag, tag, false, exchange, key);
                write_read(&mut io.output, number, frame_max, &message, stored.position, part);
            } else {
                break;
            }
            count += 1;
            channel.unacked.hold_read(Run { tag, count: 1, queue, offset: stored.position, reader, tap: slot });
        }
        tap.inflight += count;
        channel.inflight += count;
        count as usize
    }
}
