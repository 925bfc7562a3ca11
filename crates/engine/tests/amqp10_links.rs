//! AMQP 1.0 links by the byte: credit, drains, windows, outcomes, suspension, and everything a peer can do wrong.
//!
//! Owns the proof of the rules of sessions and links. A simulated peer says something, what the node answers is
//! compared. It must never look inside a session. Rules: AMQP 1.0 sections 2.5 to 2.7 and 3.4.

mod peer10;

use peer10::*;
use weft_engine::Limits;
use weft_engine::change::{Change, LinkPlan};
use weft_engine::event::Event;
use weft_sim::{Client, Node};
use weft_wire::amqp10::*;
use weft_wire::amqp091::table::TableWriter;

fn node() -> Node {
    Node::new(Limits::default(), 7)
}

/// A node with a queue that holds these bodies, and a peer.
fn filled(bodies: &[&str]) -> (Node, Peer) {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    for body in bodies {
        peer.send(&mut node, 0, &message(body.as_bytes()), true);
    }
    (node, peer)
}

/// The link part of the last flow: delivery-count, credit, drain.
#[track_caller]
fn last_flow(said: &[Said]) -> (u32, u32, bool) {
    let flows = said.iter().rev().find_map(|said| match said.performative() {
        Performative::Flow(flow) => Some((flow.delivery_count?, flow.link_credit?, flow.drain)),
        _ => None,
    });
    flows.expect("a flow of a link")
}

#[test]
fn a_drain_sends_what_there_is_and_gives_the_rest_back() {
    let (mut node, mut peer) = filled(&["1", "2", "3"]);
    peer.receiver(&mut node, 1, "q", 0);
    let said = peer.credit(&mut node, 1, 0, 10, true);
    assert_eq!(bodies(&said), ["1", "2", "3"]);
    assert_eq!(said.last().map(Said::name), Some("flow"));
    assert_eq!(last_flow(&said), (10, 0, true));
    assert_eq!(bodies(&peer.send(&mut node, 0, &message(b"later"), true)), [""; 0]);
    // An empty queue answers at once, and so does a link that has no credit to give back.
    let said = peer.credit(&mut node, 1, 10, 1, true);
    assert_eq!((bodies(&said), last_flow(&said)), (vec!["later".to_owned()], (11, 0, true)));
    assert_eq!(last_flow(&peer.credit(&mut node, 1, 11, 5, true)), (16, 0, true));
    assert_eq!(last_flow(&peer.credit(&mut node, 1, 16, 0, true)), (16, 0, true));
}

#[test]
fn a_drain_is_answered_however_little_one_call_may_do() {
    for work_max in 1..12 {
        let mut node = Node::new(Limits { work_max, ..Limits::default() }, 7);
        let mut peer = Peer::connect(&mut node);
        peer.sender(&mut node, 0, Some("q"));
        peer.receiver(&mut node, 1, "q", 0);
        let flow = |delivery_count, link_credit| Flow {
            incoming_window: 1_000,
            outgoing_window: 9,
            handle: Some(1),
            delivery_count: Some(delivery_count),
            link_credit: Some(link_credit),
            drain: true,
            ..Flow::default()
        };
        let mut bytes: Vec<u8> = (0..7).flat_map(|_| peer.transfer(0, &message(b"x"), true)).collect();
        encode(&mut bytes, 0, &flow(0, 20));
        node.feed(peer.conn, &bytes);
        let said = peer.read(&mut node);
        assert_eq!((bodies(&said).len(), last_flow(&said)), (7, (20, 0, true)), "{work_max} units of work");
        assert_eq!(last_flow(&peer.call(&mut node, 0, &flow(20, 3))), (23, 0, true), "{work_max} units of work");
    }
}

#[test]
fn a_drain_waits_for_the_window() {
    let (mut node, mut peer) = filled(&["1", "2", "3"]);
    peer.receiver(&mut node, 1, "q", 0);
    let flow = |next_incoming_id, incoming_window, delivery_count| Flow {
        next_incoming_id: Some(next_incoming_id),
        incoming_window,
        outgoing_window: 1,
        handle: Some(1),
        delivery_count: Some(delivery_count),
        link_credit: Some(10),
        drain: true,
        ..Flow::default()
    };
    let said = peer.call(&mut node, 0, &flow(0, 2, 0));
    assert_eq!((bodies(&said).len(), names(&said).contains(&"flow")), (2, false));
    let said = peer.call(&mut node, 0, &flow(2, 2, 0));
    assert_eq!((bodies(&said), last_flow(&said)), (vec!["3".to_owned()], (10, 0, true)));
}

