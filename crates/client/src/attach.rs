//! Links: their life, and the attach that brings one up.
//!
//! Owns the state of one link and how its options become an `attach`, the same one after every reconnect. Answers come
//! in from `frames.rs`. It must never decide whether a link is wanted. Rules: AMQP 1.0 part 2, section 2.6.3, part 3,
//! section 3.5.

use weft_wire::amqp10::{
    Attach, AttachTarget, Coordinator, DistributionMode, ReceiverSettleMode, Role, SenderSettleMode, Source, Symbol,
    Symbols, Target, encode, outcome_name, txn_capability,
};

use crate::options::{LinkOptions, Place};
use crate::receiver::Receiver;
use crate::sender::Sender;

/// How far a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Asked for; nothing is written.
    Wanted,
    /// `attach` is written.
    Attaching,
    Attached,
    /// `detach` is written.
    Detaching,
}

/// What a link does.
pub(crate) enum End {
    Sender(Sender),
    Receiver(Receiver),
}

/// One link.
pub(crate) struct Link {
    pub options: LinkOptions,
    pub session: u16,
    pub stage: Stage,
    pub handle: u32,
    pub end: End,
    /// It is in the list of those that have something to write.
    pub dirty: bool,
    /// It is in the list of those that have something to take.
    pub filled: bool,
}

const OUTCOMES: [Symbol<'static>; 4] =
    [outcome_name::ACCEPTED, outcome_name::REJECTED, outcome_name::RELEASED, outcome_name::MODIFIED];

impl Link {
    pub(crate) fn new(options: LinkOptions, session: u16, end: End) -> Self {
        Self { options, session, stage: Stage::Wanted, handle: 0, end, dirty: false, filled: false }
    }

    /// Writes the attach.
    pub(crate) fn attach(&mut self, out: &mut Vec<u8>, channel: u16, handle: u32, message_bytes_max: u64) {
        (self.handle, self.stage) = (handle, Stage::Attaching);
        let options = &self.options;
        let capabilities: Vec<Symbol<'_>> = options.place.capabilities.iter().map(|name| Symbol(name)).collect();
        let capabilities = Symbols::Slice(&capabilities);
        let is_sender = matches!(self.end, End::Sender(_));
        let settle_mode = if options.settled { SenderSettleMode::Settled } else { SenderSettleMode::Mixed };
        let settle_mode = if options.settled || is_sender { settle_mode } else { SenderSettleMode::Unsettled };
        let (source, target) = if is_sender {
            let own = Source { outcomes: Symbols::Slice(&OUTCOMES), ..Source::default() };
            (own, target_of(&options.place, capabilities))
        } else {
            (source_of(&options.place, capabilities), AttachTarget::Target(Target::default()))
        };
        let attach = Attach {
            name: &options.name,
            handle,
            role: if is_sender { Role::Sender } else { Role::Receiver },
            snd_settle_mode: settle_mode,
            rcv_settle_mode: ReceiverSettleMode::First,
            source: Some(source),
            target: Some(target),
            initial_delivery_count: is_sender.then_some(0),
            max_message_size: (!is_sender).then_some(message_bytes_max),
            properties: (!options.properties.is_empty()).then(|| options.properties.as_map()),
            ..Attach::default()
        };
        encode(out, channel, &attach);
    }
}

fn target_of<'a>(place: &'a Place, capabilities: Symbols<'a>) -> AttachTarget<'a> {
    if place.coordinator {
        let capabilities = Symbols::One(txn_capability::LOCAL_TRANSACTIONS);
        return AttachTarget::Coordinator(Coordinator { capabilities });
    }
    AttachTarget::Target(Target {
        address: place.address.as_deref(),
        durable: place.durable,
        expiry_policy: place.expiry,
        timeout: place.timeout_s,
        dynamic: place.dynamic,
        dynamic_node_properties: None,
        capabilities,
    })
}

fn source_of<'a>(place: &'a Place, capabilities: Symbols<'a>) -> Source<'a> {
    Source {
        address: place.address.as_deref(),
        durable: place.durable,
        expiry_policy: place.expiry,
        timeout: place.timeout_s,
        dynamic: place.dynamic,
        distribution_mode: place.browse.then_some(DistributionMode::Copy),
        filter: (!place.filters.is_empty()).then(|| place.filters.as_map()),
        outcomes: Symbols::Slice(&OUTCOMES),
        capabilities,
        ..Source::default()
    }
}
