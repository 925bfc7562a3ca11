//! Links that come back, by the byte: what each side says of the deliveries that both, one or none of them knows.
//!
//! Owns the proof of the rules of resumption, along the fourteen cases that the specification goes through. A simulated
//! peer says something, what the node answers is compared. It must never look inside a session. Rules: AMQP 1.0
//! sections 2.6.13, 3.4.1 and 2.7.5. A node never decides for itself about a delivery that it sent, and keeps all of
//! it: the cases where a source does otherwise (5 to 14) are played with the node as the target.

mod peer10;

use peer10::*;
use weft_engine::Limits;
use weft_sim::Node;
use weft_wire::amqp10::*;

const BODY: usize = 3_000;

fn body() -> Vec<u8> {
    (0..BODY).map(|n| (n % 251) as u8).collect()
}

/// A node with these messages in its queue, and a peer with small frames.
fn node_with(messages: &[Vec<u8>]) -> (Node, Peer) {
    let mut node = Node::new(Limits::default(), 7);
    let mut peer = Peer::connect_with(&mut node, &Open { container_id: "p", max_frame_size: 512, ..Open::default() });
    peer.sender(&mut node, 0, Some("q"));
    for message in messages {
        peer.send(&mut node, 0, message, true);
    }
    (node, peer)
}

/// Messages in the queue, and those that somebody has.
fn counts(node: &Node) -> (usize, usize) {
    let (ready, unsettled, _) = node.queue("q");
    (ready, unsettled)
}

fn receiver<'a>(unsettled: Option<Map<'a>>) -> Attach<'a> {
    let source = Some(Source { address: Some("q"), ..Source::default() });
    Attach { name: "r", handle: 1, role: Role::Receiver, source, unsettled, ..Attach::default() }
}

fn credit(next: u32, window: u32, count: u32, credit: u32) -> Flow<'static> {
    Flow {
        next_incoming_id: Some(next),
        incoming_window: window,
        outgoing_window: 100,
        handle: Some(1),
        delivery_count: Some(count),
        link_credit: Some(credit),
        ..Flow::default()
    }
}

fn detach(node: &mut Node, peer: &mut Peer, handle: u32) {
    assert_eq!(names(&peer.call(node, 0, &Detach { handle, closed: false, error: None })), ["detach"]);
}

fn unsettled_of(said: &[Said]) -> (Vec<(Vec<u8>, String)>, bool) {
    let Performative::Attach(answer) = said[0].performative() else { panic!("{said:?}") };
    let word = |state: Value<'_>| match DeliveryState::from_value(state) {
        Ok(DeliveryState::Received(at)) => format!("received {} {}", at.section_number, at.section_offset),
        Ok(state) => format!("{:?}", state.outcome()),
        Err(_) => "null".to_owned(),
    };
    let lines = answer
        .unsettled
        .iter()
        .flat_map(|map| map.iter())
        .map(|(tag, state)| (tag.as_binary().expect("a tag").to_vec(), word(state)));
    (lines.collect(), answer.incomplete_unsettled)
}

/// What the first transfer of a resumed delivery says: tag, settled, state, aborted.
fn resumed(said: &Said) -> (Vec<u8>, bool, String, bool) {
    let Performative::Transfer(transfer) = said.performative() else { panic!("{said:?}") };
    assert!(transfer.resume && transfer.delivery_id.is_some());
    let tag = transfer.delivery_tag.expect("a tag").to_vec();
    (tag, transfer.settled == Some(true), format!("{:?}", transfer.state), transfer.aborted)
}

fn payload(said: &[Said]) -> Vec<u8> {
    said.iter().filter(|said| said.name() == "transfer").flat_map(|said| said.payload().to_vec()).collect()
}

