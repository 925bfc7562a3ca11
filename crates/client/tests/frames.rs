//! What a peer sees of a client, frame by frame, where the two disagree about how much there is room for.
//!
//! Owns a peer that says what a test tells it to. It must never need a clock or a socket.

use weft_client::{Client, Event, Limits, LinkOptions, Manner, Mistake, Place};
use weft_wire::amqp10::frame::{self, Protocol};
use weft_wire::amqp10::*;

/// Frames as a peer sees them: the channel, what is said in short, and how many bytes of a message came with it.
fn seen(client: &mut Client) -> Vec<(u16, String, usize)> {
    let out = client.poll_transmit();
    let mut rest = out.strip_prefix(&Protocol::Amqp.header()[..]).unwrap_or(&out);
    let mut found = Vec::new();
    while let Some(frame) = frame::split(rest, 1 << 20).expect("whole frames") {
        rest = &rest[frame.size..];
        let (performative, payload) = Performative::decode(frame.body).expect("a performative");
        let said = match performative {
            Performative::Attach(attach) => format!("attach {} {}", attach.name, attach.handle),
            Performative::Transfer(transfer) => {
                let word = [("more", transfer.more), ("aborted", transfer.aborted)];
                word.iter().find(|(_, yes)| *yes).map_or("transfer", |(word, _)| word).to_owned()
            }
            Performative::Begin(_) => "begin".to_owned(),
            Performative::End(_) => "end".to_owned(),
            _ => continue,
        };
        found.push((frame.channel, said, payload.len()));
    }
    assert!(rest.is_empty());
    found
}

/// An open client, and what it has said so far.
fn opened(handle_max: u32, incoming_window: u32) -> Client {
    let mut client = Client::new("test", Vec::new(), Limits { sessions_max: 3, ..Limits::default() });
    client.start(None, Vec::new(), 0);
    let mut said = Protocol::Amqp.header().to_vec();
    encode(&mut said, 0, &Open { container_id: "peer", max_frame_size: 512, ..Open::default() });
    encode(&mut said, 0, &Begin { remote_channel: Some(0), incoming_window, handle_max, ..Begin::default() });
    client.receive(&said, 0);
    client.poll_events();
    seen(&mut client);
    client
}

fn say<'a>(client: &mut Client, channel: u16, performative: &impl Composite<'a>) {
    let mut said = Vec::new();
    encode(&mut said, channel, performative);
    client.receive(&said, 0);
}

fn attach(client: &mut Client, name: &str) -> u32 {
    let place = Place { address: Some("q".into()), ..Place::default() };
    client.attach_sender(0, LinkOptions { name: name.into(), place, ..LinkOptions::default() }).expect("a session")
}

/// A sender that is attached and has credit.
fn ready(client: &mut Client, incoming_window: u32) -> u32 {
    let link = attach(client, "out");
    let target = Some(AttachTarget::Target(Target { address: Some("q"), ..Target::default() }));
    say(client, 0, &Attach { name: "out", handle: 0, role: Role::Receiver, target, ..Attach::default() });
    say(client, 0, &flow(0, incoming_window, Some(0)));
    seen(client);
    link
}

fn flow(next_incoming_id: u32, incoming_window: u32, handle: Option<u32>) -> Flow<'static> {
    let credit = handle.map(|_| 10);
    Flow {
        next_incoming_id: Some(next_incoming_id),
        incoming_window,
        outgoing_window: 100,
        handle,
        delivery_count: handle.map(|_| 0),
        link_credit: credit,
        ..Flow::default()
    }
}

fn words(frames: &[(u16, String, usize)]) -> Vec<&str> {
    frames.iter().map(|(_, said, _)| said.as_str()).collect()
}

