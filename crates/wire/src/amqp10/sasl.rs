//! The frames of the SASL layer.
//!
//! Owns the five performatives that come before AMQP proper. A frame body comes in and one of them goes out, or the
//! reverse. It must never know a mechanism, and secrets pass through it unlogged. Rules: AMQP 1.0 part 5, section 5.3.

use super::composite::Composite;
use super::error::DecodeError;
use super::frame::{FrameKind, begin_frame, end_frame};
use super::generated::{SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse, descriptor};
use super::reader::Reader;

/// One SASL performative.
#[derive(Clone, Copy, PartialEq)]
pub enum SaslFrame<'a> {
    Mechanisms(SaslMechanisms<'a>),
    Init(SaslInit<'a>),
    Challenge(SaslChallenge<'a>),
    Response(SaslResponse<'a>),
    Outcome(SaslOutcome<'a>),
}

/// Names the frame only: the rest may be a password.
impl std::fmt::Debug for SaslFrame<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Mechanisms(_) => "Mechanisms",
            Self::Init(_) => "Init",
            Self::Challenge(_) => "Challenge",
            Self::Response(_) => "Response",
            Self::Outcome(_) => "Outcome",
        })
    }
}

impl<'a> SaslFrame<'a> {
    /// Reads the body of a SASL frame.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        match Reader::new(body).peek_descriptor()? {
            descriptor::SASL_MECHANISMS => SaslMechanisms::decode(body).map(Self::Mechanisms),
            descriptor::SASL_INIT => SaslInit::decode(body).map(Self::Init),
            descriptor::SASL_CHALLENGE => SaslChallenge::decode(body).map(Self::Challenge),
            descriptor::SASL_RESPONSE => SaslResponse::decode(body).map(Self::Response),
            descriptor::SASL_OUTCOME => SaslOutcome::decode(body).map(Self::Outcome),
            _ => Err(DecodeError::Descriptor),
        }
    }
}

/// Appends a whole SASL frame.
pub fn encode_sasl<'a>(out: &mut Vec<u8>, performative: &impl Composite<'a>) {
    let mark = begin_frame(out, FrameKind::Sasl, 0);
    performative.encode(out);
    end_frame(out, mark);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp10::frame::split;
    use crate::amqp10::{SaslCode, Symbol, Symbols};

    fn round_trip<'a>(performative: &impl Composite<'a>, expected: SaslFrame<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_sasl(&mut bytes, performative);
        let frame = split(&bytes, 512).unwrap().unwrap();
        assert_eq!(frame.kind, FrameKind::Sasl);
        assert_eq!(SaslFrame::decode(frame.body), Ok(expected));
        for cut in 0..frame.body.len() {
            assert!(SaslFrame::decode(&frame.body[..cut]).is_err());
        }
        frame.body.to_vec()
    }

    #[test]
    fn every_sasl_frame_round_trips() {
        let offered = [Symbol("PLAIN"), Symbol("ANONYMOUS")];
        let mechanisms = SaslMechanisms { sasl_server_mechanisms: Symbols::Slice(&offered) };
        let bytes = round_trip(&mechanisms, SaslFrame::Mechanisms(mechanisms));
        assert_eq!(bytes, b"\x00\x53\x40\xc0\x15\x01\xe0\x12\x02\xa3\x05PLAIN\x09ANONYMOUS");
        let init =
            SaslInit { mechanism: Symbol("PLAIN"), initial_response: Some(b"\0user\0pass"), hostname: Some("host") };
        round_trip(&init, SaslFrame::Init(init));
        let challenge = SaslChallenge { challenge: b"r=x" };
        round_trip(&challenge, SaslFrame::Challenge(challenge));
        let response = SaslResponse { response: b"c=y" };
        round_trip(&response, SaslFrame::Response(response));
        let outcome = SaslOutcome { code: SaslCode::Ok, additional_data: None };
        let bytes = round_trip(&outcome, SaslFrame::Outcome(outcome));
        assert_eq!(bytes, b"\x00\x53\x44\xc0\x03\x01\x50\x00");
    }

    #[test]
    fn one_bare_mechanism_is_a_list_and_none_is_an_error() {
        let body = b"\x00\x53\x40\xc0\x08\x01\xa3\x05PLAIN";
        let Ok(SaslFrame::Mechanisms(read)) = SaslFrame::decode(body) else {
            panic!("not mechanisms");
        };
        assert!(read.sasl_server_mechanisms.contains(Symbol("PLAIN")));
        let missing = DecodeError::FieldMissing("sasl-server-mechanisms");
        assert_eq!(SaslFrame::decode(b"\x00\x53\x40\x45"), Err(missing));
        let unknown = b"\x00\x53\x44\xc0\x03\x01\x50\x05";
        assert_eq!(SaslFrame::decode(unknown), Err(DecodeError::FieldType("code")));
        assert_eq!(SaslFrame::decode(b"\x00\x53\x10\x45"), Err(DecodeError::Descriptor));
    }

    #[test]
    fn debug_shows_no_secret() {
        let init = SaslInit { initial_response: Some(b"secret"), ..SaslInit::default() };
        assert_eq!(format!("{:?}", SaslFrame::Init(init)), "Init");
    }
}