#[test]
fn the_peers_window_is_never_overrun_and_ids_wrap() {
    let (mut node, mut peer) = filled(&["1", "2", "3", "4", "5"]);
    let (start, session) = (u32::MAX - 1, 3);
    let begin = Begin { next_outgoing_id: start, incoming_window: 2, outgoing_window: 9, ..Begin::default() };
    peer.call(&mut node, session, &begin);
    let source = Some(Source { address: Some("q"), ..Source::default() });
    let target = Some(AttachTarget::Target(Target { address: Some("other"), ..Target::default() }));
    let attach = |name, handle, role| Attach { name, handle, role, source, target, ..Attach::default() };
    peer.call(&mut node, session, &attach("in", 0, Role::Receiver));
    peer.call(&mut node, session, &Attach { initial_delivery_count: Some(start), ..attach("out", 1, Role::Sender) });
    let flow = |next_incoming_id, incoming_window| Flow {
        next_incoming_id: Some(next_incoming_id),
        incoming_window,
        next_outgoing_id: start,
        outgoing_window: 9,
        handle: Some(0),
        delivery_count: Some(0),
        link_credit: Some(100),
        ..Flow::default()
    };
    assert_eq!(bodies(&peer.call(&mut node, session, &flow(0, 2))), ["1", "2"]);
    assert_eq!(bodies(&peer.call(&mut node, session, &flow(1, 2))), ["3"]);
    assert_eq!(bodies(&peer.call(&mut node, session, &flow(3, 9))), ["4", "5"]);
    // The peer's own numbers pass their largest value.
    for number in 0..5_u32 {
        let tag = [number as u8];
        let (delivery_id, delivery_tag) = (Some(start.wrapping_add(number)), Some(&tag[..]));
        let transfer = Transfer { handle: 1, delivery_id, delivery_tag, ..Transfer::default() };
        let mut frame = frame_of(&transfer, &message(b"x"));
        frame[6..8].copy_from_slice(&session.to_be_bytes());
        node.feed(peer.conn, &frame);
    }
    let said = peer.read(&mut node);
    let accepted: Vec<u32> = answers(&said).iter().map(|answer| answer.0).collect();
    assert_eq!(accepted, (0..5).map(|number| start.wrapping_add(number)).collect::<Vec<_>>());
    assert_eq!(node.queue("other"), (5, 0, 0));
}

#[test]
fn a_sender_that_overruns_window_or_credit_is_ended() {
    let limits = Limits { link_credit: 2, session_window: 4, ..Limits::default() };
    let mut node = Node::new(limits.clone(), 7);
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    let three: Vec<u8> = (0..3).flat_map(|_| peer.transfer(0, &message(b"x"), true)).collect();
    node.feed(peer.conn, &three);
    let said = peer.read(&mut node);
    assert_eq!(condition(&said[..said.len()]), "amqp:link:transfer-limit-exceeded");
    assert_eq!(node.queue("q"), (2, 0, 0));
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    let transfer =
        Transfer { handle: 0, delivery_id: Some(0), delivery_tag: Some(b"t"), more: true, ..Transfer::default() };
    let five: Vec<u8> = (0..5).flat_map(|_| frame_of(&transfer, b"\x00\x53\x75\xa0")).collect();
    node.feed(peer.conn, &five);
    assert_eq!(condition(&peer.read(&mut node)), "amqp:session:window-violation");
}

#[test]
fn credit_and_window_come_back_before_they_run_out() {
    let limits = Limits { link_credit: 10, session_window: 16, ..Limits::default() };
    let mut node = Node::new(limits, 7);
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    let mut flows = 0;
    for _ in 0..200 {
        flows += peer.send(&mut node, 0, &message(b"x"), true).iter().filter(|said| said.name() == "flow").count();
    }
    assert_eq!(node.queue("q"), (200, 0, 0));
    assert_eq!(flows, 40);
}