/// The receiver comes back with `state` for the only delivery, whole or half of which it got; what it then gets.
fn come_back(half: bool, state: Option<DeliveryState<'_>>) -> (Node, Peer, Vec<u8>, Vec<u8>, Vec<Said>) {
    let (mut node, mut peer) = node_with(&[message(&body())]);
    peer.call(&mut node, 0, &receiver(None));
    let said = peer.call(&mut node, 0, &credit(0, if half { 3 } else { 100 }, 0, 1));
    let (sent, tag) = (payload(&said), resume_tag(&said));
    detach(&mut node, &mut peer, 1);
    assert_eq!(counts(&node), (0, 1));
    let mut unsettled = MapBuf::new();
    match state {
        Some(state) => unsettled.put_with(Value::Binary(&tag), |out| state.put(out)),
        None => unsettled.put(Value::Binary(&tag), Value::Null),
    };
    let said = peer.call(&mut node, 0, &receiver(Some(unsettled.as_map())));
    assert_eq!(unsettled_of(&said), (vec![(tag.clone(), "null".to_owned())], false));
    assert_eq!(names(&said), ["attach"], "nothing without credit");
    let said = peer.call(&mut node, 0, &credit(said_transfers(&sent), 100, 0, 1));
    (node, peer, tag, sent, said)
}

fn resume_tag(said: &[Said]) -> Vec<u8> {
    let Performative::Transfer(transfer) = said[0].performative() else { panic!("{said:?}") };
    transfer.delivery_tag.expect("a tag").to_vec()
}

/// Transfers that so many bytes came in: half are three, whole is the rest as well.
fn said_transfers(sent: &[u8]) -> u32 {
    if sent.len() < BODY { 3 } else { sent.len().div_ceil(470) as u32 }
}

#[test]
fn case_1_only_the_source_knows_it_comes_anew() {
    let (mut node, mut peer) = node_with(&[message(b"x")]);
    peer.call(&mut node, 0, &receiver(None));
    let tag = resume_tag(&peer.call(&mut node, 0, &credit(0, 100, 0, 1)));
    detach(&mut node, &mut peer, 1);
    let said = peer.call(&mut node, 0, &receiver(None));
    assert_eq!(unsettled_of(&said).0, [(tag.clone(), "null".to_owned())]);
    let said = peer.call(&mut node, 0, &credit(1, 100, 0, 1));
    let Performative::Transfer(transfer) = said[0].performative() else { panic!("{said:?}") };
    assert!(!transfer.resume && transfer.delivery_tag != Some(&tag[..]));
    assert_eq!(bodies(&said), ["x"]);
}

#[test]
fn case_2_a_message_goes_on_where_the_receiver_says() {
    // Sections: the header, and one of data.
    for offset in [0, 5, 700, BODY as u64 + 8] {
        let at = Received { section_number: 1, section_offset: offset };
        let (mut node, mut peer, tag, sent, said) = come_back(true, Some(DeliveryState::Received(at)));
        let state = format!("{:?}", Some(DeliveryState::Received(at)));
        assert_eq!(resumed(&said[0]), (tag, false, state, false));
        let start = sections::offset_of(&sent, 1, 0).expect("the header is there");
        assert_eq!(payload(&said), message(&body())[offset as usize..]);
        assert!(message(&body()).starts_with(&sent[start..]));
        assert_eq!(counts(&node), (0, 1));
        let Performative::Transfer(transfer) = said[0].performative() else { panic!("{said:?}") };
        let id = transfer.delivery_id.expect("an id");
        peer.settle(&mut node, id, id, Outcome::Accepted);
        assert_eq!(counts(&node), (0, 0));
    }
}

#[test]
fn a_receiver_with_less_than_the_header_or_a_strange_place_gets_all_of_it() {
    for (section_number, section_offset) in [(0, 0), (0, 3), (7, 0), (1, 1 << 40), (u32::MAX, u64::MAX)] {
        let state = DeliveryState::Received(Received { section_number, section_offset });
        let (_, _, tag, _, said) = come_back(true, Some(state));
        let start = DeliveryState::Received(Received { section_number: 0, section_offset: 0 });
        assert_eq!(resumed(&said[0]), (tag, false, format!("{:?}", Some(start)), false));
        assert_eq!(deliveries(&said)[0].data(), body());
    }
}

