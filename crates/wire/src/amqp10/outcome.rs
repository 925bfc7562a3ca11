//! Delivery states: how far a delivery has come and how it ended.
//!
//! Owns the closed set of outcomes and the states around them, told apart by descriptor. A described value comes in and
//! a state goes out, or the reverse. It must never settle anything: what a state does to a delivery is for the link
//! to know. Rules: AMQP 1.0 part 3, section 3.4, and part 4, section 4.5.

use super::composite::{Composite, Field, described_list};
use super::error::DecodeError;
use super::generated::{
    Accepted, Declared, Modified, Received, Rejected, Released, TransactionalState, descriptor, format,
};
use super::reader::Reader;
use super::value::{List, Value};

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome<'a> {
    Accepted,
    Rejected(Rejected<'a>),
    Released,
    Modified(Modified<'a>),
    /// The answer to a `Declare`.
    Declared(Declared<'a>),
}

/// The state of a delivery at one end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeliveryState<'a> {
    Received(Received),
    Outcome(Outcome<'a>),
    Transactional(TransactionalState<'a>),
}

/// `Accepted` after its first octet, as every encoder writes it.
const ACCEPTED_BYTES: [u8; 3] = [format::SMALLULONG, descriptor::ACCEPTED as u8, format::LIST0];

impl<'a> DeliveryState<'a> {
    pub const ACCEPTED: Self = Self::Outcome(Outcome::Accepted);
    pub const RELEASED: Self = Self::Outcome(Outcome::Released);

    /// How the delivery ended, or will end with its transaction.
    pub fn outcome(&self) -> Option<Outcome<'a>> {
        match *self {
            Self::Received(_) => None,
            Self::Outcome(outcome) => Some(outcome),
            Self::Transactional(state) => state.outcome,
        }
    }

    /// The transaction the state belongs to.
    pub fn txn_id(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Transactional(state) => Some(state.txn_id),
            _ => None,
        }
    }
}

impl<'a> Outcome<'a> {
    #[inline]
    fn from_parts(code: u64, list: List<'a>) -> Result<Self, DecodeError> {
        Ok(match code {
            descriptor::ACCEPTED => Accepted::from_list(list).map(|_| Self::Accepted)?,
            descriptor::REJECTED => Self::Rejected(Rejected::from_list(list)?),
            descriptor::RELEASED => Released::from_list(list).map(|_| Self::Released)?,
            descriptor::MODIFIED => Self::Modified(Modified::from_list(list)?),
            descriptor::DECLARED => Self::Declared(Declared::from_list(list)?),
            _ => return Err(DecodeError::Descriptor),
        })
    }
}

impl<'a> Field<'a> for Outcome<'a> {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        let (code, list) = described_list(value)?;
        Self::from_parts(code, list)
    }

    fn read(code: u8, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (code, list) = reader.described_list(code)?;
        Self::from_parts(code, list)
    }

    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Accepted => Accepted.encode(out),
            Self::Rejected(rejected) => rejected.encode(out),
            Self::Released => Released.encode(out),
            Self::Modified(modified) => modified.encode(out),
            Self::Declared(declared) => declared.encode(out),
        }
    }
}

impl<'a> DeliveryState<'a> {
    #[inline]
    fn from_parts(code: u64, list: List<'a>) -> Result<Self, DecodeError> {
        match code {
            descriptor::RECEIVED => Received::from_list(list).map(Self::Received),
            descriptor::TRANSACTIONAL_STATE => TransactionalState::from_list(list).map(Self::Transactional),
            _ => Outcome::from_parts(code, list).map(Self::Outcome),
        }
    }
}

impl<'a> Field<'a> for DeliveryState<'a> {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        let (code, list) = described_list(value)?;
        Self::from_parts(code, list)
    }

    #[inline]
    fn read(code: u8, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        // Nearly every disposition there is says just this.
        if code == format::DESCRIBED && reader.skip_prefix(&ACCEPTED_BYTES) {
            return Ok(Self::ACCEPTED);
        }
        let (code, list) = reader.described_list(code)?;
        Self::from_parts(code, list)
    }

    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Received(received) => received.encode(out),
            Self::Outcome(outcome) => outcome.put(out),
            Self::Transactional(state) => state.encode(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp10::{Error, MapBuf, Reader, condition};

    fn round_trip(state: DeliveryState<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        state.put(&mut bytes);
        let value = Reader::new(&bytes).read().unwrap();
        assert_eq!(DeliveryState::from_value(value), Ok(state));
        bytes
    }

    #[test]
    fn every_state_round_trips() {
        let mut annotations = MapBuf::new();
        annotations.put(Value::Symbol("x-delay"), Value::Uint(7));
        let error = Error { condition: condition::NOT_FOUND, description: Some("gone"), info: None };
        let modified = Modified {
            delivery_failed: true,
            undeliverable_here: false,
            message_annotations: Some(annotations.as_map()),
        };
        let outcomes = [
            Outcome::Accepted,
            Outcome::Rejected(Rejected { error: Some(error) }),
            Outcome::Rejected(Rejected::default()),
            Outcome::Released,
            Outcome::Modified(modified),
            Outcome::Modified(Modified::default()),
            Outcome::Declared(Declared { txn_id: b"t1" }),
        ];
        for outcome in outcomes {
            round_trip(DeliveryState::Outcome(outcome));
            let within = TransactionalState { txn_id: b"t1", outcome: Some(outcome) };
            round_trip(DeliveryState::Transactional(within));
            assert_eq!(DeliveryState::Transactional(within).outcome(), Some(outcome));
        }
        round_trip(DeliveryState::Received(Received { section_number: 1, section_offset: 900 }));
    }

    #[test]
    fn states_have_the_specified_bytes_and_names() {
        assert_eq!(round_trip(DeliveryState::ACCEPTED), b"\x00\x53\x24\x45");
        let symbolic = b"\x00\xa3\x12amqp:rejected:list\x45";
        let value = Reader::new(symbolic).read().unwrap();
        let rejected = DeliveryState::Outcome(Outcome::Rejected(Rejected::default()));
        assert_eq!(DeliveryState::from_value(value), Ok(rejected));
    }

    #[test]
    fn other_described_values_are_no_state() {
        let value = Reader::new(b"\x00\x53\x29\x45").read().unwrap();
        assert_eq!(DeliveryState::from_value(value), Err(DecodeError::Descriptor));
        assert_eq!(DeliveryState::from_value(Value::Uint(36)), Err(DecodeError::Type));
        let nested = b"\x00\x53\x34\xc0\x0d\x02\xa0\x01t\x00\x53\x34\xc0\x04\x01\xa0\x01t";
        let value = Reader::new(nested).read().unwrap();
        assert_eq!(DeliveryState::from_value(value), Err(DecodeError::Descriptor));
    }
}