#[test]
fn each_outcome_does_what_it_says() {
    let (mut node, mut peer) = filled(&[]);
    let mut client = Client::connect(&mut node);
    let dead = |table: &mut TableWriter<'_>| {
        table.str(b"x-dead-letter-exchange", b"");
        table.str(b"x-dead-letter-routing-key", b"dead");
    };
    client.declare(&mut node, "dead", |_| ());
    client.declare(&mut node, "source", dead);
    for body in ["accept", "release", "fail", "reject", "undeliverable", "default"] {
        client.publish(&mut node, "", "source", body.as_bytes());
    }
    let source = Source { address: Some("source"), ..Source::default() };
    let got = deliveries(&peer.receiver_with(&mut node, 1, source, SenderSettleMode::Mixed, 6));
    assert_eq!(got.len(), 6);
    let error = Some(Error { condition: Symbol("acme:bad"), description: Some("spoilt"), info: None });
    let mut annotations = MapBuf::new();
    annotations.put(Value::Symbol("x-opt-seen"), Value::Bool(true));
    let modified = |failed, here| {
        let message_annotations = Some(annotations.as_map());
        Outcome::Modified(Modified { delivery_failed: failed, undeliverable_here: here, message_annotations })
    };
    peer.settle(&mut node, got[0].id, got[0].id, Outcome::Accepted);
    peer.settle(&mut node, got[1].id, got[1].id, Outcome::Released);
    peer.settle(&mut node, got[2].id, got[2].id, modified(true, false));
    peer.settle(&mut node, got[3].id, got[3].id, Outcome::Rejected(Rejected { error }));
    peer.settle(&mut node, got[4].id, got[4].id, modified(false, true));
    let settled = Disposition { role: Role::Receiver, first: got[5].id, settled: true, ..Disposition::default() };
    peer.call(&mut node, 0, &settled);
    assert_eq!((node.queue("source"), node.queue("dead")), ((3, 0, 1), (2, 0, 0)));
    let again = deliveries(&peer.credit(&mut node, 1, 6, 10, false));
    let seen: Vec<_> =
        again.iter().map(|got| (got.data(), got.header().delivery_count, got.header().first_acquirer)).collect();
    assert_eq!(seen, [(&b"release"[..], 0, false), (b"fail", 1, false), (b"default", 0, false)]);
    assert_eq!(again[1].annotation("x-opt-seen"), Some(Value::Bool(true)));
    let buried = deliveries(&peer.receiver(&mut node, 2, "dead", 10));
    assert_eq!(buried[0].annotation("x-opt-rejected-condition"), Some(Value::String("acme:bad")));
    assert_eq!(buried[0].annotation("x-opt-rejected-description"), Some(Value::String("spoilt")));
    let deaths = buried[1].annotation("x-opt-deaths").and_then(|value| value.as_list()).expect("a record");
    let death = deaths.iter().next().and_then(|death| death.as_map()).expect("a death");
    assert_eq!(death.get("queue"), Some(Value::String("source")));
    assert_eq!((death.get("reason"), death.get("count")), (Some(Value::Symbol("rejected")), Some(Value::Ulong(1))));
}

#[test]
fn the_default_outcome_is_what_a_silent_settlement_means() {
    let (mut node, mut peer) = filled(&["1"]);
    let default_outcome = Some(Outcome::Accepted);
    let source = Source { address: Some("q"), default_outcome, ..Source::default() };
    let got = deliveries(&peer.receiver_with(&mut node, 1, source, SenderSettleMode::Mixed, 1));
    let settled = Disposition { role: Role::Receiver, first: got[0].id, settled: true, ..Disposition::default() };
    peer.call(&mut node, 0, &settled);
    assert_eq!(node.queue("q"), (0, 0, 1));
}