#[test]
fn case_3_what_the_receiver_has_decided_is_done_and_said_again() {
    for half in [false, true] {
        let (node, _, tag, _, said) = come_back(half, Some(DeliveryState::ACCEPTED));
        assert_eq!(resumed(&said[0]), (tag, true, format!("{:?}", Some(DeliveryState::ACCEPTED)), false));
        assert_eq!((names(&said), payload(&said).len()), (vec!["transfer"], 0));
        assert_eq!(counts(&node), (0, 0));
    }
    let (node, _, _, _, said) = come_back(false, Some(DeliveryState::RELEASED));
    assert_eq!(resumed(&said[0]).2, format!("{:?}", Some(DeliveryState::RELEASED)));
    assert_eq!(counts(&node), (1, 0));
}

#[test]
fn case_4_a_receiver_that_knows_only_the_tag_gets_all_of_it_under_that_tag() {
    for half in [false, true] {
        let (mut node, mut peer, tag, _, said) = come_back(half, None);
        assert_eq!(resumed(&said[0]), (tag, false, "None".to_owned(), false));
        let got = deliveries(&said);
        assert_eq!((got.len(), got[0].data()), (1, &body()[..]));
        assert_eq!(got[0].header().delivery_count, 0, "it is still the same attempt");
        peer.settle(&mut node, got[0].id, got[0].id, Outcome::Rejected(Rejected::default()));
        assert_eq!(counts(&node), (0, 0));
    }
}

#[test]
fn resumed_deliveries_come_before_new_ones_and_each_takes_credit() {
    let (mut node, mut peer) = node_with(&["1", "2", "3", "4"].map(|body| message(body.as_bytes())));
    peer.call(&mut node, 0, &receiver(None));
    let said = peer.call(&mut node, 0, &credit(0, 100, 0, 3));
    let tags: Vec<Vec<u8>> = deliveries(&said).into_iter().map(|got| got.tag).collect();
    detach(&mut node, &mut peer, 1);
    let mut unsettled = MapBuf::new();
    unsettled.put(Value::Binary(&tags[0]), Value::Null);
    unsettled.put_with(Value::Binary(&tags[1]), |out| DeliveryState::ACCEPTED.put(out));
    unsettled.put(Value::Binary(&tags[2]), Value::Null);
    // What only the receiver knows is ignored.
    unsettled.put(Value::Binary(b"unknown"), Value::Null);
    peer.call(&mut node, 0, &receiver(Some(unsettled.as_map())));
    assert_eq!(bodies(&peer.call(&mut node, 0, &credit(3, 100, 0, 1))), ["1"]);
    // A window of one holds the rest back, then it goes on by itself.
    let said = peer.call(&mut node, 0, &credit(4, 1, 1, 9));
    assert_eq!((said.len(), resumed(&said[0]).1), (1, true));
    let said = peer.call(&mut node, 0, &credit(5, 100, 2, 8));
    assert_eq!((resumed(&said[0]).0, bodies(&said)), (tags[2].clone(), vec!["3".to_owned(), "4".to_owned()]));
    // A drain is answered after them.
    detach(&mut node, &mut peer, 1);
    assert_eq!(counts(&node), (0, 3));
    let mut unsettled = MapBuf::new();
    unsettled.put(Value::Binary(&tags[0]), Value::Null);
    peer.call(&mut node, 0, &receiver(Some(unsettled.as_map())));
    let said = peer.call(&mut node, 0, &Flow { drain: true, ..credit(7, 100, 0, 9) });
    assert_eq!((names(&said).last(), bodies(&said).len()), (Some(&"flow"), 3));
}