#[test]
fn a_message_given_up_in_the_middle_is_taken_back() {
    let mut client = opened(10, 2);
    let link = ready(&mut client, 2);
    let large = client.send(link, vec![7; 2_000], Manner::default(), None).expect("a link");
    client.send(link, vec![8; 10], Manner::default(), None).expect("a link");
    assert_eq!(words(&seen(&mut client)), ["more", "more"], "as far as the window goes");
    assert!(!client.forget(link, large), "it may have arrived");
    say(&mut client, 0, &flow(2, 2, None));
    let frames = seen(&mut client);
    assert_eq!(words(&frames), ["aborted", "transfer"]);
    assert_eq!(frames[1].2, 10, "the next one is whole");
    // Both count for credit, as the peer counts them.
    assert_eq!(client.load(link), Some((1, 8)));
}

#[test]
fn a_window_that_has_shrunk_is_no_invitation() {
    let mut client = opened(10, 5);
    let link = ready(&mut client, 5);
    for _ in 0..9 {
        client.send(link, vec![8; 10], Manner::default(), None).expect("a link");
    }
    assert_eq!(seen(&mut client).len(), 5);
    say(&mut client, 0, &flow(2, 1, None));
    assert_eq!(seen(&mut client).len(), 0, "three are on their way, where there is room for one");
    say(&mut client, 0, &flow(5, 2, None));
    assert_eq!(seen(&mut client).len(), 2);
}

#[test]
fn a_link_that_got_no_handle_leaves_the_others_theirs() {
    let mut client = opened(0, 5);
    attach(&mut client, "first");
    let second = attach(&mut client, "second");
    attach(&mut client, "third");
    let frames = seen(&mut client);
    assert_eq!(words(&frames), ["attach first 0"], "the peer takes one");
    let detached = client.poll_events();
    assert!(matches!(detached[..], [Event::Detached { link, .. }, Event::Detached { .. }] if link == second));
}

#[test]
fn sessions_are_counted_at_a_time_and_not_ever() {
    let mut client = opened(10, 5);
    for _ in 0..10 {
        let number = client.begin().expect("one of two");
        assert_eq!(number, 1);
        say(&mut client, 1, &Begin { remote_channel: Some(1), incoming_window: 5, ..Begin::default() });
        client.end(number).expect("it is there");
        client.end(number).expect("twice is no more than once");
        assert_eq!(seen(&mut client), [(1, "begin".to_owned(), 0), (1, "end".to_owned(), 0)]);
        let other = client.begin().expect("the first is not over for the peer");
        assert_eq!(other, 2);
        client.end(other).expect("it is there");
        say(&mut client, 2, &Begin { remote_channel: Some(2), incoming_window: 5, ..Begin::default() });
        say(&mut client, 2, &End::default());
        say(&mut client, 1, &End::default());
        seen(&mut client);
    }
    assert_eq!((client.begin(), client.begin()), (Ok(1), Ok(2)));
    assert_eq!(client.begin(), Err(Mistake::Limit("sessions_max")));
}

#[test]
fn a_session_that_the_peer_ended_keeps_its_number_until_it_is_given_back() {
    let mut client = opened(10, 5);
    let number = client.begin().expect("a session");
    say(&mut client, 1, &Begin { remote_channel: Some(1), incoming_window: 5, ..Begin::default() });
    say(&mut client, 1, &End::default());
    assert_eq!(client.begin(), Ok(2), "who has the first may still speak of it");
    client.end(number).expect("it was there");
    assert_eq!(client.begin(), Ok(1));
}

#[test]
fn a_link_on_the_first_session_waits_for_the_next_connection_if_the_peer_ended_it() {
    let mut client = opened(10, 5);
    say(&mut client, 0, &End::default());
    attach(&mut client, "out");
    assert_eq!(words(&seen(&mut client)), ["end"], "nothing is asked of a session that is over");
    client.start(None, Vec::new(), 0);
    let mut said = Protocol::Amqp.header().to_vec();
    encode(&mut said, 0, &Open { container_id: "peer", ..Open::default() });
    client.receive(&said, 0);
    assert_eq!(words(&seen(&mut client)), ["begin", "attach out 0"]);
}