#[test]
fn a_receiver_that_settles_second_hears_from_the_node_first() {
    let (mut node, mut peer) = filled(&["1"]);
    let got = deliveries(&peer.receiver(&mut node, 1, "q", 1));
    let state = Some(DeliveryState::ACCEPTED);
    let decided = Disposition { role: Role::Receiver, first: got[0].id, state, ..Disposition::default() };
    let said = peer.call(&mut node, 0, &decided);
    let Performative::Disposition(answer) = said[0].performative() else { panic!("{said:?}") };
    assert_eq!((answer.role, answer.first, answer.settled), (Role::Sender, got[0].id, true));
    assert_eq!(node.queue("q"), (0, 0, 1));
    // Its own settlement comes late and changes nothing.
    assert_eq!(peer.settle(&mut node, got[0].id, got[0].id, Outcome::Rejected(Rejected::default())), []);
}

#[test]
fn a_sender_in_second_mode_is_answered_unsettled_and_gets_credit_only_as_it_settles() {
    let limits = Limits { link_credit: 4, ..Limits::default() };
    let mut node = Node::new(limits, 7);
    let mut peer = Peer::connect(&mut node);
    let target = Some(AttachTarget::Target(Target { address: Some("q"), ..Target::default() }));
    let attach = Attach {
        name: "second",
        target,
        rcv_settle_mode: ReceiverSettleMode::Second,
        initial_delivery_count: Some(0),
        ..Attach::default()
    };
    peer.call(&mut node, 0, &attach);
    let mut credit = Vec::new();
    for number in 0..4 {
        let said = peer.send(&mut node, 0, &message(b"x"), false);
        assert_eq!(answers(&said), [(number, number, false, "accepted".to_owned())]);
        credit.extend(
            said.iter().filter(|said| said.name() == "flow").map(|said| last_flow(std::slice::from_ref(said)).1),
        );
    }
    assert_eq!(credit, [2, 1, 0]);
    let settled = Disposition { role: Role::Sender, first: 0, last: Some(3), settled: true, ..Disposition::default() };
    assert_eq!(last_flow(&peer.call(&mut node, 0, &settled)), (4, 4, false));
}

#[test]
fn browsers_see_everything_and_take_nothing() {
    let (mut node, mut peer) = filled(&["1", "2"]);
    let distribution_mode = Some(DistributionMode::Copy);
    let source = Source { address: Some("q"), distribution_mode, ..Source::default() };
    let said = peer.receiver_with(&mut node, 1, source, SenderSettleMode::Mixed, 10);
    let Performative::Attach(attach) = said[0].performative() else { panic!("{said:?}") };
    assert_eq!(attach.source.and_then(|source| source.distribution_mode), distribution_mode);
    assert_eq!(bodies(&said), ["1", "2"]);
    let ids: Vec<u32> = deliveries(&said).iter().map(|got| got.id).collect();
    peer.settle(&mut node, ids[0], ids[1], Outcome::Rejected(Rejected::default()));
    assert_eq!(node.queue("q"), (2, 0, 1));
    assert_eq!(bodies(&peer.send(&mut node, 0, &message(b"3"), true)), ["3"]);
    assert_eq!(node.queue("q"), (3, 0, 1));
}

/// Attaches a receiver and answers for Python with this plan.
fn attach_by_plan(node: &mut Node, peer: &mut Peer, handle: u32, source: Source<'_>, plan: LinkPlan) -> Vec<Said> {
    let name = format!("planned-{handle}");
    let attach = Attach { name: &name, handle, role: Role::Receiver, source: Some(source), ..Attach::default() };
    let mut bytes = Vec::new();
    encode(&mut bytes, 0, &attach);
    node.receive(peer.conn, &bytes);
    let events = node.engine.poll_events();
    let request = events.iter().find_map(|event| match event {
        Event::AttachRequested { request, .. } => Some(*request),
        _ => None,
    });
    let change = Change::AcceptLink { request: request.expect("a question"), plan: Box::new(plan) };
    node.engine.apply(vec![change]).expect("an answer");
    node.settle();
    peer.read(node)
}