#[test]
fn what_was_not_resumed_waits_for_the_next_time_or_goes_back() {
    for closed in [false, true] {
        let (mut node, mut peer) = node_with(&[message(b"1")]);
        peer.call(&mut node, 0, &receiver(None));
        let tag = resume_tag(&peer.call(&mut node, 0, &credit(0, 100, 0, 1)));
        let mut unsettled = MapBuf::new();
        unsettled.put(Value::Binary(&tag), Value::Null);
        for _ in 0..2 {
            detach(&mut node, &mut peer, 1);
            peer.call(&mut node, 0, &receiver(Some(unsettled.as_map())));
        }
        peer.call(&mut node, 0, &Detach { handle: 1, closed, error: None });
        assert_eq!(counts(&node), if closed { (1, 0) } else { (0, 1) });
        peer.call(&mut node, 0, &End::default());
        assert_eq!(counts(&node), (1, 0));
    }
}

#[test]
fn a_map_that_does_not_fit_a_frame_is_incomplete_and_nothing_new_comes_before_the_next_attach() {
    let bodies_sent: Vec<Vec<u8>> = (0..200).map(|n| message(format!("{n}").as_bytes())).collect();
    let (mut node, mut peer) = node_with(&bodies_sent);
    peer.call(&mut node, 0, &receiver(None));
    let said = peer.call(&mut node, 0, &credit(0, 1_000, 0, 199));
    let tags: Vec<Vec<u8>> = deliveries(&said).into_iter().map(|got| got.tag).collect();
    detach(&mut node, &mut peer, 1);
    let mut first = MapBuf::new();
    for tag in &tags[..20] {
        first.put_with(Value::Binary(tag), |out| DeliveryState::ACCEPTED.put(out));
    }
    let attach = Attach { incomplete_unsettled: true, ..receiver(Some(first.as_map())) };
    let (lines, incomplete) = unsettled_of(&peer.call(&mut node, 0, &attach));
    assert!(incomplete && (10..199).contains(&lines.len()), "{}", lines.len());
    let said = peer.call(&mut node, 0, &credit(199, 1_000, 0, 100));
    assert_eq!(said.len(), 20, "what was listed, and neither the rest nor anything new");
    let said = peer.call(&mut node, 0, &Flow { drain: true, ..credit(219, 1_000, 20, 80) });
    assert_eq!(names(&said), ["flow"], "a drain is answered all the same");
    assert_eq!(counts(&node), (1, 179));
    // The next time it says that it knows of no other.
    detach(&mut node, &mut peer, 1);
    peer.call(&mut node, 0, &receiver(None));
    assert_eq!(counts(&node), (180, 0));
}

// --- the node as the target ---

fn sender<'a>(unsettled: Option<Map<'a>>, second: bool) -> Attach<'a> {
    let target = Some(AttachTarget::Target(Target { address: Some("q"), ..Target::default() }));
    let rcv_settle_mode = if second { ReceiverSettleMode::Second } else { ReceiverSettleMode::First };
    let initial_delivery_count = Some(0);
    Attach { name: "s", handle: 1, target, rcv_settle_mode, unsettled, initial_delivery_count, ..Attach::default() }
}

fn transfer(id: u32, more: bool) -> Transfer<'static> {
    Transfer { handle: 1, delivery_id: Some(id), delivery_tag: Some(b"t"), more, ..Transfer::default() }
}

/// A peer that has sent the first bytes of a message, was detached, and comes back knowing the delivery.
fn half_sent(count: usize) -> (Node, Peer, Vec<u8>, Vec<Said>) {
    let (mut node, mut peer) = node_with(&[]);
    peer.call(&mut node, 0, &sender(None, false));
    let mut whole = b"\x00\x53\x70\x45".to_vec();
    whole.extend(message(&body()));
    node.feed(peer.conn, &frame_of(&transfer(7, true), &whole[..count]));
    detach(&mut node, &mut peer, 1);
    let mut unsettled = MapBuf::new();
    unsettled.put(Value::Binary(b"t"), Value::Null);
    let said = peer.call(&mut node, 0, &sender(Some(unsettled.as_map()), false));
    (node, peer, whole, said)
}

