//! Between the two protocols.
use crate::message::Message;
use std::borrow::Cow;

/// Properties of a 1.0 message as 0-9-1 knows them, into `properties`; its body as 0-9-1 carries it.
pub fn to_amqp091<'m>(message: &'m Message, _properties: &mut Vec<u8>) -> Cow<'m, [u8]> {
    Cow::Owned(message.body().gather())
}
/// A UUID as text.
pub fn uuid_text(_uuid: &[u8; 16]) -> String {
    String::new()
}
