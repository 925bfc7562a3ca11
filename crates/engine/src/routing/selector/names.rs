//! The names of a selector: an identifier comes in, what it stands for goes out.
//!
//! Owns the spellings of a message's own fields, as JMS and as AMQP name them; every other name is an
//! application property. What JMS derives from a field is derived here or in the evaluation, so whoever reads
//! messages need not know JMS. It must never read a message. Rule: Jakarta Messaging 3.1 section 3.8.1.1 and
//! the AMQP mapping of JMS headers.

use super::expr::{Arithmetic, Comparison, Expr};
use super::{Name, Operand};

const FIELDS: [(&str, Name); 29] = [
    ("amqp.to", Name::To),
    ("amqp.subject", Name::Subject),
    ("amqp.durable", Name::Durable),
    ("amqp.priority", Name::Priority),
    ("amqp.ttl", Name::Ttl),
    ("amqp.message_id", Name::MessageId),
    ("amqp.user_id", Name::UserId),
    ("amqp.reply_to", Name::ReplyTo),
    ("amqp.correlation_id", Name::CorrelationId),
    ("amqp.content_type", Name::ContentType),
    ("amqp.content_encoding", Name::ContentEncoding),
    ("amqp.absolute_expiry_time", Name::AbsoluteExpiryTime),
    ("amqp.creation_time", Name::CreationTime),
    ("amqp.group_id", Name::GroupId),
    ("amqp.group_sequence", Name::GroupSequence),
    ("amqp.reply_to_group_id", Name::ReplyToGroupId),
    ("amqp.first_acquirer", Name::FirstAcquirer),
    ("amqp.delivery_count", Name::DeliveryCount),
    ("JMSDestination", Name::To),
    ("JMSType", Name::Subject),
    ("JMSPriority", Name::Priority),
    ("JMSMessageID", Name::MessageId),
    ("JMSReplyTo", Name::ReplyTo),
    ("JMSCorrelationID", Name::CorrelationId),
    ("JMSExpiration", Name::AbsoluteExpiryTime),
    ("JMSTimestamp", Name::CreationTime),
    ("JMSXUserID", Name::UserId),
    ("JMSXGroupID", Name::GroupId),
    ("JMSXGroupSeq", Name::GroupSequence),
];

/// What a name stands for. Names the specification keeps for itself are refused when they mean nothing:
/// a typing mistake there would otherwise be a filter that silently never matches.
pub(super) fn named(name: &str) -> Result<Expr, &'static str> {
    if let Some((_, known)) = FIELDS.iter().find(|(spelling, _)| *spelling == name) {
        return Ok(Expr::Field(known.clone()));
    }
    let delivery_count = || Box::new(Expr::Field(Name::DeliveryCount));
    match name {
        "JMSDeliveryMode" => Ok(Expr::DeliveryMode),
        "JMSRedelivered" => Ok(Expr::Compare {
            left: delivery_count(),
            comparison: Comparison::Greater,
            right: Box::new(Expr::Literal(Operand::Int(0))),
        }),
        // JMS counts the delivery under way, AMQP only those that failed.
        "JMSXDeliveryCount" => Ok(Expr::Arithmetic {
            first: delivery_count(),
            rest: vec![(Arithmetic::Add, Expr::Literal(Operand::Int(1)))],
        }),
        _ if name.starts_with("amqp.") => Err("no such amqp. field"),
        _ if name.starts_with("JMS") && !name.starts_with("JMSX") && !name.starts_with("JMS_") => {
            Err("no such JMS header")
        }
        _ => Ok(Expr::Field(Name::Property(name.into()))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parser::parse;
    use super::*;

    fn same(left: &str, right: &str) {
        assert_eq!(parse(left).unwrap(), parse(right).unwrap(), "{left}   ~   {right}");
    }

    #[test]
    fn each_amqp_name_is_a_field_of_its_own() {
        let names = "to subject durable priority ttl message_id user_id reply_to correlation_id content_type \
            content_encoding absolute_expiry_time creation_time group_id group_sequence reply_to_group_id \
            first_acquirer delivery_count";
        let mut fields: Vec<Expr> = Vec::new();
        for name in names.split_whitespace() {
            let field = named(&format!("amqp.{name}")).unwrap();
            assert!(matches!(field, Expr::Field(_)) && !fields.contains(&field), "{name}");
            fields.push(field);
        }
        assert_eq!(fields.len(), 18);
    }

    #[test]
    fn each_jms_name_means_its_amqp_field() {
        for pair in "JMSDestination=to JMSType=subject JMSPriority=priority JMSMessageID=message_id \
            JMSReplyTo=reply_to JMSCorrelationID=correlation_id JMSExpiration=absolute_expiry_time \
            JMSTimestamp=creation_time JMSXUserID=user_id JMSXGroupID=group_id JMSXGroupSeq=group_sequence"
            .split_whitespace()
        {
            let (jms, amqp) = pair.split_once('=').unwrap();
            same(jms, &format!("amqp.{amqp}"));
        }
        same("JMSRedelivered", "amqp.delivery_count > 0");
        same("JMSXDeliveryCount", "amqp.delivery_count + 1");
        assert_eq!(named("JMSDeliveryMode"), Ok(Expr::DeliveryMode));
    }

    #[test]
    fn other_names_are_properties_unless_reserved() {
        for name in ["colour", "JMSXAppID", "JMS_vendor", "jmstype", "amqpx", "x-opt y"] {
            assert_eq!(named(name), Ok(Expr::Field(Name::Property(name.into()))));
        }
        assert!(named("JMSPriorty").is_err());
        assert!(named("amqp.nonsense").is_err());
    }
}
