//! The two ends of a link where they have more than one shape.
//!
//! Owns the choice between a plain target and a transaction coordinator, and the lifetime policies of dynamic nodes.
//! Described values come in and closed enums go out, or the reverse. It must never resolve an address.
//! Rules: AMQP 1.0 part 3, sections 3.5.3 to 3.5.13, and part 4, section 4.5.1.

use super::composite::{Composite, Field, described_list};
use super::error::DecodeError;
use super::generated::{
    Coordinator, DeleteOnClose, DeleteOnNoLinks, DeleteOnNoLinksOrMessages, DeleteOnNoMessages, Target, descriptor,
};
use super::value::Value;

/// What an `Attach` may name as its target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AttachTarget<'a> {
    Target(Target<'a>),
    Coordinator(Coordinator<'a>),
}

impl<'a> Field<'a> for AttachTarget<'a> {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        match described_list(value)? {
            (descriptor::TARGET, list) => Target::from_list(list).map(Self::Target),
            (descriptor::COORDINATOR, list) => Coordinator::from_list(list).map(Self::Coordinator),
            _ => Err(DecodeError::Type),
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Target(target) => target.encode(out),
            Self::Coordinator(coordinator) => coordinator.encode(out),
        }
    }
}

/// How long a dynamic node lives: the value of `lifetime-policy` among its properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimePolicy {
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoMessages,
    DeleteOnNoLinksOrMessages,
}

impl<'a> Field<'a> for LifetimePolicy {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        match described_list(value)?.0 {
            descriptor::DELETE_ON_CLOSE => Ok(Self::DeleteOnClose),
            descriptor::DELETE_ON_NO_LINKS => Ok(Self::DeleteOnNoLinks),
            descriptor::DELETE_ON_NO_MESSAGES => Ok(Self::DeleteOnNoMessages),
            descriptor::DELETE_ON_NO_LINKS_OR_MESSAGES => Ok(Self::DeleteOnNoLinksOrMessages),
            _ => Err(DecodeError::Type),
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::DeleteOnClose => DeleteOnClose.encode(out),
            Self::DeleteOnNoLinks => DeleteOnNoLinks.encode(out),
            Self::DeleteOnNoMessages => DeleteOnNoMessages.encode(out),
            Self::DeleteOnNoLinksOrMessages => DeleteOnNoLinksOrMessages.encode(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp10::{MapBuf, Reader, node_property};

    #[test]
    fn lifetime_policies_round_trip_as_node_properties() {
        let policies = [
            (LifetimePolicy::DeleteOnClose, 0x2b),
            (LifetimePolicy::DeleteOnNoLinks, 0x2c),
            (LifetimePolicy::DeleteOnNoMessages, 0x2d),
            (LifetimePolicy::DeleteOnNoLinksOrMessages, 0x2e),
        ];
        for (policy, code) in policies {
            let mut bytes = Vec::new();
            policy.put(&mut bytes);
            assert_eq!(bytes, [0x00, 0x53, code, 0x45]);
            let mut properties = MapBuf::new();
            let key = Value::Symbol(node_property::LIFETIME_POLICY.0);
            properties.put_with(key, |out| policy.put(out));
            let value = properties.as_map().get("lifetime-policy").unwrap();
            assert_eq!(LifetimePolicy::from_value(value), Ok(policy));
        }
    }

    #[test]
    fn a_target_is_told_from_a_coordinator_by_descriptor() {
        let value = Reader::new(b"\x00\x53\x30\x45").read().unwrap();
        let coordinator = AttachTarget::Coordinator(Coordinator::default());
        assert_eq!(AttachTarget::from_value(value), Ok(coordinator));
        let value = Reader::new(b"\x00\xa3\x10amqp:target:list\xc0\x04\x01\xa1\x01q").read().unwrap();
        let target = Target { address: Some("q"), ..Target::default() };
        assert_eq!(AttachTarget::from_value(value), Ok(AttachTarget::Target(target)));
        let value = Reader::new(b"\x00\x53\x28\x45").read().unwrap();
        assert_eq!(AttachTarget::from_value(value), Err(DecodeError::Type));
    }
}
