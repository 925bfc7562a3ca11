//! Topic matching: which targets were bound with a pattern that fits a routing key.
//!
//! Owns the trie of binding patterns of one exchange. Patterns with targets come in, and for a key the targets
//! of every fitting pattern go out; words are what '.' separates, `*` stands for exactly one, `#` for any
//! number. It must never know what a target is. One match visits a node at most once per position in the key,
//! so whatever the patterns are it costs at most (nodes the key can reach) x (words in the key + 1) steps;
//! patterns without wildcards cost one lookup all together.
//! Rule: AMQP 0-9-1 section 3.1.3.3, with RabbitMQ's reading of empty words: "a..b" has three words, "" has
//! none.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::hash::{Map, Seeded};

/// More words than a 255-byte binding key can hold; it also bounds how deep a match recurses.
pub const PATTERN_WORDS_MAX: usize = 256;

/// Keys of up to this many words are matched without allocating.
const KEY_WORDS_INLINE: usize = 32;

const ROOT: NodeId = 0;
/// The root is nobody's child, so its number is free to mean "no such child".
const NO_CHILD: NodeId = ROOT;
/// A word of a key that occurs in no pattern: only a wildcard can stand for it.
const WORD_IN_NO_PATTERN: WordId = 0;

type NodeId = u32;
type WordId = u64;

/// The patterns bound to one topic exchange: those with a wildcard as a trie of words, the others as they are.
pub struct TopicTable<T> {
    literals: Map<Box<[u8]>, Vec<T>>,
    nodes: Vec<Node<T>>,
    vacant: Vec<NodeId>,
    /// The literal children of all nodes: most nodes have one, so a map in each would cost more than all the rest.
    edges: Map<(NodeId, WordId), NodeId>,
    words: Map<Box<[u8]>, Word>,
    word_id_last: WordId,
    len: usize,
    match_id_next: AtomicU64,
}

struct Node<T> {
    one: NodeId,
    many: NodeId,
    literal_count: u32,
    /// The last match that came here. Only `#` nodes use it; atomic merely to keep the table `Sync`: were two matches
    /// ever to run at once, each would still find all targets and could at worst repeat work.
    seen_by_match: AtomicU64,
    targets: Vec<T>,
}

struct Word {
    id: WordId,
    edge_count: u32,
}

impl<T> Node<T> {
    fn new() -> Self {
        Self { one: NO_CHILD, many: NO_CHILD, literal_count: 0, seen_by_match: AtomicU64::new(0), targets: Vec::new() }
    }

    fn is_leaf(&self) -> bool {
        self.one == NO_CHILD && self.many == NO_CHILD && self.literal_count == 0
    }
}

impl<T: Copy + Ord> TopicTable<T> {
    /// An empty table; the hasher's seed shows neither in what is found nor in its order.
    pub fn with_hasher(hasher: Seeded) -> Self {
        Self {
            literals: Map::with_hasher(hasher),
            nodes: vec![Node::new()],
            vacant: Vec::new(),
            edges: Map::with_hasher(hasher),
            words: Map::with_hasher(hasher),
            word_id_last: WORD_IN_NO_PATTERN,
            len: 0,
            match_id_next: AtomicU64::new(1),
        }
    }

    /// Binds `target` to `pattern`. False, and nothing changes, if it was bound already or if the pattern has
    /// more than [`PATTERN_WORDS_MAX`] words.
    pub fn insert(&mut self, pattern: &[u8], target: T) -> bool {
        if words(pattern).count() > PATTERN_WORDS_MAX {
            return false;
        }
        let targets = if has_wildcard(pattern) {
            let node = words(pattern).fold(ROOT, |node, word| match self.child(node, word) {
                NO_CHILD => self.add_child(node, word),
                child => child,
            });
            &mut self.nodes[node as usize].targets
        } else {
            self.literals.entry(pattern.into()).or_default()
        };
        let Err(place) = targets.binary_search(&target) else {
            return false;
        };
        targets.insert(place, target);
        self.len += 1;
        true
    }

