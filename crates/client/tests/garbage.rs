//! Whatever bytes come, the machine takes them or refuses them: no panic, and the same in one piece or in many.
//!
//! Owns a script of frames as a peer would send them, and a source of damage. It must never need a clock or a socket.

use weft_client::{Client, Event, Limits, LinkOptions, Login, Manner, Place};
use weft_wire::amqp10::frame::{Protocol, end_frame};
use weft_wire::amqp10::transfer::{TransferHead, encode_transfer};
use weft_wire::amqp10::*;

/// A small generator with a seed, so that every failure can be had again.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

/// What a peer says to a client with one sender and one receiver: login, open, begin, attach, credit, two messages.
fn script() -> Vec<u8> {
    let mut out = Protocol::Sasl.header().to_vec();
    let offered = [Symbol("ANONYMOUS")];
    encode_sasl(&mut out, &SaslMechanisms { sasl_server_mechanisms: Symbols::Slice(&offered) });
    encode_sasl(&mut out, &SaslOutcome { code: SaslCode::Ok, additional_data: None });
    out.extend_from_slice(&Protocol::Amqp.header());
    encode(&mut out, 0, &Open { container_id: "peer", idle_time_out: Some(1000), ..Open::default() });
    encode(&mut out, 0, &Begin { remote_channel: Some(0), incoming_window: 100, ..Begin::default() });
    let source = Some(Source { address: Some("q"), ..Source::default() });
    let target = Some(AttachTarget::Target(Target { address: Some("q"), ..Target::default() }));
    let answer = Attach { source, target, initial_delivery_count: Some(0), ..Attach::default() };
    encode(&mut out, 0, &Attach { name: "out", handle: 0, role: Role::Receiver, ..answer });
    encode(&mut out, 0, &Attach { name: "in", handle: 1, role: Role::Sender, ..answer });
    let flow = Flow { next_incoming_id: Some(0), incoming_window: 100, outgoing_window: 100, ..Flow::default() };
    encode(&mut out, 0, &Flow { handle: Some(0), delivery_count: Some(0), link_credit: Some(10), ..flow });
    for delivery_id in 0..2 {
        let head = TransferHead {
            handle: 1,
            delivery_id,
            tag: b"t",
            message_format: 0,
            settled: false,
            more: false,
            batchable: false,
        };
        let mark = encode_transfer(&mut out, 0, &head);
        out.extend_from_slice(b"\x00\x53\x75\xa0\x02hi");
        end_frame(&mut out, mark);
    }
    let state = Some(DeliveryState::ACCEPTED);
    encode(&mut out, 0, &Disposition { role: Role::Receiver, settled: true, state, ..Disposition::default() });
    encode(&mut out, 0, &Detach { handle: 1, closed: true, error: None });
    encode(&mut out, 0, &Close::default());
    out
}

fn client() -> Client {
    let mut client = Client::new("test", Vec::new(), Limits::default());
    let place = Place { address: Some("q".into()), ..Place::default() };
    let out = LinkOptions { name: "out".into(), place: place.clone(), ..LinkOptions::default() };
    let inward = LinkOptions { name: "in".into(), place, window: 10, ..LinkOptions::default() };
    let sender = client.attach_sender(0, out).expect("a session");
    client.attach_receiver(0, inward).expect("a session");
    client.send(sender, b"\x00\x53\x75\xa0\x02hi".to_vec(), Manner::default(), None).expect("a link");
    client.start(Some("host"), vec![Login::Anonymous], 0);
    client
}

/// Feeds pieces and polls everything after each; what was told.
fn feed<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Event>, usize, usize) {
    let mut client = client();
    let (mut events, mut outcomes, mut deliveries) = (Vec::new(), 0, 0);
    for (at, piece) in pieces.enumerate() {
        client.receive(piece, at as u64);
        client.poll_transmit();
        events.extend(client.poll_events());
        outcomes += client.poll_outcomes().len();
        for link in client.poll_filled() {
            while client.take(link).is_some() {
                deliveries += 1;
            }
        }
        client.advance(at as u64);
    }
    client.lost();
    (events, outcomes, deliveries)
}

#[test]
fn the_script_is_understood() {
    let script = script();
    let (events, outcomes, deliveries) = feed(std::iter::once(&script[..]));
    assert_eq!(deliveries, 0, "the link was gone before anyone asked");
    assert!(matches!(events.first(), Some(Event::Opened { .. })));
    assert!(matches!(events.last(), Some(Event::Closed { by_peer: true, .. })));
    assert_eq!(events.len(), 5);
    assert_eq!(outcomes, 0, "nothing was sent before the credit came");
}

#[test]
fn pieces_of_any_size_mean_the_same() {
    let script = script();
    let (events, outcomes, deliveries) = feed(script.chunks(1));
    assert_eq!((events.len(), outcomes, deliveries), (5, 1, 2));
    for size in [2, 3, 7, 64] {
        let told = feed(script.chunks(size));
        assert_eq!((told.0.len(), told.1), (5, 1), "in pieces of {size}");
    }
}

#[test]
fn damage_is_refused_or_harmless() {
    let script = script();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..20_000 {
        let mut copy = script.clone();
        for _ in 0..1 + random.next(3) {
            let at = random.next(copy.len());
            match random.next(3) {
                0 => copy[at] = random.next(256) as u8,
                1 => copy.truncate(at),
                _ => copy.insert(at, random.next(256) as u8),
            }
            if copy.is_empty() {
                break;
            }
        }
        feed(copy.chunks(1 + random.next(100)));
    }
}