#[test]
fn selectors_are_applied_and_only_applied_filters_are_echoed() {
    let (mut node, mut peer) = filled(&[]);
    for number in 0..6_i64 {
        let mut properties = MapBuf::new();
        properties.put(Value::String("number"), Value::Long(number));
        let mut bytes = Vec::new();
        sections::put_map(&mut bytes, descriptor::APPLICATION_PROPERTIES, properties.as_map());
        bytes.extend(message(number.to_string().as_bytes()));
        peer.send(&mut node, 0, &bytes, true);
    }
    let mut asked = MapBuf::new();
    asked.put_with(Value::Symbol("mine"), |out| {
        writer::put_descriptor(out, filter::SELECTOR);
        writer::put_str(out, "number > 2 AND number <> 4");
    });
    asked.put_with(Value::Symbol("theirs"), |out| {
        writer::put_descriptor(out, filter::XQUERY);
        writer::put_str(out, "x");
    });
    let source = Source { address: Some("q"), filter: Some(asked.as_map()), ..Source::default() };
    let plan = LinkPlan {
        queue: Some("q".to_owned()),
        selector: Some("number > 2 AND number <> 4".to_owned()),
        filters: vec![filter::SELECTOR_SYMBOL.to_owned()],
        ..LinkPlan::default()
    };
    let said = attach_by_plan(&mut node, &mut peer, 1, source, plan);
    let Performative::Attach(attach) = said[0].performative() else { panic!("{said:?}") };
    let echo = attach.source.and_then(|source| source.filter).expect("filters");
    assert_eq!((echo.len(), echo.get("mine")), (1, asked.as_map().get("mine")));
    assert_eq!(bodies(&peer.credit(&mut node, 1, 0, 10, false)), ["3", "5"]);
    // A drain of a link with a filter ends although the queue is not empty.
    assert_eq!(last_flow(&peer.credit(&mut node, 1, 2, 10, true)), (12, 0, true));
    let broken = LinkPlan { queue: Some("q".to_owned()), selector: Some("number >".to_owned()), ..LinkPlan::default() };
    let said = attach_by_plan(&mut node, &mut peer, 2, source, broken);
    assert_eq!((names(&said), condition(&said)), (vec!["attach", "detach"], "amqp:invalid-field".to_owned()));
}

#[test]
fn refused_links_are_attached_without_terminus_and_detached() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    let said = peer.sender(&mut node, 0, Some("refused"));
    assert_eq!((names(&said), condition(&said)), (vec!["attach", "detach"], "amqp:unauthorized-access".to_owned()));
    let Performative::Attach(attach) = said[0].performative() else { panic!("{said:?}") };
    assert_eq!((attach.role, attach.target), (Role::Receiver, None));
    // What the peer sent before it knew is ignored, and its own detach frees the handle.
    assert_eq!(peer.send(&mut node, 0, &message(b"x"), false), []);
    assert_eq!(peer.call(&mut node, 0, &Detach { handle: 0, closed: true, error: None }), []);
    assert_eq!(names(&peer.sender(&mut node, 0, Some("q"))), ["attach", "flow"]);
    let said = peer.sender(&mut node, 1, Some("/exchanges/nowhere"));
    assert_eq!(condition(&said), "amqp:not-found");
    let said = peer.receiver(&mut node, 2, "refused", 0);
    let Performative::Attach(attach) = said[0].performative() else { panic!("{said:?}") };
    assert_eq!((attach.role, attach.source, attach.initial_delivery_count), (Role::Sender, None, Some(0)));
}

#[test]
fn a_deleted_queue_detaches_its_receivers() {
    let (mut node, mut peer) = filled(&["1"]);
    peer.receiver(&mut node, 1, "q", 1);
    let delete = Change::DeleteQueue { vhost: "/".to_owned(), name: "q".to_owned() };
    node.engine.apply(vec![delete]).expect("a queue");
    node.settle();
    let said = peer.read(&mut node);
    assert_eq!((names(&said), condition(&said)), (vec!["detach"], "amqp:resource-deleted".to_owned()));
    assert_eq!(answers(&peer.send(&mut node, 0, &message(b"2"), false))[0].3, "released");
}

