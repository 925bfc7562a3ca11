//! AMQP 1.0 (being written).
use super::{Answer, Described, Readiness};
use crate::broker::Broker;
use crate::conn::Io;
use crate::queue::QueueId;
use crate::queue::ready::Entry;
pub struct Session;
impl Session {
    pub fn start(_header: &[u8; 8], _io: &mut Io, _broker: &mut Broker) -> Option<Self> {
        None
    }
    pub fn receive(&mut self, _io: &mut Io, data: &[u8], _broker: &mut Broker) -> usize {
        data.len()
    }
    pub fn answer(&mut self, _io: &mut Io, _broker: &mut Broker, _answer: Answer) {}
    pub fn readiness(&mut self, _io: &Io, _broker: &Broker, _number: u16, _handle: u32) -> Readiness {
        Readiness::NoCredit
    }
    pub fn deliver(
        &mut self,
        _io: &mut Io,
        _broker: &mut Broker,
        _place: (u16, u32),
        _queue: QueueId,
        entry: Entry,
    ) -> Option<Entry> {
        Some(entry)
    }
    pub fn cancelled(&mut self, _io: &mut Io, _broker: &mut Broker, _number: u16, _handle: u32) {}
    pub fn flushed(&mut self, _io: &mut Io, _broker: &mut Broker) {}
    pub fn tick(&mut self, _io: &mut Io, _broker: &mut Broker) -> Option<u64> {
        None
    }
    pub fn blocked(&mut self, _io: &mut Io, _broker: &mut Broker, _blocked: bool) {}
    pub fn close(&mut self, _io: &mut Io, _broker: &mut Broker, _code: u16, _text: &str) {}
    pub fn lost(&mut self, _io: &mut Io, _broker: &mut Broker) {}
    pub fn describe(&self) -> Described {
        Described { protocol: "AMQP 1.0", channels: 0, consumers: Vec::new() }
    }
}