#[test]
fn cases_2_and_6_a_half_sent_message_goes_on() {
    for count in [0, 2, 4, 6, 100, 2_000] {
        let (mut node, mut peer, whole, said) = half_sent(count);
        let (section, offset) = sections::place_of(&whole[..count]);
        assert_eq!(unsettled_of(&said).0, [(b"t".to_vec(), format!("received {section} {offset}"))]);
        let middle = count + (whole.len() - count) / 2;
        let first = Transfer { resume: true, ..transfer(8, true) };
        node.feed(peer.conn, &frame_of(&first, &whole[count..middle]));
        node.feed(peer.conn, &frame_of(&Transfer { handle: 1, ..Transfer::default() }, &whole[middle..]));
        assert_eq!(answers(&peer.read(&mut node)), [(8, 8, true, "accepted".to_owned())]);
        assert_eq!(node.queue("q").0, 1);
        peer.call(&mut node, 0, &Attach { name: "r", handle: 2, ..receiver(None) });
        let got = deliveries(&peer.call(&mut node, 0, &Flow { handle: Some(2), ..credit(0, 100, 0, 1) }));
        assert_eq!(got[0].data(), body());
    }
}

#[test]
fn a_sender_may_begin_earlier_than_it_must_and_not_later() {
    let (mut node, mut peer, whole, _) = half_sent(2_000);
    let state = Some(DeliveryState::Received(Received { section_number: 1, section_offset: 0 }));
    let first = Transfer { resume: true, state, ..transfer(8, false) };
    node.feed(peer.conn, &frame_of(&first, &whole[4..]));
    assert_eq!(answers(&peer.read(&mut node)), [(8, 8, true, "accepted".to_owned())]);
    peer.call(&mut node, 0, &Attach { name: "r", handle: 2, ..receiver(None) });
    let got = deliveries(&peer.call(&mut node, 0, &Flow { handle: Some(2), ..credit(0, 100, 0, 1) }));
    assert_eq!(got[0].data(), body());
    let (mut node, mut peer, whole, _) = half_sent(100);
    let state = Some(DeliveryState::Received(Received { section_number: 1, section_offset: 200 }));
    let first = Transfer { resume: true, state, ..transfer(8, false) };
    node.feed(peer.conn, &frame_of(&first, &whole[204..]));
    assert_eq!(condition(&peer.read(&mut node)), "amqp:illegal-state");
    assert_eq!(node.queue("q").0, 0);
}

#[test]
fn cases_7_9_11_and_14_a_sender_that_cannot_go_on_aborts() {
    let (mut node, mut peer, _, _) = half_sent(100);
    let aborted = Transfer { resume: true, aborted: true, settled: Some(true), ..transfer(8, false) };
    node.feed(peer.conn, &frame_of(&aborted, b""));
    assert_eq!((peer.read(&mut node), node.queue("q").0), (vec![], 0));
    // Its link goes on, and its memory is free.
    peer.send(&mut node, 1, &message(b"next"), false);
    assert_eq!(node.queue("q").0, 1);
}

#[test]
fn cases_5_and_10_a_delivery_that_only_the_source_knows_is_ignored_however_long_it_is() {
    let (mut node, mut peer) = node_with(&[]);
    let mut unsettled = MapBuf::new();
    unsettled.put(Value::Binary(b"t"), Value::Null);
    let said = peer.call(&mut node, 0, &sender(Some(unsettled.as_map()), false));
    assert_eq!(unsettled_of(&said).0, []);
    for first in [Transfer { resume: true, ..transfer(1, true) }, Transfer { resume: true, ..transfer(2, true) }] {
        node.feed(peer.conn, &frame_of(&first, &message(b"ignored")));
        node.feed(peer.conn, &frame_of(&Transfer { handle: 1, ..Transfer::default() }, b"and more"));
    }
    node.feed(peer.conn, &frame_of(&Transfer { resume: true, ..transfer(3, false) }, &message(b"ignored")));
    assert_eq!((peer.read(&mut node), node.queue("q").0), (vec![], 0));
    let said = peer.send(&mut node, 1, &message(b"anew"), false);
    assert_eq!((answers(&said)[0].3.as_str(), node.queue("q").0), ("accepted", 1));
}

