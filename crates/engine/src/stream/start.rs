//! Where a reader begins, in the words of both protocols.
//!
//! Owns the meaning of an offset specification: a word, a number, a point in time, or an age such as `7D`. Values of
//! either protocol come in; a `Start` or the reason why it is none goes out. It must never know a stream.
//! Rule: RabbitMQ's `x-stream-offset` (0-9-1) and `rabbitmq:stream-offset-spec` (1.0).

/// A place in a stream, as it is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The first message that is kept.
    First,
    /// The last message that is there.
    Last,
    /// What comes from now on.
    #[default]
    Next,
    /// This offset, or the first one after it that is kept.
    Offset(u64),
    /// The first message that arrived at this time (milliseconds since 1970) or later.
    Time(u64),
}

const SECOND_MS: u64 = 1_000;

impl Start {
    /// A word, or an age.
    pub fn of_text(text: &str, now_ms: u64) -> Option<Self> {
        match text {
            "first" => Some(Self::First),
            "last" => Some(Self::Last),
            "next" => Some(Self::Next),
            age => Some(Self::Time(now_ms.saturating_sub(age_ms(age)?))),
        }
    }

    /// A number.
    pub fn of_number(number: i64) -> Option<Self> {
        u64::try_from(number).ok().map(Self::Offset)
    }
}

/// A count and a unit: years, months, days, hours, minutes, seconds (`Y M D h m s`).
pub fn age_ms(text: &str) -> Option<u64> {
    let unit = text.chars().next_back().filter(char::is_ascii)?;
    let seconds = match unit {
        'Y' => 365 * 86_400,
        'M' => 30 * 86_400,
        'D' => 86_400,
        'h' => 3_600,
        'm' => 60,
        's' => 1,
        _ => return None,
    };
    let count = text.get(..text.len() - 1)?;
    let count: u64 = count.chars().all(|digit| digit.is_ascii_digit()).then(|| count.parse().ok())??;
    count.checked_mul(seconds)?.checked_mul(SECOND_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_and_ages() {
        let now_ms = 10_000_000;
        assert_eq!(Start::of_text("first", now_ms), Some(Start::First));
        assert_eq!(Start::of_text("2h", now_ms), Some(Start::Time(now_ms - 7_200_000)));
        assert_eq!(Start::of_text("7D", now_ms), Some(Start::Time(0)), "before the beginning of time");
        for wrong in ["", "h", "1", "-1h", "+1h", "1.5h", "1 h", "1w", "First", "1ü", "99999999999999999999s"] {
            assert_eq!(Start::of_text(wrong, now_ms), None, "{wrong}");
        }
        assert_eq!((Start::of_number(5), Start::of_number(-1)), (Some(Start::Offset(5)), None));
    }
}
