//! What columns want of a message's own head, whichever protocol wrote it.
//!
//! Owns `Facts`: borrowed properties, headers and trace, filled by `amqp091` and `amqp10` as far as they are wanted. It
//! must never copy what can be borrowed, nor decode what nobody asked for. Rule: docs/reference/columns.md.

use weft_wire::amqp10::{List, Value as Value10};
use weft_wire::amqp091::table::{Array, Table, Value as Value091};

use crate::schema::Column;
use crate::{amqp10, amqp091, text};

/// Which parts of a head are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    /// Any single property.
    pub(crate) properties: bool,
    pub(crate) headers: bool,
    pub(crate) trace: bool,
    /// Of AMQP 1.0, the `type` may be among the annotations.
    pub(crate) message_type: bool,
}

impl Wants {
    pub(crate) fn of(columns: &[Column]) -> Self {
        let any = |wanted: &[Column]| columns.iter().any(|column| wanted.contains(column));
        let properties = columns.iter().any(|column| (Column::MessageId..=Column::CreationTime).contains(column));
        Self {
            properties,
            headers: any(&[Column::Headers]),
            trace: any(&[Column::Trace, Column::Origin]),
            message_type: any(&[Column::Type]),
        }
    }

    pub(crate) fn any(self) -> bool {
        self != Self::default()
    }
}

/// Some text of a message: not yet checked, or made here.
#[derive(Clone, Debug)]
pub(crate) enum Text<'a> {
    Bytes(&'a [u8]),
    Str(&'a str),
    Made(String),
}

impl<'a> Text<'a> {
    /// Its bytes in the message; `None` if it was made here.
    pub(crate) fn bytes(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Str(text) => Some(text.as_bytes()),
            Self::Made(_) => None,
        }
    }
}

/// The head of a message, as far as it was wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts<'a> {
    pub(crate) message_id: Option<Text<'a>>,
    pub(crate) correlation_id: Option<Text<'a>>,
    pub(crate) reply_to: Option<Text<'a>>,
    pub(crate) content_type: Option<Text<'a>>,
    pub(crate) content_encoding: Option<Text<'a>>,
    pub(crate) message_type: Option<Text<'a>>,
    pub(crate) app_id: Option<Text<'a>>,
    pub(crate) user_id: Option<Text<'a>>,
    pub(crate) created_us: Option<i64>,
    pub(crate) headers: Headers<'a>,
    pub(crate) trace: Trace<'a>,
}

impl<'a> Facts<'a> {
    /// The text property that a column holds.
    pub(crate) fn text(&self, column: Column) -> Option<&Text<'a>> {
        match column {
            Column::MessageId => self.message_id.as_ref(),
            Column::CorrelationId => self.correlation_id.as_ref(),
            Column::ReplyTo => self.reply_to.as_ref(),
            Column::ContentType => self.content_type.as_ref(),
            Column::ContentEncoding => self.content_encoding.as_ref(),
            Column::Type => self.message_type.as_ref(),
            Column::AppId => self.app_id.as_ref(),
            Column::UserId => self.user_id.as_ref(),
            _ => None,
        }
    }
}

/// The headers of a message, still encoded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Headers<'a> {
    #[default]
    Absent,
    Table(Table<'a>),
    /// Whole sections of AMQP 1.0; empty where there is none.
    Sections {
        annotations: &'a [u8],
        application: &'a [u8],
    },
}

impl<'a> Headers<'a> {
    /// Calls `each` with every header: key, and value unless it is null. False if there are none to speak of.
    pub(crate) fn each(&self, scratch: &mut String, mut each: impl FnMut(&str, Option<&str>)) -> bool {
        let mut found = false;
        match self {
            Self::Absent => {}
            Self::Table(table) => {
                for (key, value) in table.iter().filter(|(key, _)| *key != amqp091::TRACE) {
                    let key = String::from_utf8_lossy(key);
                    if let Some(text) = plain(value) {
                        each(&key, Some(text));
                    } else {
                        scratch.clear();
                        let some = text::write091(scratch, value);
                        each(&key, some.then_some(scratch));
                    }
                    found = true;
                }
            }
            Self::Sections { annotations, application } => {
                for (key, value) in amqp10::header_entries(annotations, application) {
                    match value {
                        Value10::String(text) | Value10::Symbol(text) => each(key, Some(text)),
                        value => {
                            scratch.clear();
                            let some = text::write10(scratch, value);
                            each(key, some.then_some(scratch));
                        }
                    }
                    found = true;
                }
            }
        }
        found
    }