    /// Undoes [`insert`](Self::insert) and frees what no other pattern needs. False if it was not bound.
    pub fn remove(&mut self, pattern: &[u8], target: T) -> bool {
        let removed = if has_wildcard(pattern) {
            self.remove_from_trie(pattern, target)
        } else {
            self.remove_literal(pattern, target)
        };
        self.len -= usize::from(removed.is_some());
        removed.is_some()
    }

    /// Calls `found` with each target of each fitting pattern; a target bound with two fitting patterns is found twice.
    pub fn matches(&self, key: &[u8], found: &mut impl FnMut(T)) {
        if let Some(targets) = self.literals.get(key) {
            targets.iter().copied().for_each(&mut *found);
        }
        if self.nodes[ROOT as usize].is_leaf() {
            return;
        }
        let mut inline = [WORD_IN_NO_PATTERN; KEY_WORDS_INLINE];
        let spilled: Vec<WordId>;
        let key_word_ids = words(key).map(|word| self.words.get(word).map_or(WORD_IN_NO_PATTERN, |known| known.id));
        let separators = key.iter().filter(|&&byte| byte == b'.').count();
        let key_words = if separators < KEY_WORDS_INLINE {
            let mut count = 0;
            for (slot, word_id) in inline.iter_mut().zip(key_word_ids) {
                *slot = word_id;
                count += 1;
            }
            &inline[..count]
        } else {
            spilled = key_word_ids.collect();
            &spilled
        };
        let match_id = self.match_id_next.fetch_add(1, Ordering::Relaxed);
        Walk { table: self, key_words, match_id, found }.visit(ROOT, 0);
    }

    /// How many (pattern, target) pairs are bound.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is bound.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn remove_literal(&mut self, pattern: &[u8], target: T) -> Option<()> {
        let targets = self.literals.get_mut(pattern)?;
        targets.remove(targets.binary_search(&target).ok()?);
        if targets.is_empty() {
            self.literals.remove(pattern);
        }
        Some(())
    }

    fn remove_from_trie(&mut self, pattern: &[u8], target: T) -> Option<()> {
        let mut node = ROOT;
        let mut path = Vec::new();
        for word in words(pattern) {
            path.push((node, word));
            node = self.child(node, word);
            if node == NO_CHILD {
                return None;
            }
        }
        let targets = &mut self.nodes[node as usize].targets;
        targets.remove(targets.binary_search(&target).ok()?);
        for (parent, word) in path.into_iter().rev() {
            let child = &self.nodes[node as usize];
            if !child.targets.is_empty() || !child.is_leaf() {
                break;
            }
            self.drop_child(parent, word);
            node = parent;
        }
        Some(())
    }

    fn child(&self, node: NodeId, word: &[u8]) -> NodeId {
        match word {
            b"*" => self.nodes[node as usize].one,
            b"#" => self.nodes[node as usize].many,
            _ => self.words.get(word).map_or(NO_CHILD, |known| self.literal_child(node, known.id)),
        }
    }

    fn literal_child(&self, node: NodeId, word_id: WordId) -> NodeId {
        self.edges.get(&(node, word_id)).copied().unwrap_or(NO_CHILD)
    }

    fn add_child(&mut self, parent: NodeId, word: &[u8]) -> NodeId {
        let child = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(Node::new());
            // A node takes some fifty bytes, so memory ends long before the numbers do.
            (self.nodes.len() - 1) as NodeId
        });
        let node = &mut self.nodes[parent as usize];
        match word {
            b"*" => node.one = child,
            b"#" => node.many = child,
            _ => {
                node.literal_count += 1;
                let word_id = self.acquire_word(word);
                self.edges.insert((parent, word_id), child);
            }
        }
        child
    }

    fn drop_child(&mut self, parent: NodeId, word: &[u8]) {
        let child = self.child(parent, word);
        let node = &mut self.nodes[parent as usize];
        match word {
            b"*" => node.one = NO_CHILD,
            b"#" => node.many = NO_CHILD,
            _ => {
                node.literal_count -= 1;
                if let Some(word_id) = self.release_word(word) {
                    self.edges.remove(&(parent, word_id));
                }
            }
        }
        self.nodes[child as usize].targets = Vec::new();
        self.vacant.push(child);
    }

    fn acquire_word(&mut self, word: &[u8]) -> WordId {
        if let Some(known) = self.words.get_mut(word) {
            known.edge_count += 1;
            return known.id;
        }
        self.word_id_last += 1;
        self.words.insert(word.into(), Word { id: self.word_id_last, edge_count: 1 });
        self.word_id_last
    }

    fn release_word(&mut self, word: &[u8]) -> Option<WordId> {
        let known = self.words.get_mut(word)?;
        let word_id = known.id;
        known.edge_count -= 1;
        if known.edge_count == 0 {
            self.words.remove(word);
        }
        Some(word_id)
    }
}