/// A peer whose message was accepted, that has not settled it, and comes back knowing it in this state.
fn answered(state: Option<DeliveryState<'_>>) -> (Node, Peer) {
    let (mut node, mut peer) = node_with(&[]);
    peer.call(&mut node, 0, &sender(None, true));
    node.feed(peer.conn, &frame_of(&transfer(7, false), &message(b"x")));
    assert_eq!(answers(&peer.read(&mut node)), [(7, 7, false, "accepted".to_owned())]);
    detach(&mut node, &mut peer, 1);
    let mut unsettled = MapBuf::new();
    match state {
        Some(state) => unsettled.put_with(Value::Binary(b"t"), |out| state.put(out)),
        None => unsettled.put(Value::Binary(b"t"), Value::Null),
    };
    let said = peer.call(&mut node, 0, &sender(Some(unsettled.as_map()), true));
    assert_eq!(unsettled_of(&said).0, [(b"t".to_vec(), "Some(Accepted)".to_owned())]);
    (node, peer)
}

#[test]
fn cases_3_and_8_a_sender_that_does_not_know_the_outcome_is_told_again() {
    let (mut node, mut peer) = answered(None);
    node.feed(peer.conn, &frame_of(&Transfer { resume: true, ..transfer(8, true) }, &message(b"x")));
    node.feed(peer.conn, &frame_of(&Transfer { handle: 1, ..Transfer::default() }, b""));
    assert_eq!(answers(&peer.read(&mut node)), [(8, 8, false, "accepted".to_owned())]);
    assert_eq!(node.queue("q").0, 1, "it was not published twice");
    let settled = Disposition { role: Role::Sender, first: 8, settled: true, ..Disposition::default() };
    assert_eq!(peer.call(&mut node, 0, &settled), []);
    detach(&mut node, &mut peer, 1);
    assert_eq!(unsettled_of(&peer.call(&mut node, 0, &sender(None, true))).0, []);
}

#[test]
fn case_12_both_agree_and_the_sender_settles() {
    let (mut node, mut peer) = answered(Some(DeliveryState::ACCEPTED));
    let state = Some(DeliveryState::ACCEPTED);
    let settles = Transfer { resume: true, settled: Some(true), state, ..transfer(8, false) };
    node.feed(peer.conn, &frame_of(&settles, b""));
    assert_eq!((peer.read(&mut node), node.queue("q").0), (vec![], 1));
}

#[test]
fn case_13_where_they_differ_the_senders_word_holds() {
    let (mut node, mut peer) = answered(Some(DeliveryState::RELEASED));
    let restates = Transfer { resume: true, state: Some(DeliveryState::RELEASED), ..transfer(8, false) };
    node.feed(peer.conn, &frame_of(&restates, b""));
    assert_eq!(answers(&peer.read(&mut node)), [(8, 8, true, "released".to_owned())]);
}

#[test]
fn what_only_the_target_knows_is_settled() {
    let (mut node, mut peer) = node_with(&[]);
    peer.call(&mut node, 0, &sender(None, true));
    node.feed(peer.conn, &frame_of(&transfer(7, false), &message(b"x")));
    peer.read(&mut node);
    detach(&mut node, &mut peer, 1);
    assert_eq!(unsettled_of(&peer.call(&mut node, 0, &sender(None, true))).0.len(), 1);
    detach(&mut node, &mut peer, 1);
    assert_eq!(unsettled_of(&peer.call(&mut node, 0, &sender(None, true))).0, []);
}
