//! What a client asks of a transaction coordinator.
//!
//! Owns the requests that arrive as the amqp-value body of a message on a control link: the two of the specification,
//! and the two by which a node takes part in a commit over several nodes. The section comes in and a request goes out.
//! It must never know which transactions exist. Rules: AMQP 1.0 part 4, sections 4.2 and 4.5; decision 0022.

use super::composite::{Composite, Fields};
use super::error::DecodeError;
use super::generated::{Declare, Discharge, descriptor, format};
use super::reader::Reader;
use super::value::Value;
use super::writer::{Compound, put_symbol};

/// Descriptors of our own have no number.
const PREPARE: &str = "weft:prepare:list";
const RESOLVE: &str = "weft:resolve:list";

/// Asks a transaction to promise that it can be committed, whatever happens, and to wait under a global id.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Prepare<'a> {
    pub txn_id: &'a [u8],
    pub global_id: &'a [u8],
}

impl<'a> Composite<'a> for Prepare<'a> {
    /// Never on the wire.
    const CODE: u64 = u64::MAX;

    fn decode_fields(fields: &mut Fields<'a>) -> Result<Self, DecodeError> {
        Ok(Self { txn_id: fields.required("txn-id")?, global_id: fields.required("global-id")? })
    }

    fn encode_fields(&self, list: &mut Compound<'_>) {
        list.field(&self.txn_id);
        list.field(&self.global_id);
    }
}

/// Ends a prepared transaction by its global id, on whatever connection.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Resolve<'a> {
    pub global_id: &'a [u8],
    pub fail: bool,
}

impl<'a> Composite<'a> for Resolve<'a> {
    /// Never on the wire.
    const CODE: u64 = u64::MAX;

    fn decode_fields(fields: &mut Fields<'a>) -> Result<Self, DecodeError> {
        Ok(Self { global_id: fields.required("global-id")?, fail: fields.or("fail", false)? })
    }

    fn encode_fields(&self, list: &mut Compound<'_>) {
        list.field(&self.global_id);
        list.field(&self.fail);
    }
}

/// A request on a control link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TransactionRequest<'a> {
    Declare(Declare<'a>),
    Discharge(Discharge<'a>),
    Prepare(Prepare<'a>),
    Resolve(Resolve<'a>),
}

impl<'a> TransactionRequest<'a> {
    /// Reads the request from the body of a message: one amqp-value section.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        if reader.descriptor()? != descriptor::AMQP_VALUE {
            return Err(DecodeError::Descriptor);
        }
        let value = reader.read()?;
        if !reader.is_empty() {
            return Err(DecodeError::Trailing);
        }
        let described = value.as_described().ok_or(DecodeError::Type)?;
        let list = described.value().as_list().ok_or(DecodeError::Type)?;
        match (described.descriptor(), described.code()) {
            (_, Some(descriptor::DECLARE)) => Declare::from_list(list).map(Self::Declare),
            (_, Some(descriptor::DISCHARGE)) => Discharge::from_list(list).map(Self::Discharge),
            (Value::Symbol(PREPARE), _) => Prepare::from_list(list).map(Self::Prepare),
            (Value::Symbol(RESOLVE), _) => Resolve::from_list(list).map(Self::Resolve),
            _ => Err(DecodeError::Descriptor),
        }
    }

    /// Appends the amqp-value section that carries the request.
    pub fn encode(&self, out: &mut Vec<u8>) {
        super::writer::put_descriptor(out, descriptor::AMQP_VALUE);
        match self {
            Self::Declare(declare) => declare.encode(out),
            Self::Discharge(discharge) => discharge.encode(out),
            Self::Prepare(prepare) => encode_named(PREPARE, prepare, out),
            Self::Resolve(resolve) => encode_named(RESOLVE, resolve, out),
        }
    }
}

fn encode_named<'a>(name: &str, composite: &impl Composite<'a>, out: &mut Vec<u8>) {
    out.push(format::DESCRIBED);
    put_symbol(out, name);
    let mut list = Compound::list(out);
    composite.encode_fields(&mut list);
    list.finish();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_and_a_cut_one_is_refused() {
        let requests = [
            TransactionRequest::Declare(Declare::default()),
            TransactionRequest::Declare(Declare { global_id: Some(b"xid") }),
            TransactionRequest::Discharge(Discharge { txn_id: b"t", fail: true }),
            TransactionRequest::Discharge(Discharge { txn_id: b"t", fail: false }),
            TransactionRequest::Prepare(Prepare { txn_id: b"t", global_id: b"everywhere" }),
            TransactionRequest::Resolve(Resolve { global_id: b"everywhere", fail: true }),
            TransactionRequest::Resolve(Resolve { global_id: b"everywhere", fail: false }),
        ];
        for request in requests {
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            assert_eq!(TransactionRequest::decode(&bytes), Ok(request));
            for cut in 0..bytes.len() {
                assert!(TransactionRequest::decode(&bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn the_specified_bytes_are_understood() {
        let declare = TransactionRequest::Declare(Declare::default());
        assert_eq!(TransactionRequest::decode(b"\x00\x53\x77\x00\x53\x31\x45"), Ok(declare));
        let discharge = TransactionRequest::Discharge(Discharge { txn_id: b"\x01", fail: true });
        let bytes = b"\x00\x53\x77\x00\x53\x32\xc0\x05\x02\xa0\x01\x01\x41";
        assert_eq!(TransactionRequest::decode(bytes), Ok(discharge));
        assert_eq!(TransactionRequest::decode(b"\x00\x53\x77\x40"), Err(DecodeError::Type));
        assert_eq!(TransactionRequest::decode(b"\x00\x53\x75\xa0\x00"), Err(DecodeError::Descriptor));
    }
}