/// One match under way.
struct Walk<'a, T, F> {
    table: &'a TopicTable<T>,
    key_words: &'a [WordId],
    match_id: u64,
    found: &'a mut F,
}

impl<T: Copy + Ord, F: FnMut(T)> Walk<'_, T, F> {
    /// `node` has consumed the first `position` words of the key.
    fn visit(&mut self, node: NodeId, position: usize) {
        let table = self.table;
        let node_id = node;
        let node = &table.nodes[node as usize];
        if node.many != NO_CHILD {
            self.visit_many(node.many, position);
        }
        let Some(&word_id) = self.key_words.get(position) else {
            node.targets.iter().copied().for_each(&mut *self.found);
            return;
        };
        if node.literal_count > 0 && word_id != WORD_IN_NO_PATTERN {
            let child = table.literal_child(node_id, word_id);
            if child != NO_CHILD {
                self.visit(child, position + 1);
            }
        }
        if node.one != NO_CHILD {
            self.visit(node.one, position + 1);
        }
    }

    /// A `#` node entered at a position covers all later ones. It has one parent, whose positions come in rising order,
    /// so the first entry covers the others, which are dropped: this keeps nested `#` from multiplying.
    fn visit_many(&mut self, node_id: NodeId, position: usize) {
        let node = &self.table.nodes[node_id as usize];
        if node.seen_by_match.swap(self.match_id, Ordering::Relaxed) == self.match_id {
            return;
        }
        let end = self.key_words.len();
        let start = if node.is_leaf() { end } else { position };
        for position in start..=end {
            self.visit(node_id, position);
        }
    }
}

/// Whether one pattern fits one key, for filters that are not worth a table.
/// At most (words in the pattern) x (words in the key) comparisons: only the last `#` is ever tried again.
pub fn pattern_matches(pattern: &[u8], key: &[u8]) -> bool {
    let (mut pattern, mut key) = (words(pattern), words(key));
    let mut last_many = None;
    loop {
        let key_here = key.clone();
        match (pattern.next(), key.next()) {
            (Some(b"#"), _) => {
                key = key_here;
                last_many = Some((pattern.clone(), key.clone()));
            }
            (None, None) => return true,
            (Some(_), None) => return false,
            (Some(wanted), Some(word)) if wanted == b"*" || wanted == word => {}
            (_, Some(_)) => {
                // Let the last `#` swallow one word more and try again from there.
                let Some((pattern_after, key_after)) = &mut last_many else {
                    return false;
                };
                key_after.next();
                (pattern, key) = (pattern_after.clone(), key_after.clone());
            }
        }
    }
}

