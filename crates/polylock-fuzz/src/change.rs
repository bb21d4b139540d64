//! Random changes of the inputs of a corpus.

use proptest::{
    prelude::{Just, Strategy, any, prop_oneof},
    sample::{Index, select},
};

/// The maximum length of a changed input.
const MAX_BYTES: usize = 4096;
/// The maximum number of changes to one input.
const MAX_CHANGES: usize = 6;

/// Texts that decoders have to handle: separators, escapes, parts of numbers, and characters that change a display.
const TEXTS: &[&str] = &[
    "\0", "\n", "\r\n", "\t", " ", ",", ".", ":", ";", "/", "?", "#", "@", "&", "=", "_", "-", "+", "*", "[",
    "]", "{", "}", "(", ")", "'", "\"", "\\", "$", "%", "%00", "%2F", "%FF", "%C3%A9", ".5", "e400", "nan",
    "é", "😀", "\u{7f}", "\u{85}", "\u{ad}", "\u{202e}", "\u{2028}", "\u{feff}", "\u{fffd}",
];

/// The powers of two at the limits of number types, and beyond them.
const POWERS: &[u32] = &[0, 7, 8, 15, 16, 31, 32, 53, 63, 64, 120];

/// A change of an input: at a place in it, some bytes are replaced.
#[derive(Debug, Clone)]
struct Change {
    at: Index,
    length: usize,
    with: Piece,
}

#[derive(Debug, Clone)]
enum Piece {
    Bytes(Vec<u8>),
    /// Replaces a whole number, if there is one.
    Number(String),
    /// Repeats the bytes.
    Repeat(usize),
}

impl Change {
    fn apply(self, input: &mut Vec<u8>) {
        let mut at = self.at.index(input.len() + 1);
        let mut end = input.len().min(at + self.length);
        let bytes = match self.with {
            Piece::Bytes(bytes) => bytes,
            Piece::Number(number) => {
                (at, end) = number_at(input, self.at).unwrap_or((at, end));
                number.into_bytes()
            }
            Piece::Repeat(times) => input[at..end].repeat(times),
        };
        input.splice(at..end, bytes);
    }
}

/// Returns the range of one of the numbers in `input`.
fn number_at(input: &[u8], place: Index) -> Option<(usize, usize)> {
    let is_digit = |at: usize| input[at].is_ascii_digit();
    let starts: Vec<usize> =
        (0..input.len()).filter(|at| is_digit(*at) && (*at == 0 || !is_digit(at - 1))).collect();
    let at = *starts.get(place.index(starts.len().max(1)))?;
    Some((at, (at..input.len()).find(|at| !is_digit(*at)).unwrap_or(input.len())))
}

/// Returns a strategy for inputs: `seeds` with some changes, also by parts of other seeds.
pub(crate) fn inputs(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let part = (select(seeds.clone()), any::<Index>(), 0..=64_usize).prop_map(|(seed, from, length)| {
        let from = from.index(seed.len() + 1);
        seed[from..seed.len().min(from + length)].to_owned()
    });
    let number = (select(POWERS), -1..=1_i128, select(&["", "-", "+", "0"]))
        .prop_map(|(power, more, prefix)| format!("{prefix}{}", (1_i128 << power) + more));
    let piece = prop_oneof![
        Just(Piece::Bytes(Vec::new())),
        any::<u8>().prop_map(|byte| Piece::Bytes(vec![byte])),
        select(TEXTS).prop_map(|text| Piece::Bytes(text.as_bytes().to_owned())),
        number.prop_map(Piece::Number),
        (2..10_usize).prop_map(Piece::Repeat),
        part.prop_map(Piece::Bytes),
    ];
    let length = prop_oneof![Just(0_usize), 0..=1_usize, 0..=8_usize, 0..=64_usize, Just(MAX_BYTES)];
    let change = (any::<Index>(), length, piece).prop_map(|(at, length, with)| Change { at, length, with });
    let changes = proptest::collection::vec(change, 1..=MAX_CHANGES);
    (select(seeds), changes).prop_map(|(mut input, changes)| {
        for change in changes {
            change.apply(&mut input);
            input.truncate(MAX_BYTES);
        }
        input
    })
}
