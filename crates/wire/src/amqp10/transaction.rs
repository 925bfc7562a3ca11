//! What a client asks of a transaction coordinator.
//!
//! Owns the two requests that arrive as the amqp-value body of a message on a control link. The section comes in and a
//! request goes out. It must never know which transactions exist. Rules: AMQP 1.0 part 4, sections 4.2 and 4.5.

use super::composite::{Composite, described_list};
use super::error::DecodeError;
use super::generated::{Declare, Discharge, descriptor};
use super::reader::Reader;

/// A request on a control link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TransactionRequest<'a> {
    Declare(Declare<'a>),
    Discharge(Discharge<'a>),
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
        match described_list(value)? {
            (descriptor::DECLARE, list) => Declare::from_list(list).map(Self::Declare),
            (descriptor::DISCHARGE, list) => Discharge::from_list(list).map(Self::Discharge),
            _ => Err(DecodeError::Descriptor),
        }
    }

    /// Appends the amqp-value section that carries the request.
    pub fn encode(&self, out: &mut Vec<u8>) {
        super::writer::put_descriptor(out, descriptor::AMQP_VALUE);
        match self {
            Self::Declare(declare) => declare.encode(out),
            Self::Discharge(discharge) => discharge.encode(out),
        }
    }
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
