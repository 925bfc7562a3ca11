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

/// One performative; an attach is boxed because it is by far the largest and among the rarest.
#[derive(Clone, Debug, PartialEq)]
pub enum Performative<'a> {
    Open(Open<'a>),
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
        let performative = match reader.descriptor()? {
            descriptor::OPEN => Self::Open(Open::decode_list(&mut reader)?),
            descriptor::BEGIN => Self::Begin(Begin::decode_list(&mut reader)?),
            descriptor::ATTACH => Self::Attach(Box::new(Attach::decode_list(&mut reader)?)),
            descriptor::FLOW => Self::Flow(Flow::decode_list(&mut reader)?),
            descriptor::TRANSFER => {
                let transfer = Transfer::decode_list(&mut reader)?;
                return Ok((Self::Transfer(transfer), reader.rest()));
            }
            descriptor::DISPOSITION => Self::Disposition(Disposition::decode_list(&mut reader)?),
            descriptor::DETACH => Self::Detach(Detach::decode_list(&mut reader)?),
            descriptor::END => Self::End(End::decode_list(&mut reader)?),
            descriptor::CLOSE => Self::Close(Close::decode_list(&mut reader)?),
            _ => return Err(DecodeError::Descriptor),
        };
        if reader.is_empty() { Ok((performative, &[])) } else { Err(DecodeError::Trailing) }
    }
}

/// Appends a whole AMQP frame that holds `performative` and no payload.
pub fn encode<'a>(out: &mut Vec<u8>, channel: u16, performative: &impl Composite<'a>) {
    let mark = begin_frame(out, FrameKind::Amqp, channel);
    performative.encode(out);
    end_frame(out, mark);
}
