//! The node's end of a link in the words of Python, and back.
//!
//! Owns the translation of sources and targets: what the peer asked for becomes a `Terminus` for the question, what
//! Python decided becomes the terminus of the answer, with the filters that are really applied. It must never resolve
//! an address. Rules: AMQP 1.0 section 3.5; filters are known by the symbols of the Apache registry, whichever form
//! the peer used.

use weft_wire::amqp10::{
    Field, LifetimePolicy, Map, MapBuf, Source, Symbol, Symbols, Target, Value, filter, node_property, writer,
};

use crate::event::{Fields, Terminus};

/// Numeric descriptors of filters and the symbols they stand for.
const FILTERS: [(u64, &str); 9] = [
    (filter::DIRECT_BINDING, filter::DIRECT_BINDING_SYMBOL),
    (filter::TOPIC_BINDING, filter::TOPIC_BINDING_SYMBOL),
    (filter::HEADERS_BINDING, filter::HEADERS_BINDING_SYMBOL),
    (filter::NO_LOCAL, filter::NO_LOCAL_SYMBOL),
    (filter::SELECTOR, filter::SELECTOR_SYMBOL),
    (filter::XQUERY, filter::XQUERY_SYMBOL),
    (filter::SQL, filter::SQL_SYMBOL),
    (filter::PROPERTIES, filter::PROPERTIES_SYMBOL),
    (filter::APPLICATION_PROPERTIES, filter::APPLICATION_PROPERTIES_SYMBOL),
];

pub(super) fn of_source(source: &Source<'_>) -> Terminus {
    Terminus {
        address: source.address.map(str::to_owned),
        dynamic: source.dynamic,
        durable: source.durable.primitive(),
        expiry: source.expiry_policy.primitive().0.to_owned(),
        timeout_s: source.timeout,
        distribution: source.distribution_mode.map_or("", |mode| mode.primitive().0).to_owned(),
        capabilities: texts(source.capabilities),
        lifetime: lifetime(source.dynamic_node_properties).to_owned(),
        filters: source.filter.map_or(Fields::Empty, filters),
    }
}

pub(super) fn of_target(target: &Target<'_>) -> Terminus {
    Terminus {
        address: target.address.map(str::to_owned),
        dynamic: target.dynamic,
        durable: target.durable.primitive(),
        expiry: target.expiry_policy.primitive().0.to_owned(),
        timeout_s: target.timeout,
        distribution: String::new(),
        capabilities: texts(target.capabilities),
        lifetime: lifetime(target.dynamic_node_properties).to_owned(),
        filters: Fields::Empty,
    }
}

fn texts(symbols: Symbols<'_>) -> Vec<String> {
    symbols.iter().map(|symbol| symbol.0.to_owned()).collect()
}

pub(super) fn symbols(texts: &[String]) -> Vec<Symbol<'_>> {
    texts.iter().map(|text| Symbol(text)).collect()
}

fn lifetime(properties: Option<Map<'_>>) -> &'static str {
    let policy = properties.and_then(|map| map.get(node_property::LIFETIME_POLICY.0)).map(LifetimePolicy::from_value);
    match policy {
        Some(Ok(LifetimePolicy::DeleteOnClose)) => "delete-on-close",
        Some(Ok(LifetimePolicy::DeleteOnNoLinks)) => "delete-on-no-links",
        Some(Ok(LifetimePolicy::DeleteOnNoMessages)) => "delete-on-no-messages",
        Some(Ok(LifetimePolicy::DeleteOnNoLinksOrMessages)) => "delete-on-no-links-or-messages",
        _ => "",
    }
}

/// What a filter is: the symbol of its descriptor; the name it was given, if it has none.
pub(super) fn symbol_of<'a>(key: Value<'a>, value: Value<'a>) -> Option<&'a str> {
    match value.as_described().map(|described| described.descriptor()) {
        Some(Value::Symbol(symbol)) => Some(symbol),
        Some(Value::Ulong(code)) => FILTERS.iter().find(|(known, _)| *known == code).map(|(_, symbol)| *symbol),
        _ => key.as_str(),
    }
}

/// The filters by symbol, with their values undescribed.
fn filters(asked: Map<'_>) -> Fields {
    let mut known = MapBuf::new();
    for (key, value) in asked.iter() {
        if let Some(symbol) = symbol_of(key, value) {
            known.put(Value::Symbol(symbol), value.as_described().map_or(value, |described| described.value()));
        }
    }
    let mut bytes = Vec::new();
    writer::put_value(&mut bytes, &Value::Map(known.as_map()));
    Fields::Amqp10(bytes.into_boxed_slice())
}

/// The filters of the answer: those asked for that are really applied, as the peer wrote them.
pub(super) fn applied(asked: Option<Map<'_>>, applied: &[String]) -> MapBuf {
    let mut echo = MapBuf::new();
    for (key, value) in asked.iter().flat_map(Map::iter) {
        if symbol_of(key, value).is_some_and(|symbol| applied.iter().any(|other| other == symbol)) {
            echo.put(key, value);
        }
    }
    echo
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::amqp10::Reader;

    #[test]
    fn filters_are_named_by_symbol_and_echoed_as_written() {
        let mut asked = MapBuf::new();
        asked.put_with(Value::Symbol("mine"), |out| {
            writer::put_descriptor(out, filter::SELECTOR);
            writer::put_str(out, "a > 1");
        });
        asked.put_with(Value::Symbol("other"), |out| {
            out.push(0);
            writer::put_symbol(out, "acme:strange");
            writer::put_bool(out, true);
        });
        let Fields::Amqp10(bytes) = filters(asked.as_map()) else { panic!("no map") };
        let Ok(Value::Map(known)) = Reader::new(&bytes).read() else { panic!("no map") };
        assert_eq!(known.get(filter::SELECTOR_SYMBOL), Some(Value::String("a > 1")));
        assert_eq!(known.get("acme:strange"), Some(Value::Bool(true)));
        let echo = applied(Some(asked.as_map()), &[filter::SELECTOR_SYMBOL.to_owned()]);
        assert_eq!(echo.as_map().get("mine"), asked.as_map().get("mine"));
        assert_eq!(echo.as_map().len(), 1);
    }
}