/// A pattern without wildcards fits one key only, the one it equals.
fn has_wildcard(pattern: &[u8]) -> bool {
    words(pattern).any(|word| matches!(word, b"*" | b"#"))
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let count_max = if text.is_empty() { 0 } else { usize::MAX };
    text.split(|&byte| byte == b'.').take(count_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, word by word and without any cleverness: the oracle of this file.
    fn fits(pattern: &[&[u8]], key: &[&[u8]]) -> bool {
        match (pattern, key) {
            ([], _) => key.is_empty(),
            ([b"#", rest @ ..], _) => (0..=key.len()).any(|skipped| fits(rest, &key[skipped..])),
            ([_, ..], []) => false,
            ([wanted, rest @ ..], [word, key_rest @ ..]) => (*wanted == b"*" || wanted == word) && fits(rest, key_rest),
        }
    }

    fn oracle(pattern: &[u8], key: &[u8]) -> bool {
        fits(&words(pattern).collect::<Vec<_>>(), &words(key).collect::<Vec<_>>())
    }

    fn found(table: &TopicTable<u32>, key: &[u8]) -> Vec<u32> {
        let mut targets = Vec::new();
        table.matches(key, &mut |target| targets.push(target));
        targets.sort_unstable();
        targets
    }

    struct Lcg(u64);

    impl Lcg {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((self.0 >> 33) as usize) % bound
        }

        fn text(&mut self, alphabet: &[&str], words_max: usize) -> Vec<u8> {
            let count = self.below(words_max + 1);
            (0..count).map(|_| alphabet[self.below(alphabet.len())]).collect::<Vec<_>>().join(".").into_bytes()
        }
    }

    const PATTERN_ALPHABET: [&str; 6] = ["a", "b", "", "*", "#", "#"];
    const KEY_ALPHABET: [&str; 5] = ["a", "b", "", "c", "a"];

    #[test]
    fn known_cases_agree_in_all_three_matchers() {
        const FIT: &str = "|;#|;#|a.b.c;*|a;*.*|.;a..b|a..b;a.*.b|a..b;a.#.b|a.b;a.#|a;#.a|a;#.a|b.a;#.a.#|x.a.y;#.#|";
        const UNFIT: &str = "|a;*|;*|a.b;a.*.b|a.b;a.#|ab;#.*|;*.#.*|a;a|A;a*|ab;a#|a;a.|a;.a|a";
        let cases = FIT.split(';').map(|case| (case, true)).chain(UNFIT.split(';').map(|case| (case, false)));
        for (case, expected) in cases {
            let (pattern, key) = case.split_once('|').unwrap();
            let (pattern, key) = (pattern.as_bytes(), key.as_bytes());
            let mut table = TopicTable::with_hasher(Seeded(7));
            assert!(table.insert(pattern, 1));
            assert_eq!(oracle(pattern, key), expected, "oracle: {case}");
            assert_eq!(pattern_matches(pattern, key), expected, "single: {case}");
            assert_eq!(!found(&table, key).is_empty(), expected, "table: {case}");
        }
    }

    #[test]
    fn random_tables_find_what_the_oracle_finds() {
        let mut random = Lcg(20);
        for round in 0..300 {
            let mut table = TopicTable::with_hasher(Seeded(round));
            let patterns: Vec<_> = (0..40).map(|_| random.text(&PATTERN_ALPHABET, 6)).collect();
            for (target, pattern) in patterns.iter().enumerate() {
                assert!(table.insert(pattern, target as u32));
            }
            for _ in 0..30 {
                let key = random.text(&KEY_ALPHABET, 7);
                let expected: Vec<u32> = (0..)
                    .zip(&patterns)
                    .filter(|(_, pattern)| oracle(pattern, &key))
                    .map(|(target, _)| target)
                    .collect();
                assert_eq!(found(&table, &key), expected, "key {:?}", String::from_utf8_lossy(&key));
            }
        }
    }

    #[test]
    fn random_single_patterns_agree_with_the_oracle() {
        let mut random = Lcg(21);
        let mut fitting = 0;
        for _ in 0..50_000 {
            let (pattern, key) = (random.text(&PATTERN_ALPHABET, 7), random.text(&KEY_ALPHABET, 8));
            let expected = oracle(&pattern, &key);
            fitting += usize::from(expected);
            assert_eq!(pattern_matches(&pattern, &key), expected, "{:?}", String::from_utf8_lossy(&pattern));
        }
        assert!((5_000..45_000).contains(&fitting), "the sample is lopsided: {fitting}");
    }

    #[test]
    fn removal_undoes_insertion_and_leaves_no_node_behind() {
        let mut random = Lcg(22);
        let mut table = TopicTable::with_hasher(Seeded(1));
        let mut bound: Vec<(Vec<u8>, u32)> = Vec::new();
        for _ in 0..4_000 {
            if random.below(5) < 3 {
                let pair = (random.text(&PATTERN_ALPHABET, 5), random.below(4) as u32);
                let fresh = !bound.contains(&pair);
                assert_eq!(table.insert(&pair.0, pair.1), fresh);
                if fresh {
                    bound.push(pair);
                }
            } else if !bound.is_empty() {
                let (pattern, target) = bound.swap_remove(random.below(bound.len()));
                assert!(table.remove(&pattern, target));
                assert!(!table.remove(&pattern, target));
            }
            assert_eq!(table.len(), bound.len());
            let key = random.text(&KEY_ALPHABET, 5);
            let mut expected: Vec<u32> =
                bound.iter().filter(|(pattern, _)| oracle(pattern, &key)).map(|(_, target)| *target).collect();
            expected.sort_unstable();
            assert_eq!(found(&table, &key), expected);
        }
        for (pattern, target) in bound {
            assert!(table.remove(&pattern, target));
        }
        assert!(table.is_empty() && table.literals.is_empty());
        assert_eq!(table.nodes.len(), table.vacant.len() + 1);
        assert!(table.nodes[0].is_leaf() && table.edges.is_empty() && table.words.is_empty());
    }

    #[test]
    fn removing_what_was_never_bound_changes_nothing() {
        let mut table = TopicTable::with_hasher(Seeded(1));
        assert!(table.insert(b"a.*.c", 1));
        assert!(!table.remove(b"a.*", 1));
        assert!(!table.remove(b"a.*.c", 2));
        assert!(!table.remove(b"x.#", 1));
        assert_eq!(found(&table, b"a.b.c"), [1]);
    }

    #[test]
    fn the_seed_never_shows() {
        let order = |seed| {
            let mut table = TopicTable::with_hasher(Seeded(seed));
            for (target, pattern) in ["#", "a.#", "a.b", "*.b", "a.*", "#.b"].iter().enumerate() {
                table.insert(pattern.as_bytes(), target);
            }
            let mut targets = Vec::new();
            table.matches(b"a.b", &mut |target| targets.push(target));
            targets
        };
        assert_eq!(order(1), order(2));
        assert_eq!(order(1).len(), 6);
    }

    #[test]
    fn nested_many_wildcards_stay_within_the_stated_bound() {
        // 125 words that come close to fitting and never do: a backtracking matcher would not come back.
        let key = ["a"; 125].join(".").into_bytes();
        let hostile: Vec<String> = (1..=60).map(|times| format!("{}.b", ["#.a"; 60][..times].join("."))).collect();
        let mut table = TopicTable::with_hasher(Seeded(3));
        for (target, pattern) in (0..).zip(&hostile) {
            assert!(table.insert(pattern.as_bytes(), target));
            assert!(!pattern_matches(pattern.as_bytes(), &key));
        }
        assert!(table.insert(b"#.a.#.a.#.a.#", 100));
        assert!(table.insert(["#"; PATTERN_WORDS_MAX].join(".").as_bytes(), 101));
        assert_eq!(found(&table, &key), [100, 101]);
        assert_eq!(found(&table, &[&key[..], b".b"].concat()).len(), 62);
    }

    #[test]
    fn a_pattern_with_too_many_words_is_refused() {
        let mut table = TopicTable::with_hasher(Seeded(1));
        assert!(table.insert(&[b'.'; PATTERN_WORDS_MAX - 1], 1));
        assert!(!table.insert(&[b'.'; PATTERN_WORDS_MAX], 1));
        assert!(!table.remove(&[b'.'; PATTERN_WORDS_MAX], 1));
        assert_eq!(found(&table, &[b'.'; PATTERN_WORDS_MAX - 1]), [1]);
    }

    #[test]
    fn keys_longer_than_the_inline_words_match_alike() {
        let mut table = TopicTable::with_hasher(Seeded(1));
        table.insert(b"#.z", 1);
        table.insert(b"y.#", 2);
        for count in KEY_WORDS_INLINE - 2..KEY_WORDS_INLINE + 3 {
            let key = format!("y.{}z", "x.".repeat(count));
            assert_eq!(found(&table, key.as_bytes()), [1, 2]);
            assert_eq!(found(&table, &key.as_bytes()[2..]), [1]);
        }
    }
}