    /// All that the headers are made of: where these bytes are the same, so are the headers.
    fn encoded(&self) -> (bool, &'a [u8], &'a [u8]) {
        match *self {
            Self::Absent => (false, &[], &[]),
            Self::Table(table) => (false, table.raw(), &[]),
            Self::Sections { annotations, application } => (true, annotations, application),
        }
    }
}

/// What needs no spelling.
fn plain(value: Value091<'_>) -> Option<&str> {
    let Value091::LongString(bytes) = value else { return None };
    std::str::from_utf8(bytes).ok()
}

/// The headers of the last message. One sender's messages tend to have the same ones, and comparing their bytes costs a
/// tenth of what decoding them does.
#[derive(Default)]
pub(crate) struct Remembered {
    /// There was one.
    known: bool,
    is_amqp10: bool,
    encoded: [Vec<u8>; 2],
    /// Keys and values, one after the other.
    texts: String,
    /// Where each key ends in `texts`, and each value that is not null.
    ends: Vec<(usize, Option<usize>)>,
    there: bool,
}

impl Remembered {
    /// The same as `Headers::each`.
    pub(crate) fn each(
        &mut self,
        headers: &Headers<'_>,
        scratch: &mut String,
        each: impl FnMut(&str, Option<&str>),
    ) -> bool {
        if matches!(headers, Headers::Absent) {
            return false;
        }
        self.renew(headers, scratch);
        self.again(each);
        self.there
    }

    /// The headers that were told last, told once more.
    pub(crate) fn again(&self, mut each: impl FnMut(&str, Option<&str>)) {
        let mut start = 0;
        for &(key_end, value_end) in &self.ends {
            let end = value_end.unwrap_or(key_end);
            let key = self.texts.get(start..key_end).unwrap_or_default();
            each(key, value_end.and_then(|end| self.texts.get(key_end..end)));
            start = end;
        }
    }

    fn renew(&mut self, headers: &Headers<'_>, scratch: &mut String) {
        let (is_amqp10, first, second) = headers.encoded();
        let [known_first, known_second] = &self.encoded;
        if self.known && self.is_amqp10 == is_amqp10 && same(known_first, first) && same(known_second, second) {
            return;
        }
        (self.known, self.is_amqp10) = (true, is_amqp10);
        for (known, new) in self.encoded.iter_mut().zip([first, second]) {
            known.clear();
            known.extend_from_slice(new);
        }
        self.texts.clear();
        self.ends.clear();
        let (texts, ends) = (&mut self.texts, &mut self.ends);
        self.there = headers.each(scratch, |key, value| {
            texts.push_str(key);
            let key_end = texts.len();
            texts.push_str(value.unwrap_or_default());
            ends.push((key_end, value.map(|_| texts.len())));
        });
    }
}

/// Whether these are the same bytes. Nothing is compared where there is nothing: the address of an empty vector is no
/// memory, and a processor that is asked for none of it by mask takes longer than for a hundred bytes.
#[inline]
fn same(known: &[u8], new: &[u8]) -> bool {
    known.len() == new.len() && (new.is_empty() || known == new)
}

/// The nodes a message has passed, still encoded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Trace<'a> {
    #[default]
    Absent,
    Array(Array<'a>),
    List(List<'a>),
}

impl<'a> Trace<'a> {
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Their names, the origin first.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let (array, list) = match *self {
            Self::Absent => (None, None),
            Self::Array(array) => (Some(array), None),
            Self::List(list) => (None, Some(list)),
        };
        let array = array.into_iter().flat_map(|array| array.iter());
        let list = list.into_iter().flat_map(|list| list.iter());
        let texts = array.filter_map(|value| std::str::from_utf8(value.as_bytes()?).ok());
        texts.chain(list.filter_map(|value| value.as_str()))
    }
}
