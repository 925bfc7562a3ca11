//! Damage: how one input becomes another.
//!
//! Owns the ways to change bytes that fuzzers have found to work: flipped bits, numbers at the ends of their range,
//! words of the protocol, pieces moved, doubled, cut, or taken from another input. An input and random numbers come
//! in, another input goes out. It must never know a target. Rule: the same random numbers give the same damage.

use weft_sim::Random;

/// Inputs are cut to this: long ones are slow and say little more.
pub const INPUT_BYTES_MAX: usize = 8_192;

/// Changes `input` in one to eight places. `other` is an input to take pieces from, `words` are bytes that mean
/// something.
pub fn mutate(random: &mut Random, input: &mut Vec<u8>, other: &[u8], words: &[&[u8]]) {
    for _ in 0..1 << random.below(4) {
        mutate_once(random, input, other, words);
    }
    input.truncate(INPUT_BYTES_MAX);
}

fn mutate_once(random: &mut Random, input: &mut Vec<u8>, other: &[u8], words: &[&[u8]]) {
    let len = input.len();
    let at = random.below(len);
    match random.below(11) {
        0 if len > 0 => input[at] ^= 1 << random.below(8),
        1 if len > 0 => input[at] = random.byte(),
        2 if len > 0 => input[at] = input[at].wrapping_add(random.below(5) as u8).wrapping_sub(2),
        3 => overwrite_number(random, input),
        4 if len > 0 => {
            input.drain(at..(at + 1 + random.below(16)).min(len));
        }
        5 => {
            let bytes = random.bytes(32);
            insert(input, at, &bytes);
        }
        6 if len > 0 => {
            let piece = input[at..(at + 1 + random.below(64)).min(len)].to_vec();
            insert(input, random.below(len), &piece);
        }
        7 if !words.is_empty() => insert(input, at, words[random.below(words.len())]),
        8 if !words.is_empty() => {
            let word = words[random.below(words.len())];
            let end = (at + word.len()).min(len);
            input[at..end].copy_from_slice(&word[..end - at]);
        }
        9 if !other.is_empty() => {
            input.truncate(at);
            input.extend_from_slice(&other[random.below(other.len())..]);
        }
        _ => input.truncate(at),
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}

/// A number of one to eight bytes, as networks write it, at an end of its range or off by a few.
fn overwrite_number(random: &mut Random, input: &mut [u8]) {
    let width = [1, 2, 4, 8][random.below(4)];
    if input.len() < width {
        return;
    }
    let at = random.below(input.len() - width + 1);
    let number = random.odd_number().to_be_bytes();
    input[at..at + width].copy_from_slice(&number[8 - width..]);
}