#[test]
fn a_second_attach_of_the_same_name_steals_the_link_and_its_deliveries() {
    let (mut node, mut peer) = filled(&["1", "2"]);
    let source = Source { address: Some("q"), ..Source::default() };
    let got = deliveries(&peer.receiver_with(&mut node, 1, source, SenderSettleMode::Mixed, 2));
    let mut unsettled = MapBuf::new();
    unsettled.put_with(Value::Binary(&got[0].tag), |out| Accepted.encode(out));
    let attach = Attach {
        name: "receiver-1",
        handle: 5,
        role: Role::Receiver,
        source: Some(source),
        unsettled: Some(unsettled.as_map()),
        ..Attach::default()
    };
    let said = peer.call(&mut node, 0, &attach);
    assert_eq!(names(&said), ["detach", "attach"]);
    assert_eq!(condition(&said[..1]), "amqp:link:stolen");
    let Performative::Attach(answer) = said[1].performative() else { panic!("{said:?}") };
    let ours = answer.unsettled.expect("both are unsettled here");
    assert_eq!(ours.iter().filter(|(_, state)| state.is_null()).count(), 2);
    // The first was accepted; the second was never seen and comes anew.
    assert_eq!(node.queue("q"), (1, 0, 1));
    let said = peer.credit(&mut node, 5, 0, 5, false);
    let Performative::Transfer(resumed) = said[0].performative() else { panic!("{said:?}") };
    assert_eq!((resumed.delivery_tag, resumed.resume, resumed.settled), (Some(&got[0].tag[..]), true, Some(true)));
    assert_eq!(bodies(&said[1..]), ["2"]);
}

#[test]
fn a_suspended_link_keeps_its_deliveries_until_its_session_ends() {
    let (mut node, mut peer) = filled(&["1", "2"]);
    peer.receiver(&mut node, 1, "q", 2);
    assert_eq!(names(&peer.call(&mut node, 0, &Detach { handle: 1, closed: false, error: None })), ["detach"]);
    assert_eq!(node.queue("q"), (0, 2, 0));
    peer.call(&mut node, 0, &End::default());
    assert_eq!(node.queue("q"), (2, 0, 0));
}

#[test]
fn a_suspended_sender_learns_what_became_of_its_messages() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    let target = Some(AttachTarget::Target(Target { address: Some("q"), ..Target::default() }));
    let rcv_settle_mode = ReceiverSettleMode::Second;
    let attach = Attach { name: "s", target, rcv_settle_mode, initial_delivery_count: Some(0), ..Attach::default() };
    peer.call(&mut node, 0, &attach);
    peer.send(&mut node, 0, &message(b"x"), false);
    peer.call(&mut node, 0, &Detach { handle: 0, closed: false, error: None });
    let said = peer.call(&mut node, 0, &attach);
    let Performative::Attach(answer) = said[0].performative() else { panic!("{said:?}") };
    let (tag, state) = answer.unsettled.expect("an answer").iter().next().expect("one");
    assert_eq!((tag.as_binary(), state.as_described().and_then(|state| state.code())), (Some(&[0; 4][..]), Some(0x24)));
    let transfer = Transfer {
        delivery_id: Some(9),
        delivery_tag: Some(&[0; 4]),
        settled: Some(true),
        resume: true,
        ..Transfer::default()
    };
    node.feed(peer.conn, &frame_of(&transfer, b""));
    assert_eq!((peer.read(&mut node), node.queue("q")), (vec![], (1, 0, 0)));
}

#[test]
fn watched_links_are_reported_when_they_go() {
    let (mut node, mut peer) = filled(&[]);
    let plan = LinkPlan { queue: Some("q".to_owned()), watch: true, ..LinkPlan::default() };
    let source = Source { address: Some("q"), ..Source::default() };
    for (handle, closed) in [(1, true), (2, false)] {
        attach_by_plan(&mut node, &mut peer, handle, source, plan.clone());
        peer.call(&mut node, 0, &Detach { handle, closed, error: None });
    }
    attach_by_plan(&mut node, &mut peer, 3, source, plan);
    node.close(peer.conn);
    let gone: Vec<(String, bool)> = node
        .events
        .iter()
        .filter_map(|event| match event {
            Event::LinkClosed { queue, link, closed, .. } if queue == "q" => Some((link.clone(), *closed)),
            _ => None,
        })
        .collect();
    let expected = [("planned-1", true), ("planned-2", false), ("planned-3", false)];
    assert_eq!(gone, expected.map(|(link, closed)| (link.to_owned(), closed)));
}

