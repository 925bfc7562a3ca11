//! The LIKE operator: a pattern compiled once, then held against texts.
//!
//! Owns the meaning of `%` (any run of characters), `_` (any one) and of the escape that makes either, or
//! itself, plain. A pattern comes in once, texts after it, and yes, no or "too much work" goes out. Only the
//! last `%` is ever tried again, so a match takes at most (pattern) x (text) steps, and it must never take more
//! than its caller's budget has left.
//! Rule: Jakarta Messaging 3.1 section 3.8.1.2, LIKE.

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Char(char),
    AnyChar,
    AnyRun,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct LikePattern {
    pieces: Box<[Piece]>,
}

impl LikePattern {
    /// None if the escape character stands before something that needs no escape.
    pub(super) fn compile(pattern: &str, escape: Option<char>) -> Option<Self> {
        let mut pieces = Vec::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            pieces.push(match c {
                _ if Some(c) == escape => {
                    Piece::Char(chars.next().filter(|&escaped| matches!(escaped, '%' | '_') || escaped == c)?)
                }
                '%' => Piece::AnyRun,
                '_' => Piece::AnyChar,
                _ => Piece::Char(c),
            });
        }
        Some(Self { pieces: pieces.into() })
    }

    /// None if `steps_left` ran out before the answer was found.
    pub(super) fn matches(&self, text: &str, steps_left: &mut usize) -> Option<bool> {
        let (mut pieces, mut chars) = (self.pieces.iter(), text.chars());
        let mut last_run = None;
        loop {
            *steps_left = steps_left.checked_sub(1)?;
            let chars_here = chars.clone();
            match (pieces.next(), chars.next()) {
                (Some(Piece::AnyRun), _) if pieces.as_slice().is_empty() => return Some(true),
                (Some(Piece::AnyRun), _) => {
                    chars = chars_here;
                    last_run = Some((pieces.clone(), chars.clone()));
                }
                (None, None) => return Some(true),
                (Some(_), None) => return Some(false),
                (Some(Piece::AnyChar), Some(_)) => {}
                (Some(Piece::Char(wanted)), Some(c)) if *wanted == c => {}
                (_, Some(_)) => {
                    let Some((pieces_after, chars_after)) = &mut last_run else {
                        return Some(false);
                    };
                    chars_after.next();
                    (pieces, chars) = (pieces_after.clone(), chars_after.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like(text: &str, pattern: &str, escape: Option<char>) -> bool {
        LikePattern::compile(pattern, escape).unwrap().matches(text, &mut 100_000).unwrap()
    }

    #[test]
    fn wildcards_stand_for_runs_and_single_characters() {
        for (text, pattern, expected) in [
            ("", "", true),
            ("", "%", true),
            ("", "_", false),
            ("a", "", false),
            ("abc", "abc", true),
            ("abc", "ABC", false),
            ("abc", "a_c", true),
            ("abc", "a_", false),
            ("abc", "%c", true),
            ("abc", "a%", true),
            ("abc", "%b%", true),
            ("abc", "%d%", false),
            ("aab", "%ab", true),
            ("12993", "12%3", true),
            ("123", "12%3", true),
            ("1234", "12%3", false),
            ("é", "_", true),
            ("a\nb", "a%b", true),
            ("a.c", "a.c", true),
            ("abc", "a.c", false),
            ("abcabc", "%_bc", true),
            ("x", "%%%", true),
        ] {
            assert_eq!(like(text, pattern, None), expected, "{text:?} LIKE {pattern:?}");
        }
    }

    #[test]
    fn the_escape_takes_the_meaning_away() {
        assert!(like("_foo", "\\_%", Some('\\')));
        assert!(!like("bar", "\\_%", Some('\\')));
        assert!(like("50%", "50!%", Some('!')));
        assert!(!like("500", "50!%", Some('!')));
        assert!(like("a!b", "a!!b", Some('!')));
        assert!(like("%", "%%", Some('%')), "even a wildcard may be the escape");
        assert_eq!(LikePattern::compile("a!b", Some('!')), None);
        assert_eq!(LikePattern::compile("a!", Some('!')), None);
    }

    #[test]
    fn agrees_with_the_definition_on_all_small_cases() {
        fn fits(pattern: &[char], text: &[char]) -> bool {
            match (pattern, text) {
                ([], _) => text.is_empty(),
                (['%', rest @ ..], _) => (0..=text.len()).any(|skipped| fits(rest, &text[skipped..])),
                ([_, ..], []) => false,
                ([p, rest @ ..], [c, text_rest @ ..]) => (*p == '_' || p == c) && fits(rest, text_rest),
            }
        }
        fn all_texts(alphabet: &[char], length_max: usize) -> Vec<Vec<char>> {
            let mut texts = vec![Vec::new()];
            let mut start = 0;
            for _ in 0..length_max {
                let end = texts.len();
                for index in start..end {
                    texts.extend(alphabet.iter().map(|&c| [&texts[index][..], &[c]].concat()).collect::<Vec<_>>());
                }
                start = end;
            }
            texts
        }
        for pattern in all_texts(&['a', 'b', '_', '%'], 4) {
            for text in all_texts(&['a', 'b'], 5) {
                let (pattern_text, value) = (String::from_iter(&pattern), String::from_iter(&text));
                assert_eq!(like(&value, &pattern_text, None), fits(&pattern, &text), "{value:?} LIKE {pattern_text:?}");
            }
        }
    }

    #[test]
    fn a_hostile_pattern_ends_with_its_budget() {
        let text = "a".repeat(100_000);
        let pattern = LikePattern::compile(&"%a".repeat(1000).replace("%a%a", "%aaaaaaaaaaaaaaaab"), None).unwrap();
        let mut steps_left = 10_000;
        assert_eq!(pattern.matches(&text, &mut steps_left), None);
        assert_eq!(steps_left, 0);
    }
}
