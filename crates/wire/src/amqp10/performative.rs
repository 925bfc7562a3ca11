//! The nine performatives of the transport, read from and written into AMQP frames.
//!
//! Owns the choice by descriptor; what each has in it is generated. A frame body comes in, and the performative with
//! the payload behind it goes out; a performative comes in, and a frame is appended. Only a transfer has a payload.
//! It must never remember a frame. Rules: AMQP 1.0 part 2, section 2.7.

use super::composite::Composite;
use super::error::DecodeError;
use super::frame::{FrameKind, begin_frame, end_frame};
use super::generated::{Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer, descriptor};
use super::reader::Reader;

/// One performative; the two largest are boxed, as they are among the rarest.
#[derive(Clone, Debug, PartialEq)]
pub enum Performative<'a> {
    Open(Box<Open<'a>>),
    Begin(Begin<'a>),
    Attach(Box<Attach<'a>>),
    Flow(Flow<'a>),
    Transfer(Transfer<'a>),
    Disposition(Disposition<'a>),
    Detach(Detach<'a>),
    End(End<'a>),
    Close(Close<'a>),
}

impl<'a> Performative<'a> {
    /// Reads a frame body that is not empty: the performative, and the payload that follows it.
    pub fn decode(body: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let mut reader = Reader::new(body);
        let (code, list) = (reader.descriptor()?, reader.list()?);
        let payload = reader.rest();
        if code != descriptor::TRANSFER && !payload.is_empty() {
            return Err(DecodeError::Trailing);
        }
        match code {
            descriptor::OPEN => Open::from_list(list).map(|open| (Self::Open(Box::new(open)), payload)),
            descriptor::BEGIN => Begin::from_list(list).map(|begin| (Self::Begin(begin), payload)),
            descriptor::ATTACH => Attach::from_list(list).map(|attach| (Self::Attach(Box::new(attach)), payload)),
            descriptor::FLOW => Flow::from_list(list).map(|flow| (Self::Flow(flow), payload)),
            descriptor::TRANSFER => Transfer::from_list(list).map(|transfer| (Self::Transfer(transfer), payload)),
            descriptor::DISPOSITION => Disposition::from_list(list).map(|state| (Self::Disposition(state), payload)),
            descriptor::DETACH => Detach::from_list(list).map(|detach| (Self::Detach(detach), payload)),
            descriptor::END => End::from_list(list).map(|end| (Self::End(end), payload)),
            descriptor::CLOSE => Close::from_list(list).map(|close| (Self::Close(close), payload)),
            _ => Err(DecodeError::Descriptor),
        }
    }
}

/// Appends a whole AMQP frame that holds `performative` and no payload.
pub fn encode<'a>(out: &mut Vec<u8>, channel: u16, performative: &impl Composite<'a>) {
    let mark = begin_frame(out, FrameKind::Amqp, channel);
    performative.encode(out);
    end_frame(out, mark);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp10::frame::{self, MIN_MAX_FRAME_SIZE};
    use crate::amqp10::samples::{CLIENT_FRAMES, SERVER_FRAMES, bodies, bytes, damage};
    use crate::amqp10::*;

    /// Writes a performative as a frame of its own.
    fn write(performative: &Performative<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        match performative {
            Performative::Open(open) => encode(&mut out, 7, &**open),
            Performative::Begin(begin) => encode(&mut out, 7, begin),
            Performative::Attach(attach) => encode(&mut out, 7, &**attach),
            Performative::Flow(flow) => encode(&mut out, 7, flow),
            Performative::Transfer(transfer) => encode(&mut out, 7, transfer),
            Performative::Disposition(disposition) => encode(&mut out, 7, disposition),
            Performative::Detach(detach) => encode(&mut out, 7, detach),
            Performative::End(end) => encode(&mut out, 7, end),
            Performative::Close(close) => encode(&mut out, 7, close),
        }
        out
    }

    /// Writes, splits and reads a performative; no part of it may be mistaken for the whole.
    fn round_trip(performative: Performative<'_>) -> Vec<u8> {
        let out = write(&performative);
        let frame = frame::split(&out, MIN_MAX_FRAME_SIZE).unwrap().unwrap();
        assert_eq!((frame.channel, frame.size), (7, out.len()));
        assert_eq!(Performative::decode(frame.body), Ok((performative, &[][..])));
        for cut in 0..frame.body.len() {
            assert_eq!(Performative::decode(&frame.body[..cut]), Err(DecodeError::Truncated));
        }
        frame.body.to_vec()
    }

    #[test]
    fn connection_and_session_performatives_round_trip() {
        let mut map = MapBuf::new();
        map.put(Value::Symbol("product"), Value::String("weft"));
        let (one, two) = ([Symbol("en-GB")], [Symbol("a"), Symbol("b")]);
        round_trip(Performative::Open(Box::new(Open {
            container_id: "c",
            hostname: Some("h"),
            max_frame_size: 65_536,
            channel_max: 255,
            idle_time_out: Some(30_000),
            outgoing_locales: Symbols::Slice(&one),
            incoming_locales: Symbols::One(one[0]),
            offered_capabilities: Symbols::Slice(&two),
            desired_capabilities: Symbols::Slice(&two),
            properties: Some(map.as_map()),
        })));
        let open = round_trip(Performative::Open(Box::new(Open { container_id: "c", ..Open::default() })));
        assert_eq!(open, b"\x00\x53\x10\xc0\x04\x01\xa1\x01c");
        round_trip(Performative::Begin(Begin {
            remote_channel: Some(3),
            next_outgoing_id: 1,
            incoming_window: 2,
            outgoing_window: 3,
            handle_max: 4,
            offered_capabilities: Symbols::Slice(&two),
            desired_capabilities: Symbols::Slice(&one),
            properties: Some(map.as_map()),
        }));
        let error =
            Error { condition: condition::CONNECTION_FORCED, description: Some("bye"), info: Some(map.as_map()) };
        round_trip(Performative::End(End { error: Some(error) }));
        round_trip(Performative::Close(Close { error: Some(error) }));
        assert_eq!(round_trip(Performative::Close(Close::default())), b"\x00\x53\x18\x45");
        round_trip(Performative::Detach(Detach { handle: 300, closed: true, error: Some(error) }));
    }

    #[test]
    fn an_attach_round_trips_with_either_target() {
        let mut map = MapBuf::new();
        map.put(Value::Symbol("k"), Value::Ulong(1));
        let names = [outcome_name::ACCEPTED, outcome_name::REJECTED];
        let source = Source {
            address: Some("/queues/q"),
            durable: TerminusDurability::UnsettledState,
            expiry_policy: TerminusExpiryPolicy::Never,
            timeout: 60,
            dynamic: true,
            dynamic_node_properties: Some(map.as_map()),
            distribution_mode: Some(DistributionMode::Copy),
            filter: Some(map.as_map()),
            default_outcome: Some(Outcome::Modified(Modified { delivery_failed: true, ..Modified::default() })),
            outcomes: Symbols::Slice(&names),
            capabilities: Symbols::Slice(&names),
        };
        let target = Target {
            address: Some("t"),
            durable: TerminusDurability::Configuration,
            expiry_policy: TerminusExpiryPolicy::ConnectionClose,
            timeout: 1,
            dynamic: true,
            dynamic_node_properties: Some(map.as_map()),
            capabilities: Symbols::Slice(&names),
        };
        let capability = [txn_capability::LOCAL_TRANSACTIONS];
        let coordinator = Coordinator { capabilities: Symbols::Slice(&capability) };
        let attach = Attach {
            name: "link",
            handle: 1,
            role: Role::Receiver,
            snd_settle_mode: SenderSettleMode::Settled,
            rcv_settle_mode: ReceiverSettleMode::Second,
            source: Some(source),
            target: Some(AttachTarget::Target(target)),
            unsettled: Some(map.as_map()),
            incomplete_unsettled: true,
            initial_delivery_count: Some(0),
            max_message_size: Some(1 << 40),
            offered_capabilities: Symbols::Slice(&names),
            desired_capabilities: Symbols::Slice(&names),
            properties: Some(map.as_map()),
        };
        round_trip(Performative::Attach(Box::new(attach)));
        let control = Attach { target: Some(AttachTarget::Coordinator(coordinator)), ..attach };
        round_trip(Performative::Attach(Box::new(control)));
        let bare = round_trip(Performative::Attach(Box::new(Attach { name: "l", ..Attach::default() })));
        assert_eq!(bare, b"\x00\x53\x12\xc0\x06\x03\xa1\x01l\x43\x42");
    }

    #[test]
    fn flow_transfer_and_disposition_round_trip() {
        round_trip(Performative::Flow(Flow {
            next_incoming_id: Some(u32::MAX),
            incoming_window: 2048,
            next_outgoing_id: 0,
            outgoing_window: 255,
            handle: Some(0),
            delivery_count: Some(9),
            link_credit: Some(100),
            available: Some(0),
            drain: true,
            echo: true,
            properties: None,
        }));
        let flow = Flow { incoming_window: 1, next_outgoing_id: 2, outgoing_window: 3, ..Flow::default() };
        assert_eq!(round_trip(Performative::Flow(flow)), b"\x00\x53\x13\xc0\x08\x04\x40\x52\x01\x52\x02\x52\x03");
        round_trip(Performative::Transfer(Transfer {
            handle: 1,
            delivery_id: Some(2),
            delivery_tag: Some(b"tag"),
            message_format: Some(0),
            settled: Some(false),
            more: true,
            rcv_settle_mode: Some(ReceiverSettleMode::Second),
            state: Some(DeliveryState::ACCEPTED),
            resume: true,
            aborted: true,
            batchable: true,
        }));
        let disposition = Disposition {
            role: Role::Receiver,
            first: 1,
            last: Some(4),
            settled: true,
            state: Some(DeliveryState::ACCEPTED),
            batchable: true,
        };
        let bytes = round_trip(Performative::Disposition(disposition));
        assert_eq!(bytes, b"\x00\x53\x15\xc0\x0c\x06\x41\x52\x01\x52\x04\x41\x00\x53\x24\x45\x41");
    }

    #[test]
    fn another_implementation_is_understood() {
        let open = bytes(CLIENT_FRAMES[0]);
        let Ok((Performative::Open(open), [])) = Performative::decode(&open[8..]) else { panic!("no open") };
        assert_eq!((open.container_id, open.hostname, open.max_frame_size), ("client", Some("host"), 32_768));
        assert!(open.offered_capabilities.iter().eq([Symbol("a"), Symbol("bb")]));
        assert_eq!(open.properties.unwrap().get("product"), Some(Value::String("p")));
        let attach = bytes(CLIENT_FRAMES[3]);
        let Ok((Performative::Attach(attach), [])) = Performative::decode(&attach[8..]) else { panic!("no attach") };
        let source = attach.source.unwrap();
        assert_eq!((attach.name, attach.handle, attach.role), ("rcv", 1, Role::Receiver));
        assert_eq!((source.address, source.durable), (Some("/queues/q"), TerminusDurability::UnsettledState));
        let selector = source.filter.unwrap().get("selector").and_then(|value| value.as_described()).unwrap();
        assert_eq!((selector.code(), selector.value()), (Some(filter::SELECTOR), Value::String("a > 1")));
        let control = bytes(CLIENT_FRAMES[4]);
        let Ok((Performative::Attach(control), [])) = Performative::decode(&control[8..]) else { panic!("no attach") };
        let Some(AttachTarget::Coordinator(coordinator)) = control.target else { panic!("no coordinator") };
        assert!(coordinator.capabilities.contains(txn_capability::LOCAL_TRANSACTIONS));
        let disposition = bytes(SERVER_FRAMES[8]);
        let expected = Disposition {
            role: Role::Receiver,
            settled: true,
            state: Some(DeliveryState::ACCEPTED),
            ..Disposition::default()
        };
        assert_eq!(Performative::decode(&disposition[8..]), Ok((Performative::Disposition(expected), &[][..])));
    }

    #[test]
    fn what_is_understood_is_written_back_with_the_same_meaning() {
        for body in bodies() {
            let (performative, _) = Performative::decode(&body).unwrap();
            let written = write(&performative);
            assert_eq!(Performative::decode(&written[8..]), Ok((performative, &[][..])));
        }
    }

    #[test]
    fn damaged_frames_never_panic() {
        let mut understood = 0_u32;
        for body in bodies() {
            damage(&body, |copy| {
                if let Ok((performative, _)) = Performative::decode(copy) {
                    let written = write(&performative);
                    assert_eq!(Performative::decode(&written[8..]), Ok((performative, &[][..])));
                    understood += 1;
                }
            });
        }
        assert!(understood > 0);
    }

    #[test]
    fn fields_are_counted_typed_and_asked_for() {
        let refused = |body: &[u8]| Performative::decode(body).unwrap_err();
        assert_eq!(refused(b"\x00\x53\x16\x45"), DecodeError::FieldMissing("handle"));
        assert_eq!(refused(b"\x00\x53\x16\xc0\x02\x01\x40"), DecodeError::FieldMissing("handle"));
        assert_eq!(refused(b"\x00\x53\x16\xc0\x02\x01\x44"), DecodeError::FieldType("handle"));
        assert_eq!(refused(b"\x00\x53\x16\xc0\x05\x04\x43\x41\x40\x40"), DecodeError::FieldExtra);
        assert_eq!(refused(b"\x00\x53\x16\xc0\x03\x01\x43\x40"), DecodeError::Count);
        assert_eq!(refused(b"\x00\x53\x16\xc0\x05\x03\x43\x41\x52\x01"), DecodeError::FieldType("error"));
        assert_eq!(
            refused(b"\x00\x53\x12\xc0\x08\x04\xa1\x01l\x43\x41\x50\x03"),
            DecodeError::FieldType("snd-settle-mode")
        );
        assert_eq!(refused(b"\x00\x53\x17\x45\x00"), DecodeError::Trailing);
        assert_eq!(refused(b"\x00\x53\x17\xc1\x01\x00"), DecodeError::Type);
        assert_eq!(refused(b"\x00\x53\x40\x45"), DecodeError::Descriptor);
        assert_eq!(refused(b"\x45"), DecodeError::FormatCode(0x45));
        assert_eq!(refused(b""), DecodeError::Truncated);
    }

    #[test]
    fn symbolic_descriptors_are_understood_at_every_level() {
        let detach = b"\x00\xa3\x10amqp:detach:list\xc0\x28\x03\x43\x41";
        let error = b"\x00\xa3\x0famqp:error:list\xc0\x11\x01\xa3\x0eamqp:not-found";
        let body = [&detach[..], error].concat();
        let error = Error { condition: Symbol("amqp:not-found"), description: None, info: None };
        let detach = Detach { handle: 0, closed: true, error: Some(error) };
        assert_eq!(Performative::decode(&body), Ok((Performative::Detach(detach), &[][..])));
    }
}