#[test]
fn links_that_report_tell_what_the_peer_grants_and_decides() {
    let (mut node, mut peer) = filled(&["1", "2", "3"]);
    let plan = LinkPlan { queue: Some("q".to_owned()), watch: true, report: true, ..LinkPlan::default() };
    let source = Source { address: Some("q"), ..Source::default() };
    attach_by_plan(&mut node, &mut peer, 1, source, plan);
    peer.credit(&mut node, 1, 0, 3, false);
    for (id, outcome) in
        [Outcome::Accepted, Outcome::Released, Outcome::Rejected(Rejected::default())].iter().enumerate()
    {
        peer.settle(&mut node, id as u32, id as u32, *outcome);
    }
    // A peer that receives from a link which was not asked for is nobody's business.
    peer.receiver(&mut node, 2, "q", 1);
    let told: Vec<String> = node
        .events
        .iter()
        .filter_map(|event| match event {
            Event::LinkFlow { queue, link, credit, .. } => Some(format!("{queue} {link} {credit}")),
            Event::Settled { queue, outcome, .. } => Some(format!("{queue} {outcome}")),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["q planned-1 3", "q accepted", "q released", "q rejected"]);
}

#[test]
fn nothing_is_kept_of_what_was_sent_settled() {
    for (mode, kept) in [(SenderSettleMode::Settled, 0), (SenderSettleMode::Unsettled, 3)] {
        let (mut node, mut peer) = filled(&["1", "2", "3"]);
        let source = Source { address: Some("q"), ..Source::default() };
        assert_eq!(bodies(&peer.receiver_with(&mut node, 1, source, mode, 3)), ["1", "2", "3"]);
        assert_eq!(node.queue("q"), (0, kept, 1));
        let held = node.engine.session_keys(&[peer.conn.raw()], Some("unsettled"));
        assert_eq!(held.iter().map(|row| row.2).collect::<Vec<_>>(), [Some(kept as u64)]);
    }
}

#[test]
fn what_was_unsettled_comes_back_failed_only_when_the_connection_breaks() {
    for (orderly, count) in [(true, 0), (false, 1)] {
        let (mut node, mut peer) = filled(&["1"]);
        peer.receiver(&mut node, 1, "q", 1);
        match orderly {
            true => drop(peer.call(&mut node, 0, &Close::default())),
            false => node.close(peer.conn),
        }
        assert_eq!(node.queue("q"), (1, 0, 0));
        let mut other = Peer::connect(&mut node);
        let got = deliveries(&other.receiver(&mut node, 0, "q", 1));
        assert_eq!(got[0].header().delivery_count, count);
    }
}

#[test]
fn a_message_larger_than_a_receiver_takes_goes_to_the_dead_letters() {
    let (mut node, mut peer) = filled(&[]);
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "dead", |_| ());
    client.declare(&mut node, "source", |table| {
        table.str(b"x-dead-letter-exchange", b"");
        table.str(b"x-dead-letter-routing-key", b"dead");
    });
    client.publish(&mut node, "", "source", &[7; 500]);
    client.publish(&mut node, "", "source", b"small");
    let source = Some(Source { address: Some("source"), ..Source::default() });
    let max_message_size = Some(100);
    let attach = Attach { name: "r", handle: 1, role: Role::Receiver, source, max_message_size, ..Attach::default() };
    peer.call(&mut node, 0, &attach);
    assert_eq!(bodies(&peer.credit(&mut node, 1, 0, 10, false)), ["small"]);
    assert_eq!((node.queue("source"), node.queue("dead").0), ((0, 1, 1), 1));
}

#[test]
fn the_consumer_of_higher_priority_is_served_first() {
    let (mut node, mut peer) = filled(&[]);
    for (handle, priority) in [(1, 0), (2, 5)] {
        let mut properties = MapBuf::new();
        properties.put(Value::Symbol("rabbitmq:priority"), Value::Int(priority));
        let name = format!("r{handle}");
        let source = Some(Source { address: Some("q"), ..Source::default() });
        let properties = Some(properties.as_map());
        let attach = Attach { name: &name, handle, role: Role::Receiver, source, properties, ..Attach::default() };
        peer.call(&mut node, 0, &attach);
        peer.credit(&mut node, handle, 0, 2, false);
    }
    let mut handles = Vec::new();
    for _ in 0..3 {
        handles.extend(deliveries(&peer.send(&mut node, 0, &message(b"x"), true)).iter().map(|got| got.handle));
    }
    assert_eq!(handles, [2, 2, 1]);
}
