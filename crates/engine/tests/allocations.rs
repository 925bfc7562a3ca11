//! What messages cost in memory, as the allocator sees it: buffers of one size for a large body, none for a new head.
//!
//! Owns an allocator that counts, per thread, so that tests do not see each other. Simulated peers send, what the node
//! asked for meanwhile is counted. It must never look inside a message: its bytes have to lie somewhere, so whoever
//! copies them is seen here. Rules: AMQP 1.0 part 3.2, `PIECE_BYTES`.

mod pair;
mod peer10;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use pair::*;
use peer10::*;
use weft_engine::Limits;
use weft_engine::change::Direction;
use weft_engine::message::PIECE_BYTES;
use weft_sim::Node;
use weft_wire::amqp10::*;

/// Smaller buffers hold no piece of a large body.
const LARGE_BYTES: usize = PIECE_BYTES;

/// What a thread has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Asked {
    bytes: usize,
    /// Buffers of `PIECE_BYTES`.
    pieces: usize,
    /// Large buffers of any other size, and large ones that had to grow.
    odd: usize,
}

thread_local!(static ASKED: Cell<Asked> = const { Cell::new(Asked { bytes: 0, pieces: 0, odd: 0 }) });

struct Counting;

/// Counts a buffer that is new, or larger than it was.
fn count(bytes: usize, is_new: bool) {
    let mut asked = ASKED.get();
    asked.bytes += bytes;
    match bytes {
        PIECE_BYTES if is_new => asked.pieces += 1,
        LARGE_BYTES.. => asked.odd += 1,
        _ => {}
    }
    ASKED.set(asked);
}

// SAFETY: every call is the system's own; what is counted beside it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), true);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes, false);
        unsafe { System.realloc(place, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What is asked for while something is done.
fn asked_by(work: impl FnOnce()) -> Asked {
    let before = ASKED.get();
    work();
    let after = ASKED.get();
    Asked { bytes: after.bytes - before.bytes, pieces: after.pieces - before.pieces, odd: after.odd - before.odd }
}

#[test]
fn a_hundred_megabytes_take_buffers_of_one_size_and_none_grows() {
    const FRAMES: usize = 1_000;
    let mut node = Node::new(Limits::default(), 7);
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    let message = message(&vec![7; 100 << 20]);
    let step = message.len().div_ceil(FRAMES);
    for (number, payload) in message.chunks(step).enumerate() {
        let (more, first) = (number + 1 < FRAMES, number == 0);
        let (delivery_id, delivery_tag) = (first.then_some(0), first.then_some(&b"tag"[..]));
        let transfer = Transfer { handle: 0, delivery_id, delivery_tag, more, ..Transfer::default() };
        let bytes = frame_of(&transfer, payload);
        let asked = asked_by(|| _ = node.receive(peer.conn, &bytes));
        assert_eq!(asked.odd, 0, "frame {number}: {asked:?}");
        assert!(asked.pieces <= step / PIECE_BYTES + 1, "frame {number}: {asked:?}");
        assert!(asked.bytes < asked.pieces * PIECE_BYTES + LARGE_BYTES, "frame {number}: {asked:?}");
        node.settle();
    }
    assert_eq!(node.queue("q"), (1, 0, 0));
}

#[test]
fn annotations_that_a_receiver_adds_cost_what_they_are_long_and_not_the_body() {
    let mut node = Node::new(Limits::default(), 7);
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    peer.receiver(&mut node, 1, "q", 1);
    let sent = message(&[7; 100_000]);
    let id = deliveries(&peer.send(&mut node, 0, &sent, true))[0].id;
    let mut added = MapBuf::new();
    added.put(Value::Symbol("x-opt-seen"), Value::String("here"));
    let modified = Modified { message_annotations: Some(added.as_map()), ..Modified::default() };
    let state = Some(DeliveryState::Outcome(Outcome::Modified(modified)));
    let mut bytes = Vec::new();
    encode(
        &mut bytes,
        0,
        &Disposition { role: Role::Receiver, first: id, settled: true, state, ..Disposition::default() },
    );
    let asked = asked_by(|| _ = node.receive(peer.conn, &bytes));
    assert!(asked.bytes < 1_024, "{asked:?}");
    let again = deliveries(&peer.credit(&mut node, 1, 1, 1, false));
    assert_eq!(again[0].annotation("x-opt-seen"), Some(Value::String("here")));
    assert_eq!(again[0].bare(), sent);
}

#[test]
fn a_trace_is_written_beside_the_body() {
    let ask = |is_relay: bool| {
        let (mut a, mut b, wire) = two();
        fill(&mut a, "q", 0);
        fill(&mut b, "q", 0);
        let link = if is_relay { relay } else { order };
        b.apply(open(link(wire.dialler.raw(), 1, Direction::Pull, "q", "q")));
        wire.carry(&mut b, &mut a);
        let mut peer = Peer::connect(&mut a);
        peer.sender(&mut a, 0, Some("q"));
        // The first one makes the buffer for what leaves, which then stays.
        let mut pass = |node: &mut Node, sent: &mut usize| {
            let bytes = peer.transfer(0, &message(&[7; 100_000]), true);
            asked_by(|| {
                node.receive(peer.conn, &bytes);
                node.engine.poll_transmit(1 << 20, |_, bytes| *sent += bytes.len());
            })
        };
        pass(&mut a, &mut 0);
        let mut sent = 0;
        let asked = pass(&mut a, &mut sent);
        (asked.bytes, sent)
    };
    let ((with, marked), (without, plain)) = (ask(true), ask(false));
    assert!(marked > plain && marked - plain < 256, "{marked} {plain}");
    assert_eq!(with, without, "nothing is asked for because of it");
}
